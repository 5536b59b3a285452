"""Validation loss over the development text, shared out among the processes and counted once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from nmt.data.epoch_plan import plan_by_length
from nmt.data.loader import make_batch
from nmt.data.store import PairStore
from nmt.processes.distributed import World
from nmt.train.loss import TrainingLoss


@dataclass(frozen=True)
class Validation:
    """Means over the target tokens of the development text, in nats.

    loss: with label smoothing, as in training; nll: without
    """

    loss: float
    nll: float

    @property
    def perplexity(self) -> float:
        """exp of the mean negative log-likelihood."""
        return perplexity(self.nll)


def perplexity(nll: float) -> float:
    """exp(nll), or infinity where a float would overflow."""
    return math.exp(nll) if nll < 700 else math.inf


@torch.no_grad()
def validate(
    loss: TrainingLoss, store: PairStore, world: World, micro_batch_tokens: int, between: Callable[[], None]
) -> Validation:
    """The loss of the model, in evaluation mode, on every pair of `store`; the same figures on every process.

    `between` is called by all processes alike before each micro-batch, and may raise to break off.
    """
    was_training = loss.training
    loss.eval()
    plan = plan_by_length(store.src.lengths, store.tgt.lengths, micro_batch_tokens=micro_batch_tokens)
    sums = torch.zeros(3, dtype=torch.float64, device=world.device)
    try:
        for first in range(0, len(plan), world.size):
            between()
            if first + world.rank < len(plan):
                batch = make_batch(store, plan[first + world.rank]).to(world.device)
                smoothed, nll = loss(batch)
                sums += torch.stack([smoothed.double(), nll.double(), sums.new_full((), batch.tgt_tokens)])
    finally:
        loss.train(was_training)
    smoothed_sum, nll_sum, tokens = world.sum(sums).tolist()
    return Validation(loss=smoothed_sum / tokens, nll=nll_sum / tokens)
