"""Multi-head attention (Vaswani et al. 2017, section 3.2.2): self-attention and cross-attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.kv_cache.cache import Cache, heads_first
from nmt.model.attention import Kernel, attend, attend_cached, attention_weights
from nmt.model.dropout import Dropout
from nmt.model.layers import rotate, sinusoids
from nmt.model.relative import RelativePositions
from nmt.packing.packed import PackedSequences
from nmt.recipe import ModelRecipe


class MultiHeadAttention(nn.Module):
    """Concat(head_1 .. head_h) W_O with head_i = Attention(Q W_i, K W_i, V W_i) (paper, section 3.2.2).

    Projections of the same input are fused into one matmul: its weight stacks W_Q, W_K and W_V.
    """

    def __init__(self, recipe: ModelRecipe, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.width = num_heads * recipe.head_width  # num_heads * d_head
        self.dropout = Dropout(recipe.attention_dropout)  # on the attention weights
        self.kernel: Kernel | None = None  # None selects the fastest

    def split_heads(self, projected: Tensor, parts: int) -> Tensor:
        """(..., parts * num_heads * d_head) -> (..., parts, num_heads, d_head)."""
        return projected.view(*projected.shape[:-1], parts, self.num_heads, -1)


class SelfAttention(MultiHeadAttention):
    """Attention within a sentence."""

    def __init__(self, recipe: ModelRecipe, num_heads: int) -> None:
        super().__init__(recipe, num_heads)
        self.qkv = nn.Linear(recipe.d_model, 3 * self.width)
        self.out = nn.Linear(self.width, recipe.d_model)
        self.rotary: Tensor | None
        encodings = sinusoids(recipe.max_positions, recipe.head_width) if recipe.positions == "rotary" else None
        self.register_buffer("rotary", encodings, persistent=False)
        is_relative = recipe.positions == "relative"
        self.relative = RelativePositions(recipe.max_distance, recipe.head_width) if is_relative else None

    def forward(self, x: Tensor, sentences: PackedSequences, *, causal: bool) -> Tensor:
        """(total, d_model) -> (total, d_model); `causal`: a position attends only to itself and earlier positions."""
        q, k, v = self.project(x, sentences.positions).unbind(1)  # each (total, num_heads, d_head)
        if self.relative is not None:
            heads = self.relative.attend(q, k, v, sentences, causal=causal, p=self.dropout.current_p)
        else:
            heads = attend(q, k, v, sentences, sentences, causal=causal, p=self.dropout.current_p, kernel=self.kernel)
        return self.out(heads.flatten(-2))

    def step(self, x: Tensor, positions: Tensor, cache: Cache, mask: Tensor) -> Tensor:
        """Add the newest position of each hypothesis to the cache and attend to the cached positions.

        Args:
            x: (batch, hypotheses, d_model)
            positions: (batch, hypotheses)
            mask: (batch, 1, hypotheses, slots), additive, in the dtype of the cache

        Returns:
            (batch, hypotheses, d_model).
        """
        qkv = self.project(x, positions)  # (batch, hypotheses, 3, num_heads, d_head)
        cached = cache.append(qkv[:, :, 1:])  # (2, batch, num_heads, slots, d_head)
        if self.relative is not None:  # the distance to a slot is the same for all hypotheses
            cached = cached + self.relative.vectors(cache.distances())[:, None, None].to(cached.dtype)
        return self.out(attend_cached(qkv[:, :, 0], cached, mask).flatten(-2))

    def project(self, x: Tensor, positions: Tensor) -> Tensor:
        """(..., d_model), positions (...) -> q, k, v (..., 3, num_heads, d_head)."""
        qkv = self.split_heads(self.qkv(x), 3)
        if self.rotary is None:
            return qkv
        qk, v = qkv.split([2, 1], dim=-3)
        return torch.cat([rotate(qk, F.embedding(positions, self.rotary)), v], dim=-3)


class CrossAttention(MultiHeadAttention):
    """Attention from target to source."""

    def __init__(self, recipe: ModelRecipe) -> None:
        super().__init__(recipe, recipe.num_heads)
        self.q = nn.Linear(recipe.d_model, self.width)
        self.kv = nn.Linear(recipe.d_model, 2 * self.width)
        self.out = nn.Linear(self.width, recipe.d_model)
        self.cache_dtype: torch.dtype | None = None  # None keeps the dtype of the encoder output

    def forward(self, x: Tensor, memory: Tensor, tgt: PackedSequences, src: PackedSequences) -> Tensor:
        """x: (tgt.total, d_model), encoder output: (src.total, d_model) -> (tgt.total, d_model)."""
        q = self._queries(x)
        k, v = self.split_heads(self.kv(memory), 2).unbind(1)
        heads = attend(q, k, v, tgt, src, causal=False, p=self.dropout.current_p, kernel=self.kernel)
        return self.out(heads.flatten(-2))

    def weights(self, x: Tensor, memory: Tensor, tgt: PackedSequences, src: PackedSequences) -> Tensor:
        """Return the attention weights of `forward`: (num_sentences, num_heads, tgt_len, src_len) float32, padded."""
        return attention_weights(self._queries(x), self.split_heads(self.kv(memory), 2)[:, 0], tgt, src)

    def cache_memory(self, memory: Tensor, src: PackedSequences) -> Tensor:
        """Compute keys and values for all steps, once per sentence.

        Encoder output (src.total, d_model) -> (2, num_sentences, num_heads, padded src_len, d_head).
        """
        tokens = src.one_per_row.tokens  # (num_sentences, padded src_len)
        kv = self.split_heads(self.kv(memory), 2).index_select(0, tokens.flatten()).unflatten(0, tokens.shape)
        return heads_first(kv).contiguous().to(self.cache_dtype or memory.dtype)

    def step(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """(batch, hypotheses, d_model) -> the same shape; memory: keys and values; mask: (batch, 1, 1, src_len)."""
        return self.out(attend_cached(self._queries(x), memory, mask).flatten(-2))

    def _queries(self, x: Tensor) -> Tensor:
        """(..., d_model) -> (..., num_heads, d_head)."""
        return self.split_heads(self.q(x), 1).squeeze(-3)
