"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), from tokens to log-probabilities."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, assert_never

import torch
from torch import Tensor, nn

from nmt.kv_cache.state import DecoderState
from nmt.model.attention import Kernel
from nmt.model.decoder import Decoder
from nmt.model.dropout import Dropout
from nmt.model.encoder import Encoder
from nmt.model.layers import Embedding, Output
from nmt.model.multi_head import MultiHeadAttention
from nmt.model.relative import RelativePositions
from nmt.packing.packed import PackedSequences
from nmt.recipe import ModelRecipe


class EncoderDecoder(nn.Module, ABC):
    """Base of both architectures: embeddings, output projection and their tying."""

    def __init__(self, recipe: ModelRecipe, src_vocab_size: int, tgt_vocab_size: int) -> None:
        """Raises ValueError for three-way tying of vocabularies of different sizes."""
        super().__init__()
        self.recipe = recipe
        self.output = Output(tgt_vocab_size, recipe)  # first: tied parameters are saved as `output.weight`
        self.src_embedding = Embedding(src_vocab_size, recipe)
        self.tgt_embedding = Embedding(tgt_vocab_size, recipe)
        self._tie_embeddings()

    def _tie_embeddings(self) -> None:
        """Tie embeddings and output projection (paper, section 3.4; Press and Wolf 2017)."""
        match self.recipe.tied_embeddings:
            case "three-way":
                src_size, tgt_size = len(self.src_embedding.weight), len(self.tgt_embedding.weight)
                if src_size != tgt_size:
                    raise ValueError(
                        f"the vocabularies have {src_size} and {tgt_size} entries; three-way tied embeddings need one "
                        "vocabulary; set tied_embeddings to 'decoder'"
                    )
                self.src_embedding.weight = self.tgt_embedding.weight
                self.output.weight = self.tgt_embedding.weight
            case "decoder":
                self.output.weight = self.tgt_embedding.weight
            case "none":
                pass
            case _:
                assert_never(self.recipe.tied_embeddings)

    def logits(self, hidden: Tensor) -> Tensor:
        """Project decoder output to target logits: (..., d_model) -> (..., vocab)."""
        return self.output(hidden)

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """Last tokens (batch, beam) -> log-probabilities of the next token, (batch, beam, vocab) float32."""
        return self.log_probs(self.advance(tokens, state))

    @abstractmethod
    def advance(self, tokens: Tensor, state: Any) -> Tensor:
        """Last tokens (batch, beam) -> decoder output (batch, beam, d_model)."""

    def log_probs(self, hidden: Tensor) -> Tensor:
        """Decoder output (..., d_model) -> log-probabilities (..., vocab), float32, or float64 of a float64 model."""
        logits = self.logits(hidden)
        return torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), dim=-1)

    def logits_of(self, tokens: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the projection to the logits of `tokens` (n,) only: (..., d_model) -> (..., n)."""
        return self.output.restricted(tokens)

    def scale_dropout(self, scale: float) -> None:
        """Multiply all dropout probabilities of the recipe by `scale`, from 0 to 1."""
        for module in self.modules():
            if isinstance(module, Dropout):
                module.scale = scale

    def use_kernel(self, kernel: Kernel | None) -> None:
        """Set the attention kernel; None selects the fastest per call."""
        for module in self.modules():
            if isinstance(module, MultiHeadAttention):
                module.kernel = kernel

    def num_parameters(self) -> int:
        """Return the number of parameters; tied ones count once."""
        return sum(parameter.numel() for parameter in self.parameters())


class Transformer(EncoderDecoder):
    """Encoder, decoder and embeddings; `forward` for training, `start` and `step` for search."""

    def __init__(self, recipe: ModelRecipe, src_vocab_size: int, tgt_vocab_size: int) -> None:
        """Initialize the parameters; raises ValueError for three-way tying of vocabularies of different sizes."""
        super().__init__(recipe, src_vocab_size, tgt_vocab_size)
        self.encoder = Encoder(recipe)
        self.decoder = Decoder(recipe)
        initialize(self, recipe, (self.src_embedding.weight, self.tgt_embedding.weight, self.output.weight))
        if self.output.bias is not None:
            nn.init.zeros_(self.output.bias)

    def forward(self, src: PackedSequences, tgt: PackedSequences) -> Tensor:
        """Return the decoder output for every target position, (tgt.total, d_model); `logits` projects it.

        src: source sentences, each followed by EOS; tgt: target sentences, each preceded by BOS.
        """
        memory = self.encode(src)  # (src.total, d_model)
        x = self.tgt_embedding(tgt.tokens, tgt.positions)  # (tgt.total, d_model)
        return self.decoder(x, memory, tgt, src)

    def encode(self, src: PackedSequences) -> Tensor:
        """Return the encoder output (src.total, d_model)."""
        return self.encoder(self.src_embedding(src.tokens, src.positions), src)

    def start(self, src: PackedSequences, beam_size: int) -> DecoderState:
        """Encode source sentences; return the initial state for `step`."""
        return self.decoder.start(self.encode(src), src, beam_size)

    def advance(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """See `EncoderDecoder.advance`.

        In the first step all hypotheses of a sentence must be equal; they are computed once.
        """
        distinct = tokens if state.length else tokens[:, :1]
        positions = torch.full_like(distinct, state.length)
        hidden = self.decoder.step(self.tgt_embedding(distinct, positions), positions, state)
        # Contiguous: F.linear then computes one matmul of all rows, for any weight layout.
        return hidden.expand(-1, tokens.shape[1], -1).contiguous()

    def use_activation_checkpointing(self, enabled: bool) -> None:
        """Save only the inputs of each layer in training and recompute its activations for the gradient.

        Gradients are unchanged, bit for bit on a CPU: recomputing repeats the dropout (Chen et al. 2016, "Training Deep
        Nets with Sublinear Memory Cost").
        """
        self.encoder.activation_checkpointing = self.decoder.activation_checkpointing = enabled

    def cross_attention(self, src: PackedSequences, tgt: PackedSequences) -> Iterator[Tensor]:
        """Yield the cross-attention weights of each decoder layer, computed lazily.

        src, tgt: as in `forward`. Weights are (num_sentences, num_heads, tgt_len, src_len) float32, padded.
        """
        x = self.tgt_embedding(tgt.tokens, tgt.positions)
        return self.decoder.cross_weights(x, self.encode(src), tgt, src)


def initialize(model: nn.Module, recipe: ModelRecipe, embeddings: Iterable[Tensor]) -> None:
    """Xavier uniform with gain 0.5 for matrices, zero for biases, N(0, 1 / (4 d_model)) for `embeddings`.

    With gain 1, the output of a sublayer is as large as its input, the other term of the residual sum, and models
    learn more slowly, especially with post-norm (Nguyen and Salazar 2019, "Transformers without Tears"; Liu et al.
    2020, "Understanding the Difficulty of Training Transformers"; measurements: nmt/guide/results.md,
    "Initialization").
    Each of several fused matrices, such as W_Q, W_K and W_V, is initialized separately. Relative positions are Xavier
    uniform, learned positions N(0, 1 / d_model).
    """
    num_fused = {"qkv": 3, "kv": 2, "inner": 2 if recipe.activation == "swiglu" else 1}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            for matrix in module.weight.chunk(num_fused.get(name.rpartition(".")[2], 1)):
                nn.init.xavier_uniform_(matrix, gain=0.5)
            nn.init.zeros_(module.bias)
    for module in model.modules():
        if isinstance(module, RelativePositions):
            nn.init.xavier_uniform_(module.keys)
            nn.init.xavier_uniform_(module.values)
    for weight in {id(weight): weight for weight in embeddings}.values():  # tied ones once
        nn.init.normal_(weight, std=0.5 * recipe.d_model**-0.5)
    for name, weight in model.named_parameters():
        if name.endswith("embedding.positions"):
            nn.init.normal_(weight, std=recipe.d_model**-0.5)
