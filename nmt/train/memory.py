"""Memory known beforehand: the heaviest step that a micro-batch budget allows is tried before training begins.

On a GPU it is run as it is. On a CPU, where a process that asks for too much takes the whole machine down, two smaller
ones of the same shape are run, and their growth is drawn out in a straight line.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from nmt.data.epoch_plan import EpochPlan
from nmt.devices.precision import Arithmetic, autocast
from nmt.packing.packed import Batch, BatchShape, PackedSequences
from nmt.packing.rectangle import row_width
from nmt.processes.distributed import World
from nmt.recipe import UserError
from nmt.special_ids import BOS_ID, EOS_ID
from nmt.train.loss import TrainingLoss

# `auto` chooses among the multiples of this.
BUDGET_STEP = 256
# Larger micro-batches are no faster on a CPU: what a layer computes then no longer fits into its cache.
LARGEST_ON_CPU = 4_096
# Share of the memory that `auto` leaves free: for what fragmentation wastes, and for whatever else the machine does.
MARGIN = 0.1

# On a CPU, at most about this many tokens are run blindly.
_SAMPLE_TOKENS = 2_048
# Each update is a random sample of the corpus, so a few of them show how long neighbours by length are.
_UPDATES_LOOKED_AT = 64
_POLL_SECONDS = 0.001


@dataclass(frozen=True)
class MicroBatchShape:
    """What decides how much memory a micro-batch takes.

    num_sentences:             pairs
    tokens:                    tokens of either side
    src_longest, tgt_longest:  tokens of the longest sentence of each side, which decides the width of rectangles
    """

    num_sentences: int
    tokens: int
    src_longest: int
    tgt_longest: int

    @classmethod
    def of_all(cls, shape: BatchShape) -> MicroBatchShape:
        """Where all micro-batches are padded to `shape`."""
        tokens = max(shape.src_tokens, shape.tgt_tokens)
        return cls(shape.num_sentences, tokens, shape.max_length, shape.max_length)

    def attention_size(self) -> int:
        """Roughly how many attention weights there are per head: those of the encoder, of the decoder, and between."""
        src, tgt = row_width(self.src_longest), row_width(self.tgt_longest)
        return self.tokens * (src + tgt + max(src, tgt))

    def batch(self, part: int | None = None) -> Batch:
        """A micro-batch of this shape, which says nothing; or only its first `part` pairs, the longest among them.

        Every further pair needs as much memory as the one before.
        """
        src_lengths = _lengths(self.num_sentences, self.tokens, self.src_longest)[:part]
        tgt_lengths = _lengths(self.num_sentences, self.tokens, self.tgt_longest)[:part]
        labels = np.full(tgt_lengths.sum(), EOS_ID)
        return Batch(
            src=PackedSequences.from_arrays(np.full(src_lengths.sum(), EOS_ID), src_lengths),
            tgt=PackedSequences.from_arrays(np.full_like(labels, BOS_ID), tgt_lengths),
            labels=torch.from_numpy(labels),
        )


def heaviest_shape(plan: EpochPlan) -> MicroBatchShape:
    """The worst that a micro-batch can look like under the budget of `plan`, in any epoch.

    Tokens: on both sides as many as the budget allows, or as an equal part of an update has. Linear layers need memory
    for these, as does attention over packed rows. Attention in rectangles needs it for tokens * longest: the pairs of a
    micro-batch are neighbors by target length, but a long source may stand among short ones. So every micro-batch of
    some updates of `plan` is taken as though the longest source that the corpus has for such targets stood in it, and
    the one with the largest attention counts. What is not covered: subword sampling makes some sentences longer.
    """
    updates = [plan.bands(index) for index in range(max(1, min(len(plan) - 1, _UPDATES_LOOKED_AT)))]
    tokens = min(plan.micro_batch_tokens, _largest_part(plan))
    longest_src = np.zeros(int(plan.tgt_lengths.max()) + 1, dtype=np.int64)  # of each target length
    np.maximum.at(longest_src, plan.tgt_lengths, plan.src_lengths)
    shapes = []
    for bands in updates:
        # A pair whose target is between those of two bands may come to lie in either.
        firsts = [int(plan.tgt_lengths[np.concatenate(band)].min()) for band in bands[1:]]
        ranges = pairwise([0, *firsts, len(longest_src) - 1])
        parts = ((ids, low, high) for band, (low, high) in zip(bands, ranges, strict=True) for ids in band if len(ids))
        for ids, low, high in parts:
            src_longest, tgt_longest = int(longest_src[low : high + 1].max()) + 1, high + 1
            src_tokens, tgt_tokens = _side_tokens(plan, ids)
            beside_longest = min((tokens - src_longest) / src_tokens, (tokens - tgt_longest) / tgt_tokens) * len(ids)
            num_sentences = 1 + max(0, math.ceil(beside_longest))
            shapes.append(MicroBatchShape(num_sentences, tokens, src_longest, tgt_longest))
    return max(shapes, key=MicroBatchShape.attention_size)


def peak_memory(run: Callable[[], None], device: torch.device) -> int:
    """The most bytes that `run()` has in use at one time, beyond those that were in use before it.

    On CUDA what torch allocates on `device`. On the CPU the growth of what is resident of this process, which a thread
    looks at every millisecond; OSError where the system has no /proc.
    """
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        return torch.cuda.max_memory_allocated(device) - before
    _hand_back_freed_memory()
    before = peak = _resident_memory()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(_POLL_SECONDS):
            peak = max(peak, _resident_memory())

    watcher = threading.Thread(target=watch, name="memory", daemon=True)
    watcher.start()
    try:
        run()
    finally:
        done.set()
        watcher.join()
    return peak - before


def available_memory(device: torch.device, root: Path = Path("/")) -> int | None:
    """How many bytes this process can still allocate on `device`; None where the system does not say.

    On the CPU what the machine, or a control group around this process, has left is shared among the processes that
    torchrun started on this machine. `root` is where proc and sys are found.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    try:
        lines = (root / "proc/meminfo").read_text().split("\n")
    except OSError:
        return None
    left = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    left += _left_in_control_groups(root)
    return min(left) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if left else None


