"""Padding and load balance of an epoch plan."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np

from nmt.data.epoch_plan import EpochPlan

# Updates are random samples of the same text, so a few dozen are representative.
_SAMPLED_UPDATES = 64


@dataclass(frozen=True)
class Workload:
    """Mean work per update, in tokens of both sides.

    micro_batches: non-empty micro-batches over all processes
    useful:        fraction of the computed tokens that are not padding
    slowest:       tokens of the busiest process divided by the mean over processes
    """

    processes: int
    micro_batches: float
    useful: float
    slowest: float

    @property
    def efficiency(self) -> float:
        """Fraction of the processes' time spent neither on padding nor on waiting for the busiest process."""
        return self.useful / self.slowest

    @classmethod
    def from_plan(cls, plan: EpochPlan, processes: int) -> Workload:
        """Average over the first updates of a plan, without the incomplete last one."""
        updates = range(max(1, min(len(plan) - 1, _SAMPLED_UPDATES)))
        batches = [plan.micro_batches(update) for update in updates]
        loads = np.array([_loads(plan, parts, processes) for parts in batches])  # (updates, processes)
        ids = np.concatenate(list(chain.from_iterable(batches)))
        real_tokens = int((plan.src_lengths[ids] + plan.tgt_lengths[ids] + 2).sum())
        return cls(
            processes=processes,
            micro_batches=sum(len(part) > 0 for part in chain.from_iterable(batches)) / len(batches),
            useful=real_tokens / float(loads.sum()),
            slowest=float(loads.max(axis=1).sum() / loads.mean(axis=1).sum()),
        )


def _loads(plan: EpochPlan, parts: list[np.ndarray], processes: int) -> list[int]:
    """Return the tokens of one update that each process computes, `(processes,)`."""
    if plan.shape is not None:
        tokens = [plan.shape.src_tokens + plan.shape.tgt_tokens] * len(parts)
    else:
        tokens = [int((plan.src_lengths[ids] + plan.tgt_lengths[ids] + 2).sum()) for ids in parts]
    return [sum(tokens[rank::processes]) for rank in range(processes)]
