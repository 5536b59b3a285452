"""The decoder stack (Vaswani et al. 2017, section 3.1), for training and one position at a time for search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from nmt.model.attention import KeyValueCache, MultiHeadAttention, Past
from nmt.model.frozen import FrozenLinear
from nmt.model.layers import FeedForward, Residual, final_norm
from nmt.packed import PackedSequences
from nmt.recipe import ModelRecipe
from nmt.rectangle import padded_width

AnyPast = TypeVar("AnyPast", bound=Past)


@dataclass
class LayerState(Generic[AnyPast]):
    """What one decoder layer remembers during search: its own past, and the memory.

    memory: (2, batch, num_heads, padded src_len, d_head), keys and values, never copied for each hypothesis
    """

    past: AnyPast
    memory: Tensor


class StepMemory(Protocol):
    """What one step of the decoder finds of the steps before it, and leaves to those after it."""

    @property
    def layers(self) -> Sequence[LayerState[Any]]:
        """Of each layer in turn."""

    @property
    def memory_bias(self) -> Tensor:
        """See `DecoderState`."""

    def extend(self, hypotheses: int) -> Tensor:
        """Make place for the step's hypotheses; the bias of the past with them, (batch, 1, hypotheses, places)."""


@dataclass
class DecoderState:
    """Everything that search must carry from one step to the next.

    The biases have the type of what is stored, as torch's fused attention wants them.

    memory_bias: (batch, 1, 1, padded src_len), -inf behind the end of a source sentence
    past_bias:   (batch, 1, beam, room), 0 at the places of the past that are a hypothesis's own, else -inf
    places:      of the past; the first step takes one, each later one as many as there are hypotheses
    length:      steps so far
    """

    layers: list[LayerState[KeyValueCache]]
    memory_bias: Tensor
    past_bias: Tensor
    places: int = 0
    length: int = 0

    def extend(self, hypotheses: int) -> Tensor:
        """One step further; the bias of the past with its new places, (batch, 1, hypotheses, padded width).

        At the first step the hypotheses of a sentence are one and the same, and one place may be that of all.
        """
        first, self.places = self.places, self.places + hypotheses
        width = padded_width(self.places)
        if width > self.past_bias.shape[3]:
            self.past_bias = F.pad(self.past_bias, (0, 4 * width - self.past_bias.shape[3]), value=float("-inf"))
        new = self.past_bias[:, 0, :, first : self.places]  # (batch, beam, hypotheses)
        (new if hypotheses == 1 else new.diagonal(dim1=1, dim2=2)).zero_()
        self.length += 1
        return self.past_bias[:, :, :hypotheses, :width]

    def reorder(self, beam_index: Tensor) -> None:
        """Hypothesis j of sentence b continues what hypothesis `beam_index[b, j]` was; beam_index: (batch, beam)."""
        self.past_bias = self.past_bias.gather(2, beam_index[:, None, :, None].expand_as(self.past_bias))

    def keep(self, sentence_index: Tensor) -> None:
        """Only these sentences stay in the batch, in this order; sentence_index: (kept,)."""
        self.memory_bias = self.memory_bias.index_select(0, sentence_index)
        self.past_bias = self.past_bias.index_select(0, sentence_index)
        for layer in self.layers:
            layer.past.keep(sentence_index)
            layer.memory = layer.memory.index_select(1, sentence_index)


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the encoder's output, then feed-forward."""

    def __init__(self, recipe: ModelRecipe) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(recipe.d_model, recipe.num_heads, recipe.attention_dropout)
        self.attention_residual = Residual(recipe)
        self.cross_attention = MultiHeadAttention(recipe.d_model, recipe.num_heads, recipe.attention_dropout)
        self.cross_attention_residual = Residual(recipe)
        self.feed_forward = FeedForward(recipe)
        self.feed_forward_residual = Residual(recipe)

    def forward(self, x: Tensor, memory: Tensor, tgt: PackedSequences, src: PackedSequences) -> Tensor:
        """x: (tgt.total, d_model), memory: (src.total, d_model) -> (tgt.total, d_model)."""
        x = self.attention_residual(x, lambda h: self.attention(h, tgt, causal=True))
        x = self.cross_attention_residual(x, lambda h: self.cross_attention.cross(h, memory, tgt, src))
        out: Tensor = self.feed_forward_residual(x, self.feed_forward)
        return out

    def cross_weights(self, x: Tensor, memory: Tensor, tgt: PackedSequences, src: PackedSequences) -> Tensor:
        """The weights that `forward` gives the memory: (num_sentences, num_heads, tgt_len, src_len), padded."""
        weights: list[Tensor] = []

        def look(h: Tensor) -> Tensor:
            weights.append(self.cross_attention.cross_weights(h, memory, tgt, src))
            return h

        x = self.attention_residual(x, lambda h: self.attention(h, tgt, causal=True))
        self.cross_attention_residual(x, look)
        return weights[0]

    def step(self, x: Tensor, state: LayerState[Any], past_bias: Tensor, memory_bias: Tensor) -> Tensor:
        """One position of every hypothesis. x: (batch, beam, d_model) -> the same shape."""
        x = self.attention_residual(x, lambda h: self.attention.step(h, state.past, past_bias))
        x = self.cross_attention_residual(x, lambda h: self.cross_attention.step_cross(h, state.memory, memory_bias))
        out: Tensor = self.feed_forward_residual(x, self.feed_forward)
        return out

    def freeze(self, kind: type[FrozenLinear]) -> None:
        """Lay the weights out for search; training is over."""
        self.attention.freeze(kind, "qkv")
        self.cross_attention.freeze(kind, "q", "kv")
        self.feed_forward.freeze(kind)


