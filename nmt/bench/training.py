"""The speed of training, measured on the trainer itself: its model, loss, optimiser, batches and compilation."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Variable

from nmt.bench.device import DTYPES, LinearRate, measure_linear, peak_memory, reset_peak_memory, synchronize
from nmt.bench.flops import ModelFlops
from nmt.bench.model_specs import ModelSpec
from nmt.bench.statistics import Spread
from nmt.data.loader import Update
from nmt.data.store import PairStore
from nmt.model.attention import choose_kernel
from nmt.model.transformer import Transformer
from nmt.processes.distributed import World
from nmt.train.data import TrainingData
from nmt.train.trainer import Trainer
from nmt.train.update import UpdateResult

STAGES = ("data", "forward", "backward", "update")


@dataclass(frozen=True)
class Repetition:
    """Some updates in a row, on the clock.

    src_tokens, tgt_tokens: what was learned from, end tokens included, padding not
    flops: what the model's arithmetic needs for them; skipped: updates without a finite gradient
    """

    seconds: float
    src_tokens: int
    tgt_tokens: int
    flops: int
    skipped: int


@dataclass(frozen=True)
class Stages:
    """Where the time of some updates goes, with the device waited for after each stage, which makes them slower.

    shares: of `data` (fetching a batch and copying it to the device), `forward` (with the softmax's gradient, which the
            loss computes together with it), `backward` and `update` (norm, clipping and Adam); they sum to 1
    row_padding:       share of the rows of the linear layers that are no token of the corpus
    attention_padding: share of the places inside attention that are none; 0 where its kernel takes packed rows
    """

    shares: dict[str, float]
    row_padding: float
    attention_padding: float


@dataclass(frozen=True)
class TrainingResult:
    """All that was measured; rates are per second, memory is in bytes.

    setup_seconds: building model and optimiser, and finding out whether the largest micro-batch fits
    warm_up_seconds: of the updates before the clock ran, the first of them alone with what was compiled for it
    compiled_while_timed: graphs that torch.compile still had to make while the clock ran; should be 0
    linear: how fast `F.linear` is at the model's shapes
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
    share_of_linear: float
    share_of_best_linear: float
    stages: Stages
    peak_memory: int
    skipped: int
    compiled_while_timed: int


class TrainingBench:
    """A trainer on one corpus, ready to be timed. Use it as a context manager, or call `close`."""

    def __init__(self, spec: ModelSpec, world: World, store: PairStore) -> None:
        """`spec.recipe.run_dir` must be a folder that is empty or not there; nothing is written to it."""
        started = perf_counter()
        full_dropout = spec.recipe.train.model_copy(update={"dropout_ramp_steps": 0})  # as in most of a run
        recipe = spec.recipe.model_copy(update={"train": full_dropout})
        self._world, self._store = world, store
        torch.manual_seed(recipe.seed)
        model = Transformer(recipe.model, spec.src_vocab_size, spec.tgt_vocab_size)
        self.model_flops = ModelFlops.of(recipe.model, spec.tgt_vocab_size)
        self.passes = 2 if recipe.train.rdrop else 1
        self.trainer = Trainer(recipe, world, model, TrainingData(store, store), lambda tensors, step: {})
        self.trainer.loss.train()
        self.micro_batch_tokens = self.trainer.state.micro_batch_tokens
        self._batches = self.trainer.batches()
        self._step = 0
        synchronize(world.device)
        self.setup_seconds = perf_counter() - started

    def __enter__(self) -> TrainingBench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the thread that reads ahead."""
        self._batches.close()

    def run(self, updates: int) -> Repetition:
        """Make so many updates, as training does, with the clock on; waits for the device at both ends alone."""
        device = self._world.device
        self._world.barrier()
        synchronize(device)
        started = perf_counter()
        made = [self._update() for _ in range(updates)]
        synchronize(device)
        seconds = self._world.max(round((perf_counter() - started) * 1e6)) / 1e6  # until the last process is through
        ids = np.concatenate([update.sentence_ids for update, _ in made])
        src, tgt = self._store.src.lengths[ids] + 1, self._store.tgt.lengths[ids] + 1
        flops = self.passes * self.model_flops.training(src, tgt)
        skipped = int(torch.stack([result.skipped for _, result in made]).sum())
        return Repetition(seconds, int(src.sum()), int(tgt.sum()), flops, skipped)

    def stages(self, updates: int) -> Stages:
        """Make so many updates and see where their time goes; see `Stages`."""
        watch = _StageClock(self._world.device)
        made: list[Update] = []
        with _hooks(self.trainer.loss, watch):
            for _ in range(updates):
                watch.start()
                made.append(self._update()[0])
                watch.end("update")
        total = sum(watch.seconds.values())
        shares = {stage: seconds / total for stage, seconds in watch.seconds.items()}
        return Stages(shares, self._row_padding(made), self._attention_padding(made))

    def linear_rate(self) -> LinearRate:
        """How fast `F.linear` is at the shapes of a full micro-batch."""
        rows = min(self.micro_batch_tokens, self.trainer.train_recipe.batch_tokens)
        matmuls = self.model_flops.matmuls(rows, rows)
        return measure_linear(matmuls, self.trainer.update.precision, self._world.device)

    def _update(self) -> tuple[Update, UpdateResult]:
        """One update, as the trainer's own loop makes it."""
        update = next(self._batches)
        self._step += 1
        result = self.trainer.update(update, self._step)
        if self.trainer.average is not None:
            self.trainer.average.update(self._step)
        return update, result

    def _row_padding(self, updates: list[Update]) -> float:
        """Of the first process's micro-batches, which stand for all."""
        counted = [micro for update in updates for micro in update.micro_batches if micro.counts]
        rows = sum(micro.batch.src.total + micro.batch.tgt.total for micro in counted)
        ids = np.concatenate([update.sentence_ids for update in updates])
        tokens = int((self._store.src.lengths[ids] + 1).sum() + (self._store.tgt.lengths[ids] + 1).sum())
        return 1 - tokens / rows if self._world.size == 1 else 0.0

    def _attention_padding(self, updates: list[Update]) -> float:
        model, dtype = self.trainer.model.recipe, DTYPES[self.trainer.update.precision]
        query = torch.empty(0, model.head_width, dtype=dtype, device=self._world.device)
        if choose_kernel(query, model.attention_dropout) == "varlen":
            return 0.0
        micros = [micro for update in updates for micro in update.micro_batches]
        sides = [side for micro in micros for side in (micro.batch.src, micro.batch.tgt)]
        return 1 - sum(side.total for side in sides) / sum(
            side.beside(side, causal=False).queries.tokens.numel() for side in sides
        )


