"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), one story from tokens to log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import assert_never

import torch
from torch import Tensor, nn

from nmt.model.attention import Kernel
from nmt.model.cache import DecoderState
from nmt.model.decoder import Decoder
from nmt.model.dropout import Dropout
from nmt.model.encoder import Encoder
from nmt.model.layers import Embedding, Output
from nmt.model.multi_head import MultiHeadAttention
from nmt.model.relative import RelativePositions
from nmt.packing.packed import PackedSequences
from nmt.recipe import ModelRecipe


class Transformer(nn.Module):
    """Encoder, decoder and embeddings; `forward` for training, `start` and `step` for search."""

    def __init__(self, recipe: ModelRecipe, src_vocab_size: int, tgt_vocab_size: int) -> None:
        """Build with fresh weights; raises ValueError where three-way tying meets vocabularies of different size."""
        super().__init__()
        self.recipe = recipe
        self.output = Output(tgt_vocab_size, recipe)  # first: tied matrices are saved as `output.weight`
        self.src_embedding = Embedding(src_vocab_size, recipe)
        self.tgt_embedding = Embedding(tgt_vocab_size, recipe)
        self.encoder = Encoder(recipe)
        self.decoder = Decoder(recipe)
        self._tie_embeddings()
        self._initialise()

    def forward(self, src: PackedSequences, tgt: PackedSequences) -> Tensor:
        """What the decoder says at every target position: (tgt.total, d_model), to be read by `logits`.

        src: source sentences closed by the end token; tgt: decoder input, opened by the begin token.
        """
        memory = self.encode(src)
        x = self.tgt_embedding(tgt.tokens, tgt.positions)
        return self.decoder(x, memory, tgt, src)

    def encode(self, src: PackedSequences) -> Tensor:
        """The encoder's output for packed source sentences: (src.total, d_model)."""
        return self.encoder(self.src_embedding(src.tokens, src.positions), src)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the target vocabulary: (..., d_model) -> (..., vocab)."""
        return self.output(hidden)

    def start(self, src: PackedSequences, beam_size: int) -> DecoderState:
        """Encode the source sentences and make the state from which `step` goes on."""
        return self.decoder.start(self.encode(src), src, beam_size)

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Log-probabilities of the next token, (batch, beam, vocab) float32, after the last `tokens` (batch, beam)."""
        return self.log_probs(self.advance(tokens, state))

    def advance(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """What the decoder says after the last `tokens` (batch, beam): (batch, beam, d_model), for `logits`.

        At the first step the hypotheses of a sentence must all be the same, and are computed once.
        """
        distinct = tokens if state.length else tokens[:, :1]
        positions = torch.full_like(distinct, state.length)
        hidden = self.decoder.step(self.tgt_embedding(distinct, positions), positions, state)
        # Contiguous, so that F.linear makes one product of all rows, whichever weight it is given.
        return hidden.expand(-1, tokens.shape[1], -1).contiguous()

    def log_probs(self, hidden: Tensor) -> Tensor:
        """Log-probabilities over the target vocabulary: (..., d_model) -> (..., vocab) float32."""
        return torch.log_softmax(self.logits(hidden).float(), dim=-1)

    def logits_of(self, pieces: Tensor) -> Callable[[Tensor], Tensor]:
        """What gives the `logits` of some target pieces alone, (..., d_model) -> (..., pieces); pieces: (pieces,)."""
        return self.output.restricted(pieces)

    def recompute_layers(self, wanted: bool) -> None:
        """Whether training keeps only what enters each layer, and computes the rest again for the gradient.

        The same gradients, bit for bit on a CPU: the second computation draws the same dropout (Chen et al. 2016,
        "Training Deep Nets with Sublinear Memory Cost").
        """
        self.encoder.recompute = self.decoder.recompute = wanted

    def scale_dropout(self, share: float) -> None:
        """From now on every dropout has this share of its full probability, from 0 to 1."""
        for module in self.modules():
            if isinstance(module, Dropout):
                module.share = share

    def use_kernel(self, kernel: Kernel | None) -> None:
        """Which kernel computes attention to whole sentences; by default the fastest for each tensor that comes."""
        for module in self.modules():
            if isinstance(module, MultiHeadAttention):
                module.kernel = kernel

    def cross_attention(self, src: PackedSequences, tgt: PackedSequences) -> Iterator[Tensor]:
        """How much each target position attends to each source position, in each decoder layer in turn.

        src, tgt: as in `forward`. Each is (num_sentences, num_heads, tgt_len, src_len) float32, padded; it is computed
        when it is asked for.
        """
        x = self.tgt_embedding(tgt.tokens, tgt.positions)
        return self.decoder.cross_weights(x, self.encode(src), tgt, src)

    def num_parameters(self) -> int:
        """Number of trained weights, tied ones counted once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def _tie_embeddings(self) -> None:
        """Let matrices be one and the same as the recipe asks (paper, section 3.4; Press and Wolf 2017)."""
        match self.recipe.tied_embeddings:
            case "three-way":
                if self.src_embedding.weight.shape != self.tgt_embedding.weight.shape:
                    raise ValueError("three-way tied embeddings need one vocabulary for both languages")
                self.src_embedding.weight = self.tgt_embedding.weight
                self.output.weight = self.tgt_embedding.weight
            case "decoder":
                self.output.weight = self.tgt_embedding.weight
            case "none":
                pass
            case _:
                assert_never(self.recipe.tied_embeddings)

    def _initialise(self) -> None:
        """Xavier uniform for matrices, zero for biases; embeddings N(0, 1/d_model), of unit variance once scaled.

        Each of the matrices that one matmul holds (W_Q, W_K, W_V) is initialized as a matrix of its own.
        """
        stacked = {"qkv": 3, "kv": 2, "inner": 2 if self.recipe.activation == "swiglu" else 1}
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                for matrix in module.weight.chunk(stacked.get(name.rpartition(".")[2], 1)):
                    nn.init.xavier_uniform_(matrix)
                nn.init.zeros_(module.bias)
        for module in self.modules():
            if isinstance(module, RelativePositions):
                nn.init.xavier_uniform_(module.keys)
                nn.init.xavier_uniform_(module.values)
        embeddings = {id(w): w for w in (self.src_embedding.weight, self.tgt_embedding.weight, self.output.weight)}
        learned_positions = (w for name, w in self.named_parameters() if name.endswith("embedding.positions"))
        for weight in (*embeddings.values(), *learned_positions):
            nn.init.normal_(weight, std=self.recipe.d_model**-0.5)
        if self.output.bias is not None:
            nn.init.zeros_(self.output.bias)
