"""Micro-batching of a run and its load balance, decided once at the start and the same on all processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import numpy as np

from nmt.data.epoch_plan import EpochPlan, plan_epoch
from nmt.errors import UserError
from nmt.logs import say, warn
from nmt.packing.packed import BatchShape
from nmt.packing.shapes import UpdateStatistics
from nmt.processes.distributed import World
from nmt.recipe import Recipe
from nmt.train.compilation import has_fixed_shapes
from nmt.train.data import TrainingData
from nmt.train.memory import MemoryProbe, checkpoint_copy_bytes, missing_moment_bytes
from nmt.train.state import TrainState
from nmt.train.update import Updater

# Updates are random samples of the same text, so a few dozen are representative.
_SAMPLED_UPDATES = 64
# Warn if less than this fraction of the processes' time is useful.
_MIN_USEFUL = 0.9
# Options that change which micro-batches fit into memory.
_MEMORY_OPTIONS = {"train.activation_checkpointing", "train.precision", "train.compile", "train.shapes"}


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


@dataclass(frozen=True)
class Batching:
    """How updates are split into micro-batches.

    src_tokens:         maximum source tokens of an update
    micro_batch_tokens: maximum tokens of each side of a micro-batch
    multiple:           the number of micro-batches of an update is a multiple of this
    shape:              shape of all micro-batches; None if shapes vary
    workload:           load balance of the processes
    """

    src_tokens: int
    micro_batch_tokens: int
    multiple: int
    shape: BatchShape | None
    workload: Workload

    @classmethod
    def choose(cls, recipe: Recipe, world: World, text: TrainingData, updater: Updater, state: TrainState) -> Batching:
        """Find the largest micro-batch that fits into memory, or check the size in the recipe; call on all processes.

        Reuses the result of an earlier session of the run if it is still valid.

        Raises:
            UserError: no micro-batch fits, or the micro-batches cannot be divided by the world size.
        """
        multiple = micro_batch_multiple(recipe, world)
        statistics = update_statistics(recipe, text)
        shapes: Callable[[int], BatchShape] | None = None
        if has_fixed_shapes(recipe, world, updater.precision):
            shapes = partial(statistics.shape, multiple=multiple)
        plan = plan_of_epoch(recipe, text, statistics, multiple)
        budget, longest = _known_budget(recipe, world, state), recipe.data.max_tokens + 1
        if budget is None:
            averages = 1 if recipe.train.ema_decay else 0
            copies = checkpoint_copy_bytes(updater.model, averages, world.device)
            reserve = missing_moment_bytes(updater.optimizer) + copies
            probe = MemoryProbe(updater.loss, plan, world, updater.precision, reserve, shapes)
            if recipe.train.micro_batch_tokens == "auto":
                budget = probe.largest_budget(longest)
            else:
                budget = recipe.train.micro_batch_tokens
                probe.require(budget, longest)
        shape = shapes(budget) if shapes else None
        workload = Workload.from_plan(replace(plan, micro_batch_tokens=budget, shape=shape), world.size)
        return cls(statistics.src_tokens, budget, multiple, shape, workload)

    def announce(self, recipe: Recipe, state: TrainState) -> None:
        """Log the micro-batching and its changes since the last session; warn of idle processes."""
        budget, before = self.micro_batch_tokens, state.micro_batch_tokens
        if before and budget != before:
            say(f"train.micro_batch_tokens is now {budget:,}, was {before:,}; dropout masks differ from here on")
        elif not before and recipe.train.micro_batch_tokens == "auto":
            say(f"train.micro_batch_tokens is {budget:,}, the largest useful size that fits into memory")
        work = self.workload
        if state.processes not in (0, work.processes):
            masks = "; dropout masks may differ from here on" if recipe.train.micro_batches == "auto" else ""
            say(f"the number of processes is now {work.processes}, was {state.processes}{masks}")
        say(describe_workload(work))
        if work.efficiency < _MIN_USEFUL and work.processes == 1:
            warn(f"{1 - work.efficiency:.0%} of the time is spent on padding; raise train.batch_tokens")
        elif work.efficiency < _MIN_USEFUL:
            warn(
                f"{work.processes} processes spend {1 - work.efficiency:.0%} of their time on padding and waiting; "
                "use fewer processes, or raise train.batch_tokens"
            )


def warn_of_long_pairs(recipe: Recipe, text: TrainingData) -> None:
    """Warn of training pairs that exceed `batch_tokens`: each is an update by itself, larger than the limit."""
    limit, lengths = recipe.train.batch_tokens, text.train.tgt.lengths
    if longer := int(np.count_nonzero(lengths >= limit)):  # the model adds EOS
        warn(
            f"training pairs with more than train.batch_tokens ({limit:,}) target tokens: {longer:,} of "
            f"{len(lengths):,}; each is an update by itself, larger than the limit; raise train.batch_tokens, or lower "
            "data.max_tokens"
        )


def describe_workload(work: Workload) -> str:
    """Return a log line about micro-batches, padding and load balance."""
    line = f"micro-batches per update: {work.micro_batches:.3g} on average"
    if work.processes == 1:
        return line if work.useful == 1 else f"{line}; {1 - work.useful:.1%} of their positions are padding"
    return (
        f"{line}, {work.micro_batches / work.processes:.3g} for each of {work.processes} processes; "
        f"{work.efficiency:.1%} of their time is useful, and the busiest computes {work.slowest - 1:.1%} more "
        "tokens than the mean"
    )


def _loads(plan: EpochPlan, parts: list[np.ndarray], processes: int) -> list[int]:
    """Return the tokens of one update that each process computes, `(processes,)`."""
    if plan.shape is not None:
        tokens = [plan.shape.src_tokens + plan.shape.tgt_tokens] * len(parts)
    else:
        tokens = [int((plan.src_lengths[ids] + plan.tgt_lengths[ids] + 2).sum()) for ids in parts]
    return [sum(tokens[rank::processes]) for rank in range(processes)]


def micro_batch_multiple(recipe: Recipe, world: World) -> int:
    """Return the divisor of the number of micro-batches; raises UserError unless it is a multiple of the world size."""
    requested = recipe.train.micro_batches
    if requested == "auto":
        return world.size
    if requested % world.size:
        raise UserError(
            f"train.micro_batches is {requested} with {world.size} processes; it must be a multiple of {world.size}; "
            f"set it to {(requested // world.size + 1) * world.size} or 'auto'"
        )
    return requested


def update_statistics(recipe: Recipe, text: TrainingData) -> UpdateStatistics:
    """Return the sizes of updates, the same in every epoch and after every resume."""
    store, mixture = text.train, text.mixture
    src, tgt = store.src.lengths, store.tgt.lengths
    if mixture is not None:
        ids = mixture.sample_epoch(recipe.seed, epoch=0)
        src, tgt = src[ids], tgt[ids]
    longest = 1 + int(max(store.src.lengths.max(), store.tgt.lengths.max()))
    if text.epochs is not None:
        src_growth, tgt_growth = text.epochs.growth()
        src = np.rint(src_growth * src).astype(np.int64)
        tgt = np.rint(tgt_growth * tgt).astype(np.int64)
        longest = max(longest, recipe.data.max_tokens + 1)  # sampled segmentations are longer
    return replace(UpdateStatistics.from_lengths(src, tgt, batch_tokens=recipe.train.batch_tokens), longest=longest)


def plan_of_epoch(
    recipe: Recipe, text: TrainingData, statistics: UpdateStatistics, multiple: int, epoch: int = 0
) -> EpochPlan:
    """Plan an epoch, by default the first, which is representative of all.

    If `micro_batch_tokens` is "auto", the micro-batches are the smallest that hold every sentence.
    """
    requested = recipe.train.micro_batch_tokens
    return plan_epoch(
        text.train.src.lengths,
        text.train.tgt.lengths,
        batch_tokens=recipe.train.batch_tokens,
        src_batch_tokens=statistics.src_tokens,
        micro_batch_tokens=recipe.data.max_tokens + 1 if requested == "auto" else requested,
        seed=recipe.seed,
        epoch=epoch,
        mixture=text.mixture,
        multiple=multiple,
    )


def _known_budget(recipe: Recipe, world: World, state: TrainState) -> int | None:
    """Return the budget of an earlier session of the run if it is still valid."""
    requested, budget = recipe.train.micro_batch_tokens, state.micro_batch_tokens
    if budget == 0 or requested not in ("auto", budget):
        return None
    changed = {change.option for change in state.changes if change.step == state.step}
    is_other_device = state.device.partition(":")[0] not in ("", world.device.type)
    if is_other_device and not state.limits_reached(recipe.train):
        return None
    is_other_world = is_other_device or state.processes not in (0, world.size)  # 0: checkpoint of an earlier version
    if requested == "auto" and (is_other_world or "train.micro_batch_tokens" in changed):
        return None
    return budget if changed.isdisjoint(_MEMORY_OPTIONS) else None
