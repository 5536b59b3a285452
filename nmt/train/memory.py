"""Micro-batch size and memory: before training, run the largest micro-batch that a token budget allows.

On a GPU this runs the full micro-batch. On a CPU, where one that exceeds the memory could disrupt the whole machine, it
runs two smaller ones and extrapolates their memory linearly.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from nmt.data.epoch_plan import EpochPlan
from nmt.devices.memory import is_out_of_memory
from nmt.devices.precision import ComputeType, autocast
from nmt.errors import UserError
from nmt.packing.packed import Batch, BatchShape, PackedSequences
from nmt.packing.padding import row_width
from nmt.processes.device_memory import available_memory, peak_memory
from nmt.processes.distributed import World
from nmt.special_ids import BOS_ID, EOS_ID
from nmt.train.loss import TrainingLoss
from nmt.train.optimizer import Adam

# `auto` selects a multiple of this.
BUDGET_STEP = 256
# Larger micro-batches are no faster on a CPU: the activations of a layer exceed the cache.
LARGEST_ON_CPU = 4_096
# Fraction of the memory that `auto` leaves free for fragmentation and other processes.
MARGIN = 0.1

# Approximate maximum tokens of a trial micro-batch on a CPU.
_SAMPLE_TOKENS = 2_048
# CUDA limits the y and z dimensions of a grid to this many blocks; attention kernels use one per sentence.
_MAX_SENTENCES = 65_535
# Updates are random samples of the corpus, so a few show which lengths occur together.
_MAX_SAMPLED_UPDATES = 64


@dataclass(frozen=True)
class MicroBatchShape:
    """Sizes that determine the memory of a micro-batch.

    num_sentences:            sentence pairs
    tokens:                   tokens of each side
    src_longest, tgt_longest: tokens of the longest sentence of each side, which determines the width of padded rows
    """

    num_sentences: int
    tokens: int
    src_longest: int
    tgt_longest: int

    @classmethod
    def from_batch_shape(cls, shape: BatchShape) -> MicroBatchShape:
        """Return the sizes of micro-batches padded to `shape`."""
        tokens = max(shape.src_tokens, shape.tgt_tokens)
        return cls(shape.num_sentences, tokens, shape.max_length, shape.max_length)

    def attention_size(self) -> int:
        """Return the approximate number of attention weights per head: encoder, decoder and cross-attention."""
        src, tgt = row_width(self.src_longest), row_width(self.tgt_longest)
        return self.tokens * (src + tgt + max(src, tgt))

    def batch(self, part: int | None = None) -> Batch:
        """Build a micro-batch of dummy tokens, or only its first `part` pairs, which include the longest.

        Each additional pair needs the same memory.
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
    """Return an approximate upper bound on the size of micro-batches under the budget of `plan`, in any epoch.

    Each side has the maximum number of tokens: the budget, or an equal part of the largest update if that is less.
    Attention on padded rows needs memory proportional to tokens * longest. The pairs of a micro-batch have similar
    target lengths, but one source may be long. Therefore assume that each micro-batch of a few sampled updates contains
    the longest source among pairs with its target lengths. Does not account for longer sentences from subword sampling.
    """
    tokens = min(plan.micro_batch_tokens, _largest_part(plan))
    longest_src = np.zeros(int(plan.tgt_lengths.max()) + 1, dtype=np.int64)  # by target length
    np.maximum.at(longest_src, plan.tgt_lengths, plan.src_lengths)
    shapes = []
    for update in range(max(1, min(len(plan) - 1, _MAX_SAMPLED_UPDATES))):
        bands = plan.bands(update)
        # In other epochs, a target length between two bands may belong to either.
        shortest_tgt = [int(plan.tgt_lengths[np.concatenate(band)].min()) for band in bands[1:]]
        tgt_ranges = pairwise([0, *shortest_tgt, len(longest_src) - 1])
        for band, (low, high) in zip(bands, tgt_ranges, strict=True):
            src_longest, tgt_longest = int(longest_src[low : high + 1].max()) + 1, high + 1
            for ids in band:
                if len(ids) == 0:
                    continue
                src_tokens, tgt_tokens = _side_tokens(plan, ids)
                others = min((tokens - src_longest) / src_tokens, (tokens - tgt_longest) / tgt_tokens) * len(ids)
                num_sentences = 1 + max(0, math.ceil(others))
                shapes.append(MicroBatchShape(num_sentences, tokens, src_longest, tgt_longest))
    return max(shapes, key=MicroBatchShape.attention_size)


