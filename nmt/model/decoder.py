"""The decoder stack (Vaswani et al. 2017, section 3.1), for training and one position at a time for search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nmt.model.cache import DecoderState, KeyValueCache, LayerState, StepState
from nmt.model.layers import FeedForward, Residual, final_norm
from nmt.model.multi_head import CrossAttention, SelfAttention
from nmt.packing.packed import PackedSequences
from nmt.recipe import ModelRecipe


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the encoder's output, then feed-forward."""

    def __init__(self, recipe: ModelRecipe) -> None:
        super().__init__()
        self.attention = SelfAttention(recipe)
        self.attention_residual = Residual(recipe)
        self.cross_attention = CrossAttention(recipe)
        self.cross_attention_residual = Residual(recipe)
        self.feed_forward = FeedForward(recipe)
        self.feed_forward_residual = Residual(recipe)

    def forward(self, x: Tensor, memory: Tensor, tgt: PackedSequences, src: PackedSequences) -> Tensor:
        """x: (tgt.total, d_model), memory: (src.total, d_model) -> (tgt.total, d_model)."""
        x = self.attention_residual(x, lambda h: self.attention(h, tgt, causal=True))
        x = self.cross_attention_residual(x, lambda h: self.cross_attention(h, memory, tgt, src))
        return self.feed_forward_residual(x, self.feed_forward)

    def cross_weights(self, x: Tensor, memory: Tensor, tgt: PackedSequences, src: PackedSequences) -> Tensor:
        """The weights that `forward` gives the memory: (num_sentences, num_heads, tgt_len, src_len), padded."""
        weights: list[Tensor] = []

        def look(h: Tensor) -> Tensor:
            weights.append(self.cross_attention.weights(h, memory, tgt, src))
            return h

        x = self.attention_residual(x, lambda h: self.attention(h, tgt, causal=True))
        self.cross_attention_residual(x, look)
        return weights[0]

    def step(self, x: Tensor, positions: Tensor, state: LayerState[Any], mask: Tensor, memory_mask: Tensor) -> Tensor:
        """One position of every hypothesis. x: (batch, beam, d_model) -> the same shape; positions: (batch, beam)."""
        x = self.attention_residual(x, lambda h: self.attention.step(h, positions, state.cache, mask))
        x = self.cross_attention_residual(x, lambda h: self.cross_attention.step(h, state.memory, memory_mask))
        return self.feed_forward_residual(x, self.feed_forward)


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
        return self.norm(x)

    def cross_weights(self, x: Tensor, memory: Tensor, tgt: PackedSequences, src: PackedSequences) -> Iterator[Tensor]:
        """What each layer in turn gives the memory, see `DecoderLayer.cross_weights`; none is computed before its turn.

        Each layer computes its self-attention twice for this, which keeps `forward` free of it.
        """
        for layer in self.layers:
            yield layer.cross_weights(x, memory, tgt, src)
            x = layer(x, memory, tgt, src)

    def start(self, memory: Tensor, src: PackedSequences, beam_size: int) -> DecoderState:
        """The state before the first token: keys and values of the memory, and an empty cache."""
        memories = [layer.cross_attention.stored_memory(memory, src) for layer in self.layers]
        layers = [LayerState(KeyValueCache(like=stored), stored) for stored in memories]
        memory_mask = src.padding_mask[:, None, None, :].to(memories[0].dtype)
        mask = memory_mask.new_empty(src.num_sentences, 1, beam_size, 0)
        return DecoderState(layers, memory_mask, mask)

    def step(self, x: Tensor, positions: Tensor, state: StepState) -> Tensor:
        """One position further. x: (batch, beam, d_model), the embedded last tokens -> the same shape.

        positions: those of the last tokens, (batch, beam). At the first step (batch, 1, d_model) may stand for all
        hypotheses of a sentence, which then begin alike.
        """
        mask = state.extend(x.shape[1])
        for layer, layer_state in zip(self.layers, state.layers, strict=True):
            x = layer.step(x, positions, layer_state, mask, state.memory_mask)
        return self.norm(x)
