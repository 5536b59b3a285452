"""Multi-head attention (Vaswani et al. 2017, section 3.2.2): within a sentence, and from target to source."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.model.attention import Kernel, attend, attend_cached, attention_weights
from nmt.model.cache import Cache, heads_first
from nmt.model.dropout import Dropout
from nmt.model.layers import rotate, sinusoids
from nmt.model.relative import RelativePositions
from nmt.packing.packed import PackedSequences
from nmt.recipe import ModelRecipe


class MultiHeadAttention(nn.Module):
    """Concat(head_1 .. head_h) W_O with head_i = Attention(Q W_i, K W_i, V W_i) (paper, section 3.2.2).

    Projections of the same input are one matmul: the rows of its weight are those of W_Q, W_K and W_V in turn.
    """

    def __init__(self, recipe: ModelRecipe) -> None:
        super().__init__()
        self.num_heads = recipe.num_heads
        self.width = recipe.num_heads * recipe.head_width  # of all heads together
        self.dropout = Dropout(recipe.attention_dropout)  # on the attention weights
        self.kernel: Kernel | None = None  # see `Transformer.use_kernel`

    def split_heads(self, projected: Tensor, parts: int) -> Tensor:
        """(..., parts * num_heads * d_head) -> (..., parts, num_heads, d_head)."""
        return projected.view(*projected.shape[:-1], parts, self.num_heads, -1)


class SelfAttention(MultiHeadAttention):
    """Every position of a sentence attends to positions of the same sentence."""

    def __init__(self, recipe: ModelRecipe) -> None:
        super().__init__(recipe)
        self.qkv = nn.Linear(recipe.d_model, 3 * self.width)
        self.out = nn.Linear(self.width, recipe.d_model)
        self.rotary: Tensor | None
        encodings = sinusoids(recipe.max_positions, recipe.head_width) if recipe.positions == "rotary" else None
        self.register_buffer("rotary", encodings, persistent=False)
        is_relative = recipe.positions == "relative"
        self.relative = RelativePositions(recipe.max_distance, recipe.head_width) if is_relative else None

    def forward(self, x: Tensor, sentences: PackedSequences, *, causal: bool) -> Tensor:
        """(total, d_model) -> (total, d_model); with `causal` a position sees only itself and those before it."""
        q, k, v = self._project(x, sentences.positions).unbind(1)
        if self.relative is not None:
            heads = self.relative.attend(q, k, v, sentences, causal=causal, p=self.dropout.p_now)
        else:
            heads = attend(q, k, v, sentences, sentences, causal=causal, p=self.dropout.p_now, kernel=self.kernel)
        return self.out(heads.flatten(-2))

    def step(self, x: Tensor, positions: Tensor, cache: Cache, mask: Tensor) -> Tensor:
        """The newest position of each hypothesis attends to its own past, to which it is added.

        x: (batch, hypotheses, d_model) -> the same shape; positions: (batch, hypotheses); mask: (batch, 1, hypotheses,
        slots of the cache with this step), additive, in the dtype of x.
        """
        qkv = self._project(x, positions)
        past = cache.append(qkv[:, :, 1:])
        if self.relative is not None:  # the distance to a slot is the same for all hypotheses
            past = past + self.relative.of_distances(cache.distances())[:, None, None].to(past.dtype)
        return self.out(attend_cached(qkv[:, :, 0], past, mask).flatten(-2))

    def _project(self, x: Tensor, positions: Tensor) -> Tensor:
        """(..., d_model) and positions (...) -> queries, keys and values (..., 3, num_heads, d_head)."""
        qkv = self.split_heads(self.qkv(x), 3)
        if self.rotary is None:
            return qkv
        queries_keys, values = qkv.split([2, 1], dim=-3)
        return torch.cat([rotate(queries_keys, F.embedding(positions, self.rotary)), values], dim=-3)


class CrossAttention(MultiHeadAttention):
    """Every target position attends to all positions of its source sentence."""

    def __init__(self, recipe: ModelRecipe) -> None:
        super().__init__(recipe)
        self.q = nn.Linear(recipe.d_model, self.width)
        self.kv = nn.Linear(recipe.d_model, 2 * self.width)
        self.out = nn.Linear(self.width, recipe.d_model)
        self.cache_dtype: torch.dtype | None = None  # of stored keys and values; None: that of the encoder's output

    def forward(self, x: Tensor, memory: Tensor, tgt: PackedSequences, src: PackedSequences) -> Tensor:
        """x: (tgt.total, d_model), memory: the encoder's output (src.total, d_model) -> (tgt.total, d_model)."""
        q, (k, v) = self._queries(x), self.split_heads(self.kv(memory), 2).unbind(1)
        heads = attend(q, k, v, tgt, src, causal=False, p=self.dropout.p_now, kernel=self.kernel)
        return self.out(heads.flatten(-2))

    def weights(self, x: Tensor, memory: Tensor, tgt: PackedSequences, src: PackedSequences) -> Tensor:
        """The attention weights of `forward`: (num_sentences, num_heads, tgt_len, src_len) float32, padded."""
        return attention_weights(self._queries(x), self.split_heads(self.kv(memory), 2)[:, 0], tgt, src)

    def stored_memory(self, memory: Tensor, src: PackedSequences) -> Tensor:
        """Keys and values of the encoder's output, computed once for all steps: memory (src.total, d_model).

        Returns (2, num_sentences, num_heads, padded src_len, d_head).
        """
        tokens = src.one_to_a_row.tokens  # (num_sentences, padded src_len)
        kv = self.split_heads(self.kv(memory), 2).index_select(0, tokens.flatten()).unflatten(0, tokens.shape)
        return heads_first(kv).contiguous().to(self.cache_dtype or memory.dtype)

    def step(self, x: Tensor, stored: Tensor, mask: Tensor) -> Tensor:
        """All hypotheses of a sentence attend to its memory, which is stored once for them.

        x: (batch, hypotheses, d_model) -> the same shape; stored: see `stored_memory`; mask: (batch, 1, 1, src_len).
        """
        return self.out(attend_cached(self._queries(x), stored, mask).flatten(-2))

    def _queries(self, x: Tensor) -> Tensor:
        """(..., d_model) -> (..., num_heads, d_head)."""
        return self.split_heads(self.q(x), 1).squeeze(-3)
