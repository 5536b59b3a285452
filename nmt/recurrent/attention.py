"""Attention to encoder outputs: additive (Bahdanau et al. 2015) or multiplicative (Luong et al. 2015).

There is one attention with one head, from the top layer of the decoder. With decoder state s and encoder output h, the
score is v tanh(W s + U h) or s W h. The result is tanh(W_c [c; s]), where the context c is the mean of all h weighted
by the softmax of their scores.
"""

from __future__ import annotations

from typing import NamedTuple, assert_never

import torch
from torch import Tensor, nn

from nmt.packing.packed import PackedSequences
from nmt.packing.padding import pad
from nmt.recipe import ModelRecipe

# Elements of W s + U h that are computed at a time: on a CPU as many as stay in the cache of a core.
_CHUNK_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 27}


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
        longest = src.max_length  # less than the padded width, of which additive scores would be mostly padding
        padded = (pad(one[:, None], src.one_per_row) for one in (self.key(encoded), encoded))
        keys, values = (one.squeeze(1)[:, :longest].contiguous() for one in padded)
        columns = torch.arange(longest, device=keys.device)
        return Memory(keys, values, (columns >= src.lengths[:, None])[:, None])

    def forward(self, states: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """Decoder states (batch, queries, d_model) -> results (batch, queries, d_model) and weights in float32.

        weights: (batch, queries, src_len)
        """
        scores = self._scores(states, memory.keys)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        # Finite, because a sentence without tokens, whose result is not used, must not make gradients NaN.
        scores = scores.masked_fill(memory.is_padding, torch.finfo(scores.dtype).min)
        weights = scores.softmax(dim=-1)
        context = torch.bmm(weights.to(memory.values.dtype), memory.values)
        return torch.tanh(self.combine(torch.cat([context, states], dim=-1))), weights

    def _scores(self, states: Tensor, keys: Tensor) -> Tensor:
        match self.kind:
            case "additive":
                size = keys[:1].numel() * states.shape[1]  # of one sentence
                chunk = max(1, _CHUNK_ELEMENTS[states.device.type] // max(1, size))
                pairs = zip(self.query(states)[:, :, None].split(chunk), keys[:, None].split(chunk), strict=True)
                return torch.cat([torch.tanh(query + key) @ self.score for query, key in pairs])
            case "multiplicative":
                return torch.bmm(states, keys.mT)
            case _:
                assert_never(self.kind)
