"""Translation speed, from text to text, in this process or in several."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from nmt.bench.device import peak_memory, reset_peak_memory, synchronize
from nmt.bench.statistics import Spread
from nmt.decode.translator import Translator
from nmt.devices.precision import choose_precision
from nmt.errors import UserError
from nmt.processes.distributed import choose_device
from nmt.processes.environment import same_import_path
from nmt.recipe import DecodeRecipe, SearchPrecision

# Lines per window: the default maximum of `nmt translate` on a CPU.
WINDOW = 2_048
# Untimed sentences before latency is measured.
_WARM_UP_SENTENCES = 8
_PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True)
class DecodingTask:
    """Model, sentences and search options. `threads` is per process; 0 selects torch's default."""

    model: Path
    sentences: tuple[str, ...]
    decode: DecodeRecipe
    device: str
    precision: SearchPrecision
    threads: int

    def resolved(self) -> DecodingTask:
        """Return the task with the device and the precision that `auto` selects."""
        device = choose_device(self.device)
        precision = choose_precision("auto", device) if self.precision == "auto" else self.precision
        return replace(self, device=str(device), precision=precision)


@dataclass(frozen=True)
class DecodedPass:
    """One translation of all sentences. `tokens` counts those of the best translations, EOS excluded."""

    seconds: float
    tokens: int


@dataclass(frozen=True)
class DecodingResult:
    """Measurements of translation. Rates are per second; memory is in bytes, summed over processes.

    load_seconds, warm_up_seconds: loading the model, and the first pass; excluded from the rates
    tokens:    output tokens per pass, EOS excluded
    latencies: seconds per sentence translated alone: percentiles, mean and maximum; None if not requested
    """

    parameters: int
    load_seconds: float
    warm_up_seconds: float
    sentences: int
    tokens: int
    tokens_per_second: Spread
    sentences_per_second: Spread
    peak_memory: int
    latencies: dict[str, float] | None


class DecodingBench:
    """A translator in this process."""

    def __init__(self, task: DecodingTask) -> None:
        if task.threads:
            torch.set_num_threads(task.threads)
        started = perf_counter()
        self._sentences, self._device = task.sentences, choose_device(task.device)
        self._translator = Translator.load(task.model, task.device, task.precision, task.decode.all_given())
        self.parameters = self._translator.num_parameters
        synchronize(self._device)
        self.load_seconds = perf_counter() - started

    def run(self) -> DecodedPass:
        """Time one translation of all sentences."""
        synchronize(self._device)
        started = perf_counter()
        n_best_lists = list(self._translator.stream(self._sentences, WINDOW))
        seconds = perf_counter() - started  # the results are strings, so the device has finished
        return DecodedPass(seconds, sum(len(n_best[0].pieces) for n_best in n_best_lists))

    def latencies(self) -> list[float]:
        """Time each sentence alone, in seconds, after a warm-up on the first few."""
        for sentence in self._sentences[:_WARM_UP_SENTENCES]:
            self._translator.translate_n_best([sentence])
        seconds = []
        for sentence in self._sentences:
            synchronize(self._device)
            started = perf_counter()
            self._translator.translate_n_best([sentence])
            seconds.append(perf_counter() - started)
        return seconds

    def reset_peak_memory(self) -> None:
        """Reset the peak memory, if the system supports it."""
        reset_peak_memory(self._device)

    def peak_memory(self) -> int:
        """Return the peak memory in bytes."""
        return peak_memory(self._device)


class DecodingProcesses:
    """A translator in each of several processes, all running at the same time. Use it as a context manager.

    parameters:   number of parameters of one copy of the model
    load_seconds: seconds until the last process was ready
    """

    def __init__(self, task: DecodingTask, processes: int) -> None:
        """Start the processes; process i translates every `processes`-th sentence, starting with sentence i."""
        started = perf_counter()
        context = multiprocessing.get_context("spawn")  # forking would lose this process's threads
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(processes):
            ours, theirs = context.Pipe()
            shard = replace(task, sentences=task.sentences[rank::processes])
            process = context.Process(target=_serve, args=(shard, theirs), daemon=True)
            with same_import_path():
                process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self.parameters: int = max(_receive(pipe) for pipe in self._pipes)
        self.load_seconds = perf_counter() - started

    def __enter__(self) -> DecodingProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()  # after an error, it may still be translating
            process.join()

    def run(self) -> DecodedPass:
        """Time one translation of all sentences, until the last process finishes."""
        started = perf_counter()
        passes: list[DecodedPass] = self._call("run")
        return DecodedPass(perf_counter() - started, sum(one.tokens for one in passes))

    def reset_peak_memory(self) -> None:
        """Reset the peak memory, if the system supports it."""
        self._call("reset_peak_memory")

    def peak_memory(self) -> int:
        """Return the peak memory in bytes, summed over processes."""
        return sum(self._call("peak_memory"))

    def _call(self, method: str) -> list[Any]:
        """Call a method of DecodingBench in all processes."""
        for pipe in self._pipes:
            with suppress(OSError):  # `_receive` reports a process that died
                pipe.send(method)
        return [_receive(pipe) for pipe in self._pipes]


def measure_decoding(task: DecodingTask, *, processes: int, repetitions: int, latency: bool) -> DecodingResult:
    """Time `repetitions` passes over the sentences, after a warm-up pass.

    latency: also time each sentence alone; only with one process
    """
    if processes > 1:
        with DecodingProcesses(task, processes) as bench:
            return _measure(bench, task, repetitions)
    single = DecodingBench(task)
    result = _measure(single, task, repetitions)
    return replace(result, latencies=summarize_latencies(single.latencies())) if latency else result


def summarize_latencies(seconds: Sequence[float]) -> dict[str, float]:
    """Return percentiles (linearly interpolated), mean and maximum."""
    summary = {f"p{percent}": float(np.percentile(seconds, percent)) for percent in _PERCENTILES}
    return {**summary, "mean": float(np.mean(seconds)), "max": float(np.max(seconds))}


def _measure(bench: DecodingBench | DecodingProcesses, task: DecodingTask, repetitions: int) -> DecodingResult:
    warm_up = bench.run()
    bench.reset_peak_memory()
    passes = [bench.run() for _ in range(repetitions)]
    return DecodingResult(
        parameters=bench.parameters,
        load_seconds=bench.load_seconds,
        warm_up_seconds=warm_up.seconds,
        sentences=len(task.sentences),
        tokens=passes[0].tokens,
        tokens_per_second=Spread.of([one.tokens / one.seconds for one in passes]),
        sentences_per_second=Spread.of([len(task.sentences) / one.seconds for one in passes]),
        peak_memory=bench.peak_memory(),
        latencies=None,
    )


def _serve(task: DecodingTask, pipe: Connection) -> None:
    """Answer method calls until the pipe closes; an error is sent as its message."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C, and ends its processes
    try:
        bench = DecodingBench(task)
        pipe.send(bench.parameters)
        while True:
            pipe.send(getattr(bench, pipe.recv())())
    except EOFError:
        return
    except UserError as error:
        pipe.send(str(error))


def _receive(pipe: Connection) -> Any:
    try:
        answer = pipe.recv()
    except (EOFError, ConnectionResetError) as error:
        raise UserError("a translation process died, probably out of memory; use fewer processes") from error
    if isinstance(answer, str):
        raise UserError(answer)
    return answer
