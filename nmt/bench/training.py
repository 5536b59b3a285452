"""Training speed, measured on the production trainer."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import islice
from time import perf_counter

import numpy as np
import torch

from nmt.bench.device import LinearRate, measure_linear, peak_memory, reset_peak_memory, synchronize
from nmt.bench.flops import ModelFlops
from nmt.bench.model_specs import ModelSpec
from nmt.bench.statistics import Spread
from nmt.data.loader import Update
from nmt.data.store import PairStore
from nmt.models import build_model
from nmt.processes.distributed import World
from nmt.train.data import TrainingData
from nmt.train.trainer import Trainer


@dataclass(frozen=True)
class Repetition:
    """One timed sequence of updates.

    src_tokens, tgt_tokens: trained tokens, EOS included, padding excluded
    flops:   required by the model for these tokens
    skipped: updates with a non-finite gradient
    """

    seconds: float
    src_tokens: int
    tgt_tokens: int
    flops: int
    skipped: int


@dataclass(frozen=True)
class TrainingResult:
    """Measurements of training. Rates are per second; memory is in bytes. Both are summed over processes.

    setup_seconds:        building the model and optimizer, and checking that the largest micro-batch fits
    first_update_seconds: includes compilation
    warm_up_seconds:      all warm-up updates, the first included
    linear:               speed of `F.linear` at the shapes of the model
    fraction_of_linear, fraction_of_best_linear: FLOP/s of the model per process, as a fraction of the mean and best
                          speed of `F.linear`
    row_padding:          fraction of the rows of linear layers that are padding
    compiled_while_timed: graphs that torch.compile compiled during timing; should be 0
    """

    parameters: int
    precision: str
    micro_batch_tokens: int
    setup_seconds: float
    first_update_seconds: float
    warm_up_seconds: float
    tgt_tokens_per_second: Spread
    src_tokens_per_tgt_token: float
    flops_per_tgt_token: float
    flops_per_second: float
    linear: LinearRate
    fraction_of_linear: float
    fraction_of_best_linear: float
    row_padding: float
    peak_memory: int
    skipped: int
    compiled_while_timed: int


class TrainingBench:
    """A trainer on one corpus. Use it as a context manager, or call `close`."""

    def __init__(self, spec: ModelSpec, world: World, store: PairStore, text: TrainingData | None = None) -> None:
        """Build the trainer. `spec.recipe.run_dir` must be empty or missing; nothing is written to it.

        text: training and validation data with the pairs of `store`; by default, both are `store`, without a mixture
        """
        started = perf_counter()
        # Dropout is measured at its full rate, as in most of a run.
        train = spec.recipe.train.model_copy(update={"dropout_ramp_steps": 0})
        recipe = spec.recipe.model_copy(update={"train": train})
        self._world, self._store = world, store
        torch.manual_seed(recipe.seed)
        model = build_model(recipe.model, spec.src_vocab_size, spec.tgt_vocab_size)
        self.model_flops = ModelFlops(recipe.model, spec.tgt_vocab_size)
        self._passes = 2 if train.rdrop else 1
        text = text or TrainingData(store, store)
        self.trainer = Trainer(recipe, world, model, text, lambda tensors, step: {})
        self.trainer.loss.train()
        self.micro_batch_tokens = self.trainer.state.micro_batch_tokens
        self._batches = self.trainer.batches()
        synchronize(world.device)
        self.setup_seconds = perf_counter() - started

    def __enter__(self) -> TrainingBench:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the prefetching thread."""
        self._batches.close()

    def run(self, updates: int) -> Repetition:
        """Time some updates, synchronizing only before the first and after the last."""
        device = self._world.device
        self._world.barrier()
        synchronize(device)
        started = perf_counter()
        done = [(update, self.trainer.update(update)) for update in islice(self._batches, updates)]
        synchronize(device)
        seconds = self._world.max(round((perf_counter() - started) * 1e6)) / 1e6  # of the slowest rank
        src, tgt = self._lengths([update for update, _ in done])
        skipped = int(torch.stack([result.skipped for _, result in done]).sum())
        flops = self._passes * self.model_flops.training(src, tgt)
        return Repetition(seconds, int(src.sum()), int(tgt.sum()), flops, skipped)

    def row_padding(self, updates: int) -> float:
        """Return the fraction of the rows of linear layers that are padding, over all ranks, in the next updates."""
        unmeasured = list(islice(self._batches, updates))
        micros = [micro for update in unmeasured for micro in update.micro_batches if not micro.is_empty]
        batches = [micro.batch.pad_to_multiple(self.trainer.updater.row_multiple) for micro in micros]
        rows = self._world.sum(torch.tensor(sum(batch.src.total + batch.tgt.total for batch in batches)))
        src, tgt = self._lengths(unmeasured)
        return 1 - (int(src.sum()) + int(tgt.sum())) / int(rows)

    def peak_memory(self) -> int:
        """Return the peak in bytes, summed over all processes."""
        return int(self._world.sum(torch.tensor(peak_memory(self._world.device))))

    def linear_rate(self) -> LinearRate:
        """Measure `F.linear` at the shapes of a full micro-batch."""
        tokens = min(self.micro_batch_tokens, self.trainer.train_recipe.batch_tokens)
        matmuls = self.model_flops.matmuls(tokens, tokens)
        return measure_linear(matmuls, self.trainer.updater.precision, self._world.device)

    def _lengths(self, updates: list[Update]) -> tuple[np.ndarray, np.ndarray]:
        """Return source and target lengths (num_pairs,) over all ranks, EOS included."""
        ids = np.concatenate([update.sentence_ids for update in updates])
        return self._store.src.lengths[ids] + 1, self._store.tgt.lengths[ids] + 1


def measure_training(
    spec: ModelSpec, world: World, store: PairStore, *, warm_up: int, updates: int, repetitions: int
) -> TrainingResult:
    """Time `repetitions` of `updates` updates each, after `warm_up` warm-up updates."""
    with TrainingBench(spec, world, store) as bench:
        first = bench.run(1)
        others = bench.run(warm_up - 1).seconds if warm_up > 1 else 0.0
        reset_peak_memory(world.device)
        graphs = compiled_graphs()
        timed = [bench.run(updates) for _ in range(repetitions)]
        memory = bench.peak_memory()
        compiled = compiled_graphs() - graphs
        row_padding = bench.row_padding(updates)
        linear = bench.linear_rate()
        seconds = sum(repetition.seconds for repetition in timed)
        flops = sum(repetition.flops for repetition in timed)
        tgt_tokens = sum(repetition.tgt_tokens for repetition in timed)
        return TrainingResult(
            parameters=bench.trainer.model.num_parameters(),
            precision=bench.trainer.updater.precision,
            micro_batch_tokens=bench.micro_batch_tokens,
            setup_seconds=bench.setup_seconds,
            first_update_seconds=first.seconds,
            warm_up_seconds=first.seconds + others,
            tgt_tokens_per_second=Spread.of([repetition.tgt_tokens / repetition.seconds for repetition in timed]),
            src_tokens_per_tgt_token=sum(repetition.src_tokens for repetition in timed) / tgt_tokens,
            flops_per_tgt_token=flops / tgt_tokens,
            flops_per_second=flops / seconds,
            linear=linear,
            fraction_of_linear=flops / seconds / world.size / linear.mean,
            fraction_of_best_linear=flops / seconds / world.size / linear.best,
            row_padding=row_padding,
            peak_memory=memory,
            skipped=sum(repetition.skipped for repetition in timed),
            compiled_while_timed=compiled,
        )


def compiled_graphs() -> int:
    """Return the number of graphs that torch.compile has compiled in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])
