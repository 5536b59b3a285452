"""The encoder stack (Vaswani et al. 2017, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nmt.model.layers import FeedForward, Residual, final_norm
from nmt.model.multi_head import SelfAttention
from nmt.packing.packed import PackedSequences
from nmt.recipe import ModelRecipe


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each with a residual connection."""

    def __init__(self, recipe: ModelRecipe) -> None:
        super().__init__()
        self.attention = SelfAttention(recipe, recipe.encoder_heads)
        self.attention_residual = Residual(recipe)
        self.feed_forward = FeedForward(recipe)
        self.feed_forward_residual = Residual(recipe)

    def forward(self, x: Tensor, src: PackedSequences) -> Tensor:
        """(src.total, d_model) -> (src.total, d_model)."""
        x = self.attention_residual(x, lambda h: self.attention(h, src, causal=False))
        return self.feed_forward_residual(x, self.feed_forward)


class Encoder(nn.Module):
    """A stack of encoder layers."""

    def __init__(self, recipe: ModelRecipe) -> None:
        super().__init__()
        self.activation_checkpointing = False
        self.layers = cast(
            Sequence[EncoderLayer], nn.ModuleList(EncoderLayer(recipe) for _ in range(recipe.num_encoder_layers))
        )
        self.norm = final_norm(recipe)

    def forward(self, x: Tensor, src: PackedSequences) -> Tensor:
        """Source embeddings (src.total, d_model) -> encoder output (src.total, d_model)."""
        use_checkpoint = self.activation_checkpointing and self.training
        for layer in self.layers:
            x = checkpoint(layer, x, src, use_reentrant=False) if use_checkpoint else layer(x, src)
        return self.norm(x)
