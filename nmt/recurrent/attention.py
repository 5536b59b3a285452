"""Attention to encoder outputs: additive (Bahdanau et al. 2015) or multiplicative (Luong et al. 2015).

There is one attention layer with one head, above the top decoder layer. With decoder state s and encoder output h, the
score is v tanh(W s + U h) or s W h. The result is tanh(W_c [c; s]), where the context c is the mean of all h weighted
by the softmax of their scores.
"""

from __future__ import annotations

from typing import NamedTuple, assert_never

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.packing.packed import PackedSequences
from nmt.packing.padding import pad
from nmt.recipe import ModelRecipe

# On a CPU, additive scores are computed for this many sentences at a time, which have similar lengths in training.
_CHUNK_SENTENCES = 8
# Target and source tokens of each sentence, on the host.
Sizes = tuple[NDArray[np.int64], NDArray[np.int64]]


class Memory(NamedTuple):
    """The encoder's output, padded.

    keys, values: (batch, src_len, d_model), keys: U h or W h; values: h
    is_padding:   (batch, 1, src_len) bool
    """

    keys: Tensor
    values: Tensor
    is_padding: Tensor

    def select(self, sentences: Tensor) -> Memory:
        """Select sentences (n,), in this order."""
        return Memory(*(part.index_select(0, sentences) for part in self))


class Attention(nn.Module):
    """Attention and the layer that combines its result with the decoder state."""

    def __init__(self, recipe: ModelRecipe) -> None:
        super().__init__()
        self.kind, width = recipe.attention, recipe.d_model
        self.key = nn.Linear(width, width, bias=False)
        if recipe.attention == "additive":
            self.query = nn.Linear(width, width)
            self.score = nn.Parameter(torch.empty(width))
        self.combine = nn.Linear(2 * width, width)

    def memory(self, encoded: Tensor, src: PackedSequences) -> Memory:
        """Return the memory of encoder outputs (src.total, d_model)."""
        longest = src.max_length  # not the padded width: additive scores would be mostly padding
        keys = pad(self.key(encoded)[:, None], src.one_per_row).squeeze(1)[:, :longest].contiguous()
        values = pad(encoded[:, None], src.one_per_row).squeeze(1)[:, :longest].contiguous()
        columns = torch.arange(longest, device=keys.device)
        return Memory(keys, values, (columns >= src.lengths[:, None])[:, None])

    def forward(self, states: Tensor, memory: Memory, sizes: Sizes | None = None) -> tuple[Tensor, Tensor]:
        """Decoder states (batch, queries, d_model) -> results (batch, queries, d_model) and weights in float32.

        weights: (batch, queries, src_len); sizes: if given, additive scores on a CPU skip most of the padding
        """
        scores = self._scores(states, memory.keys, sizes)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        # Finite: -inf would make gradients NaN for sentences without tokens, although their results are unused.
        scores = scores.masked_fill(memory.is_padding, torch.finfo(scores.dtype).min)
        weights = scores.softmax(dim=-1)
        context = torch.bmm(weights.to(memory.values.dtype), memory.values)
        return torch.tanh(self.combine(torch.cat([context, states], dim=-1))), weights

    def _scores(self, states: Tensor, keys: Tensor, sizes: Sizes | None) -> Tensor:
        match self.kind:
            case "additive":
                query = self.query(states)
                if sizes is None or query.device.type != "cpu":
                    return self._additive(query, keys)
                chunks = []
                for first in range(0, len(query), _CHUNK_SENTENCES):
                    part = slice(first, first + _CHUNK_SENTENCES)
                    tgt_len, src_len = (max(1, int(side[part].max())) for side in sizes)
                    scores = self._additive(query[part, :tgt_len], keys[part, :src_len])
                    chunks.append(F.pad(scores, (0, keys.shape[1] - src_len, 0, query.shape[1] - tgt_len)))
                return torch.cat(chunks)
            case "multiplicative":
                return torch.bmm(states, keys.mT)
            case _:
                assert_never(self.kind)

    def _additive(self, query: Tensor, keys: Tensor) -> Tensor:
        return torch.tanh(query[:, :, None] + keys[:, None]) @ self.score
