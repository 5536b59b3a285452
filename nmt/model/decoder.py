"""The decoder stack (Vaswani et al. 2017, section 3.1), for whole sentences in training and one position in search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nmt.kv_cache.cache import KeyValueCache, Slots
from nmt.kv_cache.state import DecoderState, DecoderStepState, LayerState
from nmt.model.layers import FeedForward, Residual, final_norm
from nmt.model.multi_head import CrossAttention, SelfAttention
from nmt.packing.packed import PackedSequences
from nmt.recipe import ModelRecipe


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention and feed-forward, each with a residual connection."""

    def __init__(self, recipe: ModelRecipe) -> None:
        super().__init__()
        self.attention = SelfAttention(recipe, recipe.num_heads)
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
        """Return the cross-attention weights of `forward`: (num_sentences, num_heads, tgt_len, src_len), padded."""
        x = self.attention_residual(x, lambda h: self.attention(h, tgt, causal=True))
        residual = self.cross_attention_residual
        return self.cross_attention.weights(residual.norm(x) if residual.pre_norm else x, memory, tgt, src)

    def step(self, x: Tensor, positions: Tensor, state: LayerState[Any], mask: Tensor, memory_mask: Tensor) -> Tensor:
        """Compute one position of every hypothesis, (batch, beam, d_model) -> (batch, beam, d_model).

        positions: (batch, beam); masks: see `DecoderState`.
        """
        x = self.attention_residual(x, lambda h: self.attention.step(h, positions, state.cache, mask))
        x = self.cross_attention_residual(x, lambda h: self.cross_attention.step(h, state.memory, memory_mask))
        return self.feed_forward_residual(x, self.feed_forward)


class Decoder(nn.Module):
    """A stack of decoder layers."""

    def __init__(self, recipe: ModelRecipe) -> None:
        super().__init__()
        self.activation_checkpointing = False
        self.layers = cast(
            Sequence[DecoderLayer], nn.ModuleList(DecoderLayer(recipe) for _ in range(recipe.num_decoder_layers))
        )
        self.norm = final_norm(recipe)

    def forward(self, x: Tensor, memory: Tensor, tgt: PackedSequences, src: PackedSequences) -> Tensor:
        """Target embeddings (tgt.total, d_model) and encoder output (src.total, d_model) -> (tgt.total, d_model)."""
        use_checkpoint = self.activation_checkpointing and self.training
        for layer in self.layers:
            inputs = (x, memory, tgt, src)
            x = checkpoint(layer, *inputs, use_reentrant=False) if use_checkpoint else layer(*inputs)
        return self.norm(x)

    def cross_weights(self, x: Tensor, memory: Tensor, tgt: PackedSequences, src: PackedSequences) -> Iterator[Tensor]:
        """Yield the cross-attention weights of each layer, computed lazily.

        Self-attention is computed twice, which keeps `forward` simple.
        """
        for layer in self.layers:
            yield layer.cross_weights(x, memory, tgt, src)
            x = layer(x, memory, tgt, src)

    def start(self, memory: Tensor, src: PackedSequences, beam_size: int) -> DecoderState:
        """Return the state before the first token: cross-attention keys and values, and an empty cache."""
        cached = [layer.cross_attention.cache_memory(memory, src) for layer in self.layers]
        slots = Slots()
        layers = [LayerState(KeyValueCache(like=keys_values, slots=slots), keys_values) for keys_values in cached]
        memory_mask = src.padding_mask[:, None, None, :].to(cached[0].dtype)
        mask = memory_mask.new_empty(src.num_sentences, 1, beam_size, 0)
        can_compact = beam_size > 1 and all(layer.attention.relative is None for layer in self.layers)
        return DecoderState(layers, memory_mask, mask, slots, can_compact)

    def step(self, x: Tensor, positions: Tensor, state: DecoderStepState) -> Tensor:
        """Embeddings of the last tokens (batch, beam, d_model) -> decoder output (batch, beam, d_model).

        positions: positions of the last tokens, (batch, beam). In the first step beam may be 1, because all hypotheses
        are equal.
        """
        mask = state.extend(x.shape[1])
        for layer, layer_state in zip(self.layers, state.layers, strict=True):
            x = layer.step(x, positions, layer_state, mask, state.memory_mask)
        return self.norm(x)
