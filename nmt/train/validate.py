"""Validation loss, distributed over the processes."""

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
    """Means over the target tokens of the validation set, in nats.

    loss: with label smoothing; nll: without
    """

    loss: float
    nll: float

    @property
    def perplexity(self) -> float:
        """exp(nll)."""
        return perplexity(self.nll)


def perplexity(nll: float) -> float:
    """Return exp(nll); infinity for NaN and for nll >= 50, which mean divergence.

    The nll of a uniform guess over 1e9 tokens is 20.7.
    """
    return math.exp(nll) if nll < 50 else math.inf


@torch.no_grad()
def validate(
    loss: TrainingLoss, store: PairStore, world: World, micro_batch_tokens: int, check_stop: Callable[[], None]
) -> Validation:
    """Return the loss on all pairs of `store` in evaluation mode, the same on every process.

    All processes call `check_stop` before each micro-batch; it may raise to stop.
    """
    was_training = loss.training
    loss.eval()
    plan = plan_by_length(store.src.lengths, store.tgt.lengths, micro_batch_tokens=micro_batch_tokens)
    sums = torch.zeros(3, dtype=torch.float64, device=world.device)
    try:
        for first in range(0, len(plan), world.size):
            check_stop()
            if first + world.rank < len(plan):
                batch = make_batch(store, plan[first + world.rank]).to(world.device)
                smoothed, nll = loss(batch)
                sums += torch.stack([smoothed.double(), nll.double(), sums.new_full((), batch.tgt_tokens)])
    finally:
        loss.train(was_training)
    smoothed_sum, nll_sum, tokens = world.sum(sums).tolist()
    return Validation(loss=smoothed_sum / tokens, nll=nll_sum / tokens)