def missing_moment_bytes(optimizer: Adam) -> int:
    """Return the bytes of Adam's two moments that the first update will allocate."""
    parameters = (p for group in optimizer.param_groups for p in group["params"] if p.requires_grad)
    return sum(2 * p.numel() * p.element_size() for p in parameters if not optimizer.state.get(p))


def checkpoint_copy_bytes(model: nn.Module, averages: int, device: torch.device) -> int:
    """Return the bytes that writing a checkpoint temporarily needs on `device`; 0 on a GPU.

    A checkpoint copies parameters, Adam's two moments and the averages to the host, and serializes one file at a time;
    safetensors holds the largest file, the moments, in memory twice.
    """
    parameters = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return 0 if device.type == "cuda" else parameters * (1 + 2 + averages + 2 * 2)


@dataclass(frozen=True)
class MemoryProbe:
    """Measures which micro-batch budgets fit into memory. Clears gradients; parameters and random states are unchanged.

    All processes must call it together and get the same result: that of the process with the least memory.

    loss:       model and loss on their device, without DDP
    plan:       plan of any epoch; its budget is ignored
    reserve:    bytes that training allocates in addition, such as the optimizer state. Excludes the weights, which
                exist already, and their gradients, which each measurement includes
    shape:      returns the shape of all micro-batches under a budget; None if shapes vary
    available, measure: replaced in tests
    """

    loss: TrainingLoss
    plan: EpochPlan
    world: World
    precision: ComputeType
    reserve: int
    shape: Callable[[int], BatchShape] | None = None
    available: Callable[[torch.device], int | None] = available_memory
    measure: Callable[[Callable[[], None], torch.device], int] = peak_memory

    def require(self, budget: int, at_least: int) -> None:
        """Raise UserError unless the largest micro-batch under `budget` fits; the message names a budget that does.

        at_least: tokens of the longest possible sentence, the minimum budget
        """
        is_too_large = self.world.max(int(not self._fits(budget, margin=0.0)))  # for any process
        if not is_too_large:
            return
        best = self._largest([at_least, *range(_round_up(at_least + 1), budget, BUDGET_STEP)])
        self._require_fit(best, at_least)
        raise UserError(
            f"a micro-batch with train.micro_batch_tokens={budget} exceeds the memory of {self.world.device}; "
            f"the number must be at most {best}; set it to {best}{self._or_checkpointing}"
        )

    def largest_budget(self, at_least: int) -> int:
        """Return the largest useful multiple of `BUDGET_STEP` that fits with a margin.

        Useful: up to the tokens of an update divided by its minimum number of micro-batches, and on a CPU up to
        `LARGEST_ON_CPU`. Raises UserError unless the smallest multiple of at least `at_least` fits.

        at_least: see `require`
        """
        smallest = _round_up(at_least)
        largest = _round_up(_largest_part(self.plan))
        if self.world.device.type == "cpu":
            largest = min(largest, LARGEST_ON_CPU)
        best = self._largest(range(smallest, max(smallest, largest) + 1, BUDGET_STEP))
        self._require_fit(best, at_least)
        return best

    def _largest(self, budgets: Sequence[int]) -> int:
        """Return the largest of `budgets` that fits on every process with the margin; 0 if none fits."""
        num_fitting = bisect_left(budgets, True, key=lambda budget: not self._fits(budget, MARGIN))
        largest = budgets[num_fitting - 1] if num_fitting else 0
        return -self.world.max(-largest)  # minimum over all processes

    def _require_fit(self, best: int, longest: int) -> None:
        if not best:
            raise UserError(
                f"a micro-batch with a sentence of {longest} tokens exceeds the memory of {self.world.device}; it must "
                f"fit; lower data.max_tokens or choose a smaller model{self._or_checkpointing}"
            )

    def needed(self, budget: int) -> float:
        """Return the bytes that the largest micro-batch of a budget allocates.

        Raises OutOfMemoryError if it does not fit on a GPU, where it is measured in full.
        """
        shape = self._heaviest_shape(budget)
        return self._estimate(shape) if self.world.device.type == "cpu" else self._measure(shape.batch())

    def _heaviest_shape(self, budget: int) -> MicroBatchShape:
        if self.shape is None:
            return heaviest_shape(replace(self.plan, micro_batch_tokens=budget))
        return MicroBatchShape.from_batch_shape(self.shape(budget))

    def _fits(self, budget: int, margin: float) -> bool:
        """Return whether the largest micro-batch under a budget fits into the memory of this process."""
        sentences = self._heaviest_shape(budget).num_sentences * (2 if self.loss.rdrop else 1)
        if self.world.device.type == "cuda" and sentences > _MAX_SENTENCES:
            return False
        available = self.available(self.world.device)
        if available is None:
            return True
        try:
            return self.needed(budget) + self.reserve <= available * (1 - margin)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return False

    def _estimate(self, shape: MicroBatchShape) -> float:
        """Extrapolate the memory of a micro-batch from one pair and from up to half of its pairs; error about 10%."""
        part = max(2, min(shape.num_sentences // 2, shape.num_sentences * _SAMPLE_TOKENS // shape.tokens))
        self._measure(shape.batch(1))  # libraries allocate permanent memory on first use
        small, large = self._measure(shape.batch(1)), self._measure(shape.batch(part))
        return large + max(0, large - small) * (shape.num_sentences - part) / (part - 1)

    def _measure(self, batch: Batch) -> int:
        """Return the peak memory of one forward and backward pass, gradients included."""
        devices = [self.world.device] if self.world.device.type == "cuda" else []
        was_training = self.loss.training
        self.loss.train().zero_grad(set_to_none=True)
        try:
            with torch.random.fork_rng(devices):
                return self.measure(lambda: self._step(batch), self.world.device)
        finally:
            self.loss.train(was_training).zero_grad(set_to_none=True)

    def _step(self, batch: Batch) -> None:
        with autocast(self.precision, self.world.device):
            loss, _ = self.loss(batch.to(self.world.device))
        loss.backward()

    @property
    def _or_checkpointing(self) -> str:
        """Activation checkpointing as a remedy in messages, unless it is already set."""
        is_set = self.loss.model.encoder.activation_checkpointing
        return "" if is_set else ", or set train.activation_checkpointing to true"


def _round_up(tokens: int) -> int:
    return math.ceil(tokens / BUDGET_STEP) * BUDGET_STEP


def _lengths(num_sentences: int, total: int, longest: int) -> NDArray[np.int64]:
    """Return one length of at least `longest`, and equal lengths for the remaining tokens."""
    first = max(longest, math.ceil(total / num_sentences))
    rest = max(total - first, num_sentences - 1)
    ends = first + np.arange(num_sentences) * rest // max(num_sentences - 1, 1)
    return np.diff(ends, prepend=0)


def _side_tokens(plan: EpochPlan, ids: NDArray[np.integer]) -> tuple[int, int]:
    """Return source and target tokens of some pairs, EOS included."""
    return int(plan.src_lengths[ids].sum()) + len(ids), int(plan.tgt_lengths[ids].sum()) + len(ids)


def _largest_part(plan: EpochPlan) -> int:
    """Return the maximum tokens of a side of a micro-batch when updates have the minimum number of micro-batches."""
    largest = max(max(_side_tokens(plan, plan.sentences(u))) for u in range(min(len(plan), _MAX_SAMPLED_UPDATES)))
    if plan.multiple == 1:
        return largest
    uneven = int(max(plan.src_lengths.max(), plan.tgt_lengths.max())) + 1  # parts differ by less than a sentence
    return min(largest, math.ceil(largest / plan.multiple) + uneven)
