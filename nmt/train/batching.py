"""How the updates of a run are split into micro-batches, decided once at the start and alike on all processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from nmt.data.epoch_plan import EpochPlan, plan_epoch
from nmt.data.shapes import UpdateStatistics
from nmt.data.workload import Workload
from nmt.logs import say, warn
from nmt.packing.packed import BatchShape
from nmt.processes.distributed import World
from nmt.recipe import Recipe, UserError
from nmt.train.compilation import has_fixed_shapes
from nmt.train.data import TrainingData
from nmt.train.memory import MemoryProbe, checkpoint_copy_bytes, fit_micro_batch, missing_moment_bytes
from nmt.train.state import TrainState
from nmt.train.update import Updater

# Less than this share of the processes' time is worth a warning.
_LEAST_SHARE = 0.9


@dataclass(frozen=True)
class Batching:
    """How updates are split.

    src_tokens:         most source tokens of an update
    micro_batch_tokens: most tokens of either side of a micro-batch
    multiple:           the number of micro-batches of an update is a multiple of this
    shape:              of all micro-batches; None where each is as large as its sentences are
    workload:           how evenly this keeps the processes busy
    """

    src_tokens: int
    micro_batch_tokens: int
    multiple: int
    shape: BatchShape | None
    workload: Workload

    @classmethod
    def choose(
        cls, recipe: Recipe, world: World, text: TrainingData, updater: Updater, averages: int, state: TrainState
    ) -> Batching:
        """Find the largest micro-batch that fits into memory, or check that the recipe's does; all processes must ask.

        averages: moving averages of the weights that are kept. What an earlier start of the run found is kept where it
        still holds. Raises UserError where no micro-batch fits, and where the processes cannot share them evenly.
        """
        multiple = micro_batch_multiple(recipe, world)
        needs = update_needs(recipe, text)
        shapes: Callable[[int], BatchShape] | None = None
        if has_fixed_shapes(recipe, world, updater.precision):
            shapes = partial(needs.shape, multiple=multiple)
        plan = plan_first_epoch(recipe, text, needs, multiple)
        budget = _known_budget(recipe, world, state)
        if budget is None:
            reserve = missing_moment_bytes(updater.optimizer) + checkpoint_copy_bytes(
                updater.model, averages, world.device
            )
            probe = MemoryProbe(updater.loss, plan, world, updater.precision, reserve, shapes)
            budget = fit_micro_batch(recipe.train.micro_batch_tokens, recipe.data.max_tokens + 1, probe)
        shape = shapes(budget) if shapes else None
        workload = Workload.from_plan(replace(plan, micro_batch_tokens=budget, shape=shape), world.size)
        return cls(needs.src_tokens, budget, multiple, shape, workload)

    def announce(self, recipe: Recipe, state: TrainState) -> None:
        """Say how updates are split, what of that is new since the last start, and warn of processes that wait."""
        budget, before = self.micro_batch_tokens, state.micro_batch_tokens
        if before and budget != before:
            say(f"train.micro_batch_tokens is now {budget:,}, was {before:,}; dropout masks differ from here on")
        elif not before and recipe.train.micro_batch_tokens == "auto":
            say(f"train.micro_batch_tokens is {budget:,}, the largest that fits into memory and is fast")
        work = self.workload
        say(describe_workload(work))
        if work.efficiency < _LEAST_SHARE:
            warn(
                f"padding and waiting take {1 - work.efficiency:.0%} of the time of {work.processes} processes; "
                "use fewer processes, or raise train.batch_tokens"
            )


def describe_workload(work: Workload) -> str:
    """One line for people."""
    line = f"an update has {work.micro_batches:.3g} micro-batches on average"
    if work.processes == 1:
        return f"{line}, of which {work.useful:.1%} are tokens and no padding"
    return (
        f"{line}, {work.micro_batches / work.processes:.3g} for each of {work.processes} processes; "
        f"{work.efficiency:.1%} of their work counts, the busiest has {work.slowest - 1:.1%} more than the mean"
    )


def micro_batch_multiple(recipe: Recipe, world: World) -> int:
    """What the number of micro-batches of an update is a multiple of; UserError where processes cannot share it."""
    wanted = recipe.train.micro_batches
    if wanted == "auto":
        return world.size
    if wanted % world.size:
        raise UserError(
            f"train.micro_batches is {wanted}, which {world.size} processes cannot share evenly; it must be a multiple "
            f"of {world.size}; set it to {(wanted // world.size + 1) * world.size} or 'auto'"
        )
    return wanted


def update_needs(recipe: Recipe, text: TrainingData) -> UpdateStatistics:
    """What updates need, as far as it is the same in every epoch and after every start."""
    store, mixture = text.train, text.mixture
    src, tgt = store.src.lengths, store.tgt.lengths
    if mixture is not None:
        ids = mixture.sample_epoch(recipe.seed, epoch=0)
        src, tgt = src[ids], tgt[ids]
    longest = 1 + int(max(store.src.lengths.max(), store.tgt.lengths.max()))
    if text.epochs is not None:
        grown = zip(text.epochs.growth(), (src, tgt), strict=True)
        src, tgt = (np.rint(growth * lengths).astype(np.int64) for growth, lengths in grown)
        longest = max(longest, recipe.data.max_tokens + 1)  # of what is sampled
    return replace(UpdateStatistics.from_lengths(src, tgt, batch_tokens=recipe.train.batch_tokens), longest=longest)


def plan_first_epoch(recipe: Recipe, text: TrainingData, needs: UpdateStatistics, multiple: int) -> EpochPlan:
    """The updates of epoch 0, as large as they are in every epoch; for a budget of "auto" in the smallest parts."""
    wanted = recipe.train.micro_batch_tokens
    return plan_epoch(
        text.train.src.lengths,
        text.train.tgt.lengths,
        batch_tokens=recipe.train.batch_tokens,
        src_batch_tokens=needs.src_tokens,
        micro_batch_tokens=recipe.data.max_tokens + 1 if wanted == "auto" else wanted,
        seed=recipe.seed,
        epoch=0,
        mixture=text.mixture,
        multiple=multiple,
    )


def _known_budget(recipe: Recipe, world: World, state: TrainState) -> int | None:
    """The budget that an earlier start of the run has found or checked, where it holds for this one too."""
    wanted, before = recipe.train.micro_batch_tokens, state.micro_batch_tokens
    if wanted == "auto":
        same_world = state.processes in (0, world.size)  # 0: saved before processes were counted
        return before if before and same_world else None
    return before if wanted == before else None
