"""Attention weights of all layers, read by forward pre-hooks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nmt.heads.masks import AttentionId, attentions
from nmt.model.multi_head import CrossAttention, SelfAttention
from nmt.model.transformer import Transformer
from nmt.packing.packed import PackedSequences
from nmt.packing.padding import pad

# Receives the attention layer, its weights (num_sentences, num_heads, padded queries, padded keys), queries and keys.
Reader = Callable[[AttentionId, Tensor, PackedSequences, PackedSequences], None]


@contextmanager
def reading_weights(model: Transformer, read: Reader) -> Iterator[None]:
    """Call `read` with the weights of each attention layer that is computed in a `with` block."""
    hooks = [
        attention.register_forward_pre_hook(partial(_read, key, read), with_kwargs=True)
        for key, attention in attentions(model).items()
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _read(key: AttentionId, read: Reader, attention: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    if isinstance(attention, CrossAttention):
        x, memory, tgt, src = args
        read(key, attention.weights(x, memory, tgt, src), tgt, src)
    elif isinstance(attention, SelfAttention):
        x, sentences = args
        read(key, self_attention_weights(attention, x, sentences, causal=options["causal"]), sentences, sentences)


def self_attention_weights(attention: SelfAttention, x: Tensor, sentences: PackedSequences, *, causal: bool) -> Tensor:
    """Return padded attention weights of a self-attention layer, (num_sentences, num_heads, max_length, max_length).

    x: input of the layer, (total, d_model)
    """
    qkv = attention.project(x, sentences.positions)  # (total, 3, num_heads, d_head)
    q, k = (pad(qkv[:, part], sentences.one_per_row) for part in range(2))  # (num_sentences, num_heads, width, d_head)
    scores = q @ k.transpose(-2, -1)
    position = torch.arange(q.shape[2], device=q.device)
    if attention.relative is not None:
        keys = attention.relative.vectors(position - position[:, None])[0]  # (width, width, d_head)
        scores = scores + torch.einsum("shid,ijd->shij", q, keys.to(q.dtype))
    scores = scores / math.sqrt(q.shape[-1]) + sentences.padding_mask[:, None, None, :].to(q.dtype)
    if causal:
        scores = scores.masked_fill(position[:, None] < position, float("-inf"))
    return torch.softmax(scores, dim=-1)[:, :, : sentences.max_length, : sentences.max_length]