def missing_moment_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of Adam's two moment estimates for those weights that have none yet: they come with the first update."""
    weights = (weight for group in optimizer.param_groups for weight in group["params"] if weight.requires_grad)
    return sum(2 * weight.numel() * weight.element_size() for weight in weights if not optimizer.state.get(weight))


def checkpoint_copy_bytes(model: nn.Module, averages: int, device: torch.device) -> int:
    """Bytes that a save of a checkpoint takes for a while on `device`, beside what training has there; 0 on a GPU.

    A save copies the weights, Adam's two moments and the moving averages to the host. Then it serializes one after the
    other, the moments being the largest, for which safetensors holds every byte twice.
    """
    weights = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    return 0 if device.type == "cuda" else weights * (1 + 2 + averages + 2 * 2)


@dataclass(frozen=True)
class MemoryProbe:
    """Finds out which micro-batch budgets fit into memory; model, gradients and random states stay as they are.

    loss:       the model and its loss, on their device and not wrapped for several processes
    plan:       of any epoch; its own budget does not matter
    precision:  what the model computes in
    reserve:    bytes that training will allocate besides, such as the optimizer state; the weights
                are there already, and their gradients are part of every step that is tried
    shape:      the shape that all micro-batches have under a budget; None where each is as large as its sentences are
    available, measure: how memory is found out; only tests have others

    All processes must ask together, and all get the same answer: that of the one with the least memory.
    """

    loss: TrainingLoss
    plan: EpochPlan
    world: World
    precision: Arithmetic
    reserve: int
    shape: Callable[[int], BatchShape] | None = None
    available: Callable[[torch.device], int | None] = available_memory
    measure: Callable[[Callable[[], None], torch.device], int] = peak_memory

    def require(self, budget: int) -> None:
        """Raise UserError, which names a budget that would do, unless the heaviest step of `budget` fits."""
        if not self.world.max(int(not self._fits(budget, margin=0.0))):
            return
        longest = 1 + int(max(self.plan.src_lengths.max(), self.plan.tgt_lengths.max()))
        best = self._largest(range(_round_up(longest), budget, BUDGET_STEP))
        self._require_some(best, longest)
        raise UserError(
            f"a step with train.micro_batch_tokens={budget} does not fit into the memory of {self._device}; "
            f"it must be at most {best}; set it to that{self._or_recompute}"
        )

    def largest_budget(self, at_least: int) -> int:
        """The most tokens that fit into memory with a margin of a tenth: a multiple of 256.

        at_least: the tokens of the longest sentence; UserError where not even these fit
        Not more than what splits an update into as few micro-batches as it may have, and on a CPU not more than what is
        fast.
        """
        first = _round_up(at_least)
        most = _round_up(_largest_part(self.plan))
        if self._device.type == "cpu":
            most = min(most, LARGEST_ON_CPU)
        best = self._largest(range(first, max(first, most) + 1, BUDGET_STEP))
        self._require_some(best, at_least)
        return best

    def _largest(self, budgets: range) -> int:
        """The largest of some budgets that fits on every process, with the margin; 0 if none does."""
        fitting = bisect_left(budgets, True, key=lambda budget: not self._fits(budget, MARGIN))
        return -self.world.max(-(budgets[fitting - 1] if fitting else 0))

    def _require_some(self, best: int, longest: int) -> None:
        if not best:
            raise UserError(
                f"no micro-batch that holds a sentence of {longest} tokens fits into the memory of {self._device}; one "
                f"must; lower data.max_tokens or choose a smaller model{self._or_recompute}"
            )

    def _fits(self, budget: int, margin: float) -> bool:
        """Whether the heaviest step of a budget fits into the memory of this process."""
        available = self.available(self._device)
        if available is None:
            return True
        if self.shape is None:
            shape = heaviest_shape(replace(self.plan, micro_batch_tokens=budget))
        else:
            shape = MicroBatchShape.of_all(self.shape(budget))
        try:
            need = self._estimate(shape) if self._device.type == "cpu" else self._measure(shape.batch())
        except torch.OutOfMemoryError:
            return False
        return need + self.reserve <= available * (1 - margin)

    def _estimate(self, shape: MicroBatchShape) -> float:
        """What a step will need, by a straight line through what one of its pairs does and what up to half of them do.

        Within about a tenth, since how well freed memory is used again varies.
        """
        some = max(2, min(shape.num_sentences // 2, shape.num_sentences * _SAMPLE_TOKENS // shape.tokens))
        self._measure(shape.batch(1))  # libraries keep some memory from their first use on
        small, large = self._measure(shape.batch(1)), self._measure(shape.batch(some))
        return large + max(0, large - small) * (shape.num_sentences - some) / (some - 1)

    def _measure(self, batch: Batch) -> int:
        """What a step needs, gradients included, by running it."""
        devices = [self._device] if self._device.type == "cuda" else []
        was_training = self.loss.training
        self.loss.train().zero_grad(set_to_none=True)
        try:
            with torch.random.fork_rng(devices):
                return self.measure(lambda: self._step(batch), self._device)
        finally:
            self.loss.train(was_training).zero_grad(set_to_none=True)

    def _step(self, batch: Batch) -> None:
        with autocast(self.precision, self._device):
            loss, _ = self.loss(batch.to(self._device))
        loss.backward()

    @property
    def _device(self) -> torch.device:
        return self.world.device

    @property
    def _or_recompute(self) -> str:
        """What to try besides, unless it is done already."""
        return "" if self.loss.model.encoder.recompute else ", or set train.recompute to true"


def fit_micro_batch(wanted: int | Literal["auto"], at_least: int, probe: MemoryProbe) -> int:
    """The budget of a recipe: as it is if it fits into memory, else UserError; for "auto" the largest that fits."""
    if wanted == "auto":
        return probe.largest_budget(at_least)
    probe.require(wanted)
    return wanted


def _round_up(tokens: int) -> int:
    return math.ceil(tokens / BUDGET_STEP) * BUDGET_STEP


def _lengths(num_sentences: int, total: int, longest: int) -> NDArray[np.int64]:
    """One sentence of length `longest`, or more where that is too little for so much; the others share what is left."""
    first = max(longest, math.ceil(total / num_sentences))
    rest = max(total - first, num_sentences - 1)
    ends = first + np.arange(num_sentences) * rest // max(num_sentences - 1, 1)
    return np.diff(ends, prepend=0)


def _side_tokens(plan: EpochPlan, ids: NDArray[np.integer]) -> tuple[int, int]:
    """Source and target tokens of some pairs, end tokens included."""
    return int(plan.src_lengths[ids].sum()) + len(ids), int(plan.tgt_lengths[ids].sum()) + len(ids)


def _largest_update(plan: EpochPlan) -> int:
    """The most tokens that an update has on either side, of those that are looked at."""
    return max(max(_side_tokens(plan, plan.sentences(u))) for u in range(min(len(plan), _UPDATES_LOOKED_AT)))


def _largest_part(plan: EpochPlan) -> int:
    """The most tokens that a micro-batch has on either side where an update has no more than it must have."""
    largest = _largest_update(plan)
    if plan.multiple == 1:
        return largest
    uneven = int(max(plan.src_lengths.max(), plan.tgt_lengths.max())) + 1  # parts differ by less than a sentence
    return min(largest, math.ceil(largest / plan.multiple) + uneven)


def _hand_back_freed_memory() -> None:
    """Give the system what glibc keeps of freed memory; else what is measured next could use that and not grow."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _resident_memory() -> int:
    """Bytes of this process that lie in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _left_in_control_groups(root: Path) -> list[int]:
    """What each control group around this process, of version 1 or 2, has left of its limit; page cache is left too."""
    membership = root / "proc/self/cgroup"
    left: list[int] = []
    for line in membership.read_text().split("\n")[:-1] if membership.exists() else []:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # In a container the path may be that outside of it; what is there is then at the base.
        group = base / path.lstrip("/")
        for folder in [group, *group.parents]:
            if folder.is_relative_to(base):
                left += _left_in_control_group(folder, *names)
    return left


def _left_in_control_group(folder: Path, limit: str, usage: str, cache: str) -> list[int]:
    """The same for one group; nothing where it has no limit."""
    try:
        most, used = (folder / limit).read_text().strip(), int((folder / usage).read_text())
        statistics = dict(line.split(" ", 1) for line in (folder / "memory.stat").read_text().split("\n")[:-1])
    except OSError:
        return []
    return [] if most == "max" else [int(most) - used + int(statistics.get(cache, 0))]
