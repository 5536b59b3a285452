"""The decoder stack (Vaswani et al. 2017, section 3.1), for training and one position at a time for search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nmt.model.attention import KeyValueCache, MultiHeadAttention
from nmt.model.layers import FeedForward, Residual, final_norm
from nmt.packed import PackedSequences
from nmt.recipe import ModelRecipe


@dataclass
class LayerState:
    """What one decoder layer remembers during search: its own past, one row per hypothesis, and the memory.

    memory_keys, memory_values: (batch, num_heads, src_len, d_head), one row per sentence, never copied per beam
    memory_weights:             (batch, num_heads, beam, src_len), where the last step looked; None before the first
    """

    past: KeyValueCache
    memory_keys: Tensor
    memory_values: Tensor
    memory_weights: Tensor | None = None


@dataclass
class DecoderState:
    """Everything that search must carry from one step to the next.

    memory_bias: (batch, 1, 1, src_len), -inf behind the end of a source sentence
    """

    layers: list[LayerState]
    memory_bias: Tensor
    beam_size: int
    length: int = 0

    def reorder(self, beam_index: Tensor) -> None:
        """Hypothesis j of sentence b continues what hypothesis `beam_index[b, j]` was; beam_index: (batch, beam)."""
        batch, beam = beam_index.shape
        first_row = torch.arange(batch, device=beam_index.device)[:, None] * beam
        rows = (first_row + beam_index).flatten()
        for layer in self.layers:
            layer.past.select(rows)

    def attention(self) -> Tensor:
        """Where the last step looked: (batch, beam, src_len) float32, the mean over the heads of the last layer.

        To be asked for before any `reorder` or `keep`, which leave it as it is.
        """
        weights = self.layers[-1].memory_weights
        assert weights is not None, "there has been no step yet"
        return weights.mean(dim=1).float()

    def keep(self, sentence_index: Tensor) -> None:
        """Only these sentences stay in the batch, in this order; sentence_index: (kept,)."""
        places = torch.arange(self.beam_size, device=sentence_index.device)
        rows = (sentence_index[:, None] * self.beam_size + places).flatten()
        self.memory_bias = self.memory_bias.index_select(0, sentence_index)
        for layer in self.layers:
            layer.past.select(rows)
            layer.memory_keys = layer.memory_keys.index_select(0, sentence_index)
            layer.memory_values = layer.memory_values.index_select(0, sentence_index)


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

    def step(self, x: Tensor, state: LayerState, memory_bias: Tensor, beam_size: int) -> Tensor:
        """One position of every hypothesis. x: (batch * beam, d_model) -> the same shape."""

        def attend_memory(h: Tensor) -> Tensor:
            beams = h.view(-1, beam_size, h.shape[-1])  # (batch, beam, d_model)
            memory = (state.memory_keys, state.memory_values)
            out, state.memory_weights = self.cross_attention.step_cross(beams, *memory, memory_bias)
            return out.flatten(0, 1)

        x = self.attention_residual(x, lambda h: self.attention.step(h, state.past))
        x = self.cross_attention_residual(x, attend_memory)
        out: Tensor = self.feed_forward_residual(x, self.feed_forward)
        return out


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
        layers = []
        for layer in self.layers:
            keys, values = layer.cross_attention.memory_keys_values(memory, src)
            past = KeyValueCache(src.num_sentences * beam_size, keys.shape[1], keys.shape[3], like=keys)
            layers.append(LayerState(past, keys, values))
        return DecoderState(layers, src.padding_bias[:, None, None, :], beam_size)

    def step(self, x: Tensor, state: DecoderState) -> Tensor:
        """One position further. x: (batch * beam, d_model), the embedded last tokens -> the same shape."""
        for layer, layer_state in zip(self.layers, state.layers, strict=True):
            x = layer.step(x, layer_state, state.memory_bias, state.beam_size)
        state.length += 1
        out: Tensor = self.norm(x)
        return out