class Decoder(nn.Module):
    """The layers one after the other."""

    def __init__(self, recipe: ModelRecipe) -> None:
        super().__init__()
        self.recompute = False  # see `Transformer.recompute_layers`
        self.layers = cast(
            Sequence[DecoderLayer], nn.ModuleList(DecoderLayer(recipe) for _ in range(recipe.num_decoder_layers))
        )
        self.norm = final_norm(recipe)

    def forward(self, x: Tensor, memory: Tensor, tgt: PackedSequences, src: PackedSequences) -> Tensor:
        """Embedded target (tgt.total, d_model) and memory (src.total, d_model) -> (tgt.total, d_model)."""
        recompute = self.recompute and self.training
        for layer in self.layers:
            inputs = (x, memory, tgt, src)
            x = checkpoint(layer, *inputs, use_reentrant=False) if recompute else layer(*inputs)
        out: Tensor = self.norm(x)
        return out

    def cross_weights(self, x: Tensor, memory: Tensor, tgt: PackedSequences, src: PackedSequences) -> Iterator[Tensor]:
        """What each layer in turn gives the memory, see `DecoderLayer.cross_weights`; none is computed before its turn.

        Each layer attends to its own past twice for this, so that `forward` need know nothing of it.
        """
        for layer in self.layers:
            yield layer.cross_weights(x, memory, tgt, src)
            x = layer(x, memory, tgt, src)

    def start(self, memory: Tensor, src: PackedSequences, beam_size: int) -> DecoderState:
        """The state before the first token: the memory's keys and values, and an empty past."""
        memories = [layer.cross_attention.stored_memory(memory, src) for layer in self.layers]
        layers = [LayerState(KeyValueCache(like=stored), stored) for stored in memories]
        memory_bias = src.padding_bias[:, None, None, :].to(memories[0].dtype)
        past_bias = memory_bias.new_empty(src.num_sentences, 1, beam_size, 0)
        return DecoderState(layers, memory_bias, past_bias)

    def step(self, x: Tensor, state: StepMemory) -> Tensor:
        """One position further. x: (batch, beam, d_model), the embedded last tokens -> the same shape.

        At the first step (batch, 1, d_model) may stand for all hypotheses of a sentence, which then begin alike.
        """
        past_bias = state.extend(x.shape[1])
        for layer, layer_state in zip(self.layers, state.layers, strict=True):
            x = layer.step(x, layer_state, past_bias, state.memory_bias)
        out: Tensor = self.norm(x)
        return out
