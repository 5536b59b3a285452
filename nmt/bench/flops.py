"""FLOPs that a model's matmuls require.

Only matmuls count. An (n, a) by (a, b) matmul takes 2 n a b FLOPs. With d = d_model, a = num_heads * d_head, e the same
for the heads of the encoder, f = d_ff, g = 2 f with swiglu and f otherwise, V = target vocabulary size, E encoder
layers and D decoder layers, a forward pass takes:

    per source token    E (8 d e + 2 d (f + g))    self-attention projections; feed-forward
                      + D 4 d a                    cross-attention keys and values
    per target token    D (8 d a + 2 d (f + g))    self-attention projections; feed-forward
                      + D 4 d a                    cross-attention query and output projections
                      + 2 d V                      logits
    attention           4 a (encoder: 4 e)         per visible query-key pair, for scores and weighted sum;
                                                   S source and T target tokens have E S^2 + D S T + D T (T + 1) / 2

With a GRU, attention takes 4 d per pair of a source and a target token. `ModelFlops._gru_matmuls` has the rest; the
initial state of the decoder, computed once per sentence, is not counted.

EOS counts as a token. BOS does not, because it takes the position of EOS in the decoder input. A training step takes
three times as much: each matmul has two more in the backward pass. As in the "model FLOPs utilization" of Chowdhery et
al. 2022, appendix B, activation checkpointing does not count. Padding and masked keys do not count either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.recipe import ModelRecipe

Lengths = NDArray[np.integer[Any]]

# Forward, gradient of the input and gradient of the weight.
_MATMULS_IN_TRAINING = 3


@dataclass(frozen=True)
class Matmul:
    """`count` linear layers of one shape: (rows, inner) by (inner, outer)."""

    count: int
    rows: int
    inner: int
    outer: int

    @property
    def flops(self) -> int:
        """FLOPs of one layer."""
        return 2 * self.rows * self.inner * self.outer


@dataclass(frozen=True)
class ModelFlops:
    """FLOP counts of one model. The module docstring has the formulas."""

    recipe: ModelRecipe
    tgt_vocab_size: int

    @property
    def _widths(self) -> tuple[int, int]:
        """Total width of the heads of an attention layer, in the encoder and in the decoder."""
        return self.recipe.encoder_heads * self.recipe.head_width, self.recipe.num_heads * self.recipe.head_width

    def forward(self, src_lengths: Lengths, tgt_lengths: Lengths) -> int:
        """FLOPs of a forward pass over sentence pairs of these lengths (num_pairs,), EOS included."""
        src, tgt = src_lengths.astype(np.int64), tgt_lengths.astype(np.int64)
        linear = sum(matmul.count * matmul.flops for matmul in self.matmuls(int(src.sum()), int(tgt.sum())))
        if self.recipe.architecture == "gru":
            return linear + int((src * tgt).sum()) * 4 * self.recipe.d_model
        encoder, decoder = self.recipe.num_encoder_layers, self.recipe.num_decoder_layers
        e, a = self._widths
        pairs = 4 * e * encoder * (src * src) + 4 * a * decoder * (src * tgt + tgt * (tgt + 1) // 2)
        return linear + int(pairs.sum())

    def training(self, src_lengths: Lengths, tgt_lengths: Lengths) -> int:
        """FLOPs of a training step on these pairs."""
        return _MATMULS_IN_TRAINING * self.forward(src_lengths, tgt_lengths)

    def matmuls(self, src_tokens: int, tgt_tokens: int) -> list[Matmul]:
        """Return the linear layers of one forward pass, as the model computes them."""
        if self.recipe.architecture == "gru":
            return self._gru_matmuls(src_tokens, tgt_tokens)
        d, f, (e, a) = self.recipe.d_model, self.recipe.d_ff, self._widths
        gated = 2 * f if self.recipe.activation == "swiglu" else f
        encoder, decoder = self.recipe.num_encoder_layers, self.recipe.num_decoder_layers
        return [
            Matmul(encoder, src_tokens, d, 3 * e),  # self-attention queries, keys and values
            Matmul(encoder, src_tokens, e, d),
            Matmul(encoder, src_tokens, d, gated),
            Matmul(encoder, src_tokens, f, d),
            Matmul(decoder, src_tokens, d, 2 * a),  # cross-attention keys and values
            Matmul(decoder, tgt_tokens, d, 3 * a),
            Matmul(2 * decoder, tgt_tokens, a, d),  # output projections of self- and cross-attention
            Matmul(decoder, tgt_tokens, d, a),  # cross-attention queries
            Matmul(decoder, tgt_tokens, d, gated),
            Matmul(decoder, tgt_tokens, f, d),
            Matmul(1, tgt_tokens, d, self.tgt_vocab_size),
        ]

    def _gru_matmuls(self, src_tokens: int, tgt_tokens: int) -> list[Matmul]:
        d, half = self.recipe.d_model, self.recipe.d_model // 2
        encoder, decoder = self.recipe.num_encoder_layers, self.recipe.num_decoder_layers
        return [
            Matmul(2 * encoder, src_tokens, d, 3 * half),  # both directions: gates from inputs, and from states
            Matmul(2 * encoder, src_tokens, half, 3 * half),
            Matmul(2 * decoder + int(self.recipe.input_feeding), tgt_tokens, d, 3 * d),
            Matmul(1, src_tokens, d, d),  # attention keys
            *([Matmul(1, tgt_tokens, d, d)] if self.recipe.attention == "additive" else []),  # attention queries
            Matmul(1, tgt_tokens, 2 * d, d),  # state and context combined
            Matmul(1, tgt_tokens, d, self.tgt_vocab_size),
        ]
