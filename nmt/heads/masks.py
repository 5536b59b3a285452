"""Masks of attention heads: factors of their outputs before the projection W_O (Michel et al. 2019, section 2.3).

The masks are forward pre-hooks, so the model needs no code for them. They work in training and search.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from nmt.model.multi_head import CrossAttention, SelfAttention
from nmt.model.transformer import Transformer

Kind = Literal["encoder", "decoder", "cross"]


@dataclass(frozen=True, order=True)
class AttentionId:
    """One attention layer of a model. kind: self-attention of a stack, or cross-attention; layer: from 0."""

    kind: Kind
    layer: int


@dataclass(frozen=True, order=True)
class Head:
    """One head of an attention layer; index: from 0."""

    attention: AttentionId
    index: int


def attentions(model: Transformer) -> dict[AttentionId, SelfAttention | CrossAttention]:
    """Return all attention layers of a model: of the encoder, of the decoder, and from decoder to encoder."""
    encoder, decoder = model.encoder.layers, model.decoder.layers
    return {
        **{AttentionId("encoder", number): layer.attention for number, layer in enumerate(encoder)},
        **{AttentionId("decoder", number): layer.attention for number, layer in enumerate(decoder)},
        **{AttentionId("cross", number): layer.cross_attention for number, layer in enumerate(decoder)},
    }


def all_heads(model: Transformer) -> list[Head]:
    """Return all heads of a model, in the order of `attentions`."""
    return [Head(key, index) for key, attention in attentions(model).items() for index in range(attention.num_heads)]


class HeadMasks:
    """Factors of the heads of a model, initially 1. Create new masks after replacing layers of the model.

    factors: of each attention layer, (num_heads,), or (total, num_heads) for each position of packed sentences
    """

    def __init__(self, model: Transformer) -> None:
        device = model.tgt_embedding.weight.device
        self.factors: dict[AttentionId, Tensor] = {}
        for key, attention in attentions(model).items():
            self.factors[key] = torch.ones(attention.num_heads, device=device)
            attention.out.register_forward_pre_hook(partial(self._multiply, key))

    @contextmanager
    def removed(self, heads: Iterable[Head]) -> Iterator[None]:
        """Set the factors of these heads to 0 during a `with` block."""
        before = self.factors
        self.factors = {key: factor.clone() for key, factor in before.items()}
        for head in heads:
            self.factors[head.attention][head.index] = 0.0
        try:
            yield
        finally:
            self.factors = before

    def _multiply(self, key: AttentionId, _: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
        """Multiply the concatenated heads (..., num_heads * d_head) before W_O."""
        factor = self.factors[key]
        heads: Tensor = inputs[0].unflatten(-1, (factor.shape[-1], -1)) * factor[..., None].to(inputs[0].dtype)
        return heads.flatten(-2)
