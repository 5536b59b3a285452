"""How evenly the updates of a plan keep the processes busy."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np

from nmt.data.epoch_plan import EpochPlan

# Updates are random samples of the same text, so that a few dozen tell of all.
_UPDATES_COUNTED = 64


@dataclass(frozen=True)
class Workload:
    """The work of an update, averaged over some updates; work is counted in tokens of both sides.

    micro_batches: micro-batches with pairs, over all processes
    useful:        share of the computed tokens that are learned from; the others are padding
    slowest:       tokens that the busiest process computes, divided by the mean over the processes
    """

    processes: int
    micro_batches: float
    useful: float
    slowest: float

    @property
    def share(self) -> float:
        """Share of the processes' time that counts: what is neither padding nor waiting for the busiest process."""
        return self.useful / self.slowest

    @classmethod
    def of(cls, plan: EpochPlan, processes: int) -> Workload:
        """The mean over the first updates of a plan; without its last one, which is what remains of an epoch."""
        updates = range(max(1, min(len(plan) - 1, _UPDATES_COUNTED)))
        cuts = [plan.micro_batches(update) for update in updates]
        loads = np.array([_loads(plan, parts, processes) for parts in cuts])  # (updates, processes)
        ids = np.concatenate(list(chain.from_iterable(cuts)))
        counted = int((plan.src_lengths[ids] + plan.tgt_lengths[ids] + 2).sum())
        return cls(
            processes=processes,
            micro_batches=sum(len(part) > 0 for part in chain.from_iterable(cuts)) / len(cuts),
            useful=counted / float(loads.sum()),
            slowest=float(loads.max(axis=1).sum() / loads.mean(axis=1).sum()),
        )


def _loads(plan: EpochPlan, parts: list[np.ndarray], processes: int) -> list[int]:
    """The tokens that each process computes for one update, `(processes,)`."""
    if plan.shape is not None:
        tokens = [plan.shape.src_tokens + plan.shape.tgt_tokens] * len(parts)
    else:
        tokens = [int((plan.src_lengths[ids] + plan.tgt_lengths[ids] + 2).sum()) for ids in parts]
    return [sum(tokens[rank::processes]) for rank in range(processes)]
