"""How many floating-point operations a model's own arithmetic needs, whatever the machine does besides.

A matmul of an (n, a) and an (a, b) matrix is 2 n a b operations, a multiplication and an addition for each term; only
matrix matmuls are counted. With d = d_model, a = num_heads * d_head, f = d_ff, g = 2 f with swiglu and f without, V
target pieces, E encoder and D decoder layers, forwards:

    each source token    E (8 d a + 2 d (f + g))    queries, keys, values and output; feed-forward
                       + D 4 d a                    keys and values for the decoder's attention to it
    each target token    D (8 d a + 2 d (f + g))    the same in the decoder
                       + D 4 d a                    queries and output of the decoder's attention to the source
                       + 2 d V                      the logits ("softmax")
    attention            4 a                        for each query and each key that it may see, scores and weighted
                                                    sum: E S^2 + D S T + D T (T + 1) / 2 such pairs for S source and T
                                                    target tokens

End tokens count as tokens, begin tokens do not (each stands in place of an end token). A training step is three times
as much, since each matmul has two in the backward pass. What is computed again to save memory, padding, and keys that
a query is forbidden to see count for nothing, as in the "model FLOPs utilisation" of Chowdhery et al. 2022, appendix B.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.recipe import ModelRecipe

Lengths = NDArray[np.integer[Any]]

# Forward, and the gradients of either factor of each matmul.
PASSES_IN_TRAINING = 3


@dataclass(frozen=True)
class Matmul:
    """`count` matmuls of a (rows, inner) with an (inner, outer) matrix, as `F.linear` computes them."""

    count: int
    rows: int
    inner: int
    outer: int

    @property
    def flops(self) -> int:
        """Operations of one of them."""
        return 2 * self.rows * self.inner * self.outer


@dataclass(frozen=True)
class ModelFlops:
    """The operations of one model, forwards; see the head of this file.

    width: of the queries of all heads
    inner: outputs of the first matrix of the feed-forward sub-layer, which are twice `d_ff` with a gate
    """

    d_model: int
    width: int
    d_ff: int
    inner: int
    num_encoder_layers: int
    num_decoder_layers: int
    tgt_vocab_size: int

    @classmethod
    def of(cls, recipe: ModelRecipe, tgt_vocab_size: int) -> ModelFlops:
        """The arithmetic of a recipe's model with so many target pieces."""
        width = recipe.num_heads * recipe.head_width
        inner = 2 * recipe.d_ff if recipe.activation == "swiglu" else recipe.d_ff
        layers = recipe.num_encoder_layers, recipe.num_decoder_layers
        return cls(recipe.d_model, width, recipe.d_ff, inner, *layers, tgt_vocab_size)

    @property
    def src_token(self) -> int:
        """Operations for each source token, attention apart."""
        own, memory = 8 * self.d_model * self.width, 4 * self.d_model * self.width
        return self.num_encoder_layers * (own + self._feed_forward) + self.num_decoder_layers * memory

    @property
    def tgt_token(self) -> int:
        """Operations for each target token, attention and softmax apart."""
        return self.num_decoder_layers * (12 * self.d_model * self.width + self._feed_forward)

    @property
    def softmax(self) -> int:
        """Operations for the logits of one target token."""
        return 2 * self.d_model * self.tgt_vocab_size

    @property
    def attended_pair(self) -> int:
        """Operations for one query and one key that it may see."""
        return 4 * self.width

    @property
    def _feed_forward(self) -> int:
        """Operations of one feed-forward sub-layer for one token."""
        return 2 * self.d_model * (self.inner + self.d_ff)

    def forward(self, src_lengths: Lengths, tgt_lengths: Lengths) -> int:
        """Operations for sentence pairs of these lengths `(num_pairs,)`, end tokens included."""
        src, tgt = src_lengths.astype(np.int64), tgt_lengths.astype(np.int64)
        pairs = self.num_encoder_layers * (src * src) + self.num_decoder_layers * (src * tgt + tgt * (tgt + 1) // 2)
        tokens = int(src.sum()) * self.src_token + int(tgt.sum()) * (self.tgt_token + self.softmax)
        return tokens + self.attended_pair * int(pairs.sum())

    def training(self, src_lengths: Lengths, tgt_lengths: Lengths) -> int:
        """The same for a training step on these pairs."""
        return PASSES_IN_TRAINING * self.forward(src_lengths, tgt_lengths)

    def matmuls(self, src_rows: int, tgt_rows: int) -> list[Matmul]:
        """The linear layers of one forward pass over so many source and target tokens, as the model computes them."""
        d, a, f, encoder, decoder = (
            self.d_model,
            self.width,
            self.d_ff,
            self.num_encoder_layers,
            self.num_decoder_layers,
        )
        return [
            Matmul(encoder, src_rows, d, 3 * a),  # queries, keys and values at once
            Matmul(encoder, src_rows, a, d),
            Matmul(encoder, src_rows, d, self.inner),
            Matmul(encoder, src_rows, f, d),
            Matmul(decoder, src_rows, d, 2 * a),  # keys and values of the memory
            Matmul(decoder, tgt_rows, d, 3 * a),
            Matmul(2 * decoder, tgt_rows, a, d),
            Matmul(decoder, tgt_rows, d, a),  # the queries to the memory
            Matmul(decoder, tgt_rows, d, self.inner),
            Matmul(decoder, tgt_rows, f, d),
            Matmul(1, tgt_rows, d, self.tgt_vocab_size),
        ]
