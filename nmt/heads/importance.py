"""Importance of attention heads for the likelihood of given translations, in nats per target token.

Expected sensitivity (Michel et al. 2019, "Are Sixteen Heads Really Better than One?", section 4.1) is the sum over
sentences of |dL/dxi|, where L is the negative log-likelihood (nll) of a sentence and xi the mask of a head. It needs
one backward pass. Removal measures the change in nll with xi = 0, and needs one forward pass for each head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.heads.masks import AttentionId, Head, HeadMasks, all_heads, attentions
from nmt.model.transformer import Transformer
from nmt.packing.packed import Batch, PackedSequences

Batches = Sequence[Batch]


def sensitivity(
    model: Transformer, masks: HeadMasks, batches: Batches, advance: Callable[[], None] = lambda: None
) -> dict[Head, float]:
    """Return the sum over sentences of |dL/dxi| for each head, per target token.

    Each position has its own factor, and the gradients of a sentence are summed over its positions, so a batch needs
    one backward pass.

    model:   in evaluation mode; its parameters get no gradients
    advance: called after each batch
    """
    num_heads = {key: attention.num_heads for key, attention in attentions(model).items()}
    totals = {key: torch.zeros(number, dtype=torch.float64) for key, number in num_heads.items()}
    before = masks.factors
    try:
        for batch in batches:
            masks.factors = {key: _ones(model, _queries(key, batch), number) for key, number in num_heads.items()}
            nll = _nll(model, batch, model.encode(batch.src))
            gradients = torch.autograd.grad(nll, list(masks.factors.values()))
            for key, gradient in zip(masks.factors, gradients, strict=True):
                totals[key] += _sum_by_sentence(gradient, _queries(key, batch)).abs().sum(dim=0).double().cpu()
            advance()
    finally:
        masks.factors = before
    tokens = sum(batch.tgt_tokens for batch in batches)
    return {head: float(totals[head.attention][head.index]) / tokens for head in all_heads(model)}


@torch.inference_mode()
def nll_without(
    model: Transformer,
    masks: HeadMasks,
    batches: Batches,
    groups: Sequence[Sequence[Head]],
    advance: Callable[[], None] = lambda: None,
) -> list[float]:
    """Return the nll per target token with each group of heads removed.

    The encoder's output is computed once for all groups that remove no encoder head.
    """
    totals = [0.0] * len(groups)
    for batch in batches:
        full_memory = model.encode(batch.src)
        for number, heads in enumerate(groups):
            with masks.removed(heads):
                changes_encoder = any(head.attention.kind == "encoder" for head in heads)
                memory = model.encode(batch.src) if changes_encoder else full_memory
                totals[number] += float(_nll(model, batch, memory))
        advance()
    tokens = sum(batch.tgt_tokens for batch in batches)
    return [total / tokens for total in totals]


def _nll(model: Transformer, batch: Batch, memory: Tensor) -> Tensor:
    """Return the negative log-likelihood of the labels, given the encoder output."""
    x = model.tgt_embedding(batch.tgt.tokens, batch.tgt.positions)
    return F.cross_entropy(model.logits(model.decoder(x, memory, batch.tgt, batch.src)), batch.labels, reduction="sum")


def _queries(key: AttentionId, batch: Batch) -> PackedSequences:
    return batch.src if key.kind == "encoder" else batch.tgt


def _ones(model: Transformer, queries: PackedSequences, num_heads: int) -> Tensor:
    weight = model.tgt_embedding.weight
    return torch.ones(queries.total, num_heads, dtype=weight.dtype, device=weight.device, requires_grad=True)


def _sum_by_sentence(values: Tensor, sentences: PackedSequences) -> Tensor:
    """(total, n) -> (num_sentences, n)."""
    sentence = torch.repeat_interleave(
        torch.arange(sentences.num_sentences, device=values.device), sentences.lengths, output_size=sentences.total
    )
    return values.new_zeros(sentences.num_sentences, values.shape[1]).index_add_(0, sentence, values)
