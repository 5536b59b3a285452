"""Scoring: how probable a model finds given translations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from nmt.packed import Batch, PackedSequences

# Logits are made for this many target tokens at a time, because a whole batch of them can be larger than the model.
_TOKENS_AT_A_TIME = 1_024


class ForwardModel(Protocol):
    """A model that reads a whole translation at once, such as the Transformer in training."""

    def forward(self, src: PackedSequences, tgt: PackedSequences) -> Tensor:
        """What the model says at each target position, (tgt.total, d_model)."""

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., d_model) -> unnormalised scores over the vocabulary, (..., vocab)."""


@dataclass(frozen=True)
class PairScore:
    """How probable a translation is, given its source.

    log_prob:        natural logarithm of its probability, end token included: what search gives for the same tokens
    token_log_probs: of each token and of the end token; they sum to log_prob
    """

    log_prob: float
    token_log_probs: list[float]


@torch.inference_mode()
def score_pairs(model: ForwardModel, batch: Batch) -> list[PairScore]:
    """Score each pair of a batch, in its order, with one pass through the model (in evaluation mode).

    The batch lies on the model's device; the logarithms are taken in float32 whatever the model computes in.
    """
    hidden = model.forward(batch.src, batch.tgt)  # (total, d_model)
    chunks = zip(hidden.split(_TOKENS_AT_A_TIME), batch.labels.split(_TOKENS_AT_A_TIME), strict=True)
    log_probs = [
        model.logits(part).float().log_softmax(dim=-1).gather(1, labels[:, None]).squeeze(1) for part, labels in chunks
    ]
    by_sentence = torch.cat(log_probs).cpu().split(batch.tgt.lengths.tolist())
    return [PairScore(float(row.double().sum()), row.tolist()) for row in by_sentence]