def measure_training(
    spec: ModelSpec, world: World, store: PairStore, *, warm_up: int, updates: int, repetitions: int
) -> TrainingResult:
    """Time `repetitions` of `updates` updates each, after `warm_up` updates that do not count."""
    with TrainingBench(spec, world, store) as bench:
        first = bench.run(1)
        others = bench.run(warm_up - 1) if warm_up > 1 else None
        reset_peak_memory(world.device)
        graphs = _graphs_compiled()
        timed = [bench.run(updates) for _ in range(repetitions)]
        memory, compiled = peak_memory(world.device), _graphs_compiled() - graphs
        stages = bench.stages(updates)
        linear = bench.linear_rate()
        seconds, flops = sum(one.seconds for one in timed), sum(one.flops for one in timed)
        tgt_tokens = sum(one.tgt_tokens for one in timed)
        return TrainingResult(
            parameters=bench.trainer.model.num_parameters(),
            precision=bench.trainer.update.precision,
            micro_batch_tokens=bench.micro_batch_tokens,
            setup_seconds=bench.setup_seconds,
            first_update_seconds=first.seconds,
            warm_up_seconds=first.seconds + (others.seconds if others else 0.0),
            tgt_tokens_per_second=Spread.of([one.tgt_tokens / one.seconds for one in timed]),
            src_tokens_per_tgt_token=sum(one.src_tokens for one in timed) / tgt_tokens,
            flops_per_tgt_token=flops / tgt_tokens,
            flops_per_second=flops / seconds,
            linear=linear,
            share_of_linear=flops / seconds / world.size / linear.mean,
            share_of_best_linear=flops / seconds / world.size / linear.best,
            stages=stages,
            peak_memory=memory,
            skipped=sum(one.skipped for one in timed),
            compiled_while_timed=compiled,
        )


class _StageClock:
    """Adds up the time between one mark and the next, each after waiting for the device."""

    def __init__(self, device: torch.device) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._device = device
        self._last = 0.0

    def start(self) -> None:
        synchronize(self._device)
        self._last = perf_counter()

    def end(self, stage: str) -> None:
        synchronize(self._device)
        now = perf_counter()
        self.seconds[stage] += now - self._last
        self._last = now


@contextmanager
def _hooks(loss: nn.Module, watch: _StageClock) -> Iterator[None]:
    """Marks at the beginning and end of each forward pass, and at the end of each backward pass."""

    def before(module: nn.Module, inputs: Any) -> None:
        watch.end("data")

    def after(module: nn.Module, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
        watch.end("forward")
        output[0].register_hook(await_end)

    def await_end(gradient: Tensor) -> None:
        """Called when the backward pass begins; the engine calls back when it is through."""
        Variable._execution_engine.queue_callback(lambda: watch.end("backward"))

    hooks = [loss.register_forward_pre_hook(before), loss.register_forward_hook(after)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _graphs_compiled() -> int:
    """Graphs that torch.compile has made in this process so far."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])
