"""Translation speed, from text to text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from nmt.bench.device import peak_memory, reset_peak_memory, synchronize
from nmt.bench.statistics import Spread
from nmt.decode.translator import Translator
from nmt.devices.precision import choose_precision
from nmt.processes.distributed import choose_device
from nmt.recipe import DecodeRecipe, SearchPrecision

# Lines per window: the default maximum of `nmt translate` on a CPU.
WINDOW = 2_048
# Untimed sentences before latency is measured.
_WARM_UP_SENTENCES = 8
_PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True)
class DecodingTask:
    """Model, sentences and search options. threads: 0 selects torch's default"""

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
    """Measurements of translation. Rates are per second; memory is in bytes.

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


def measure_decoding(task: DecodingTask, *, repetitions: int, latency: bool) -> DecodingResult:
    """Time `repetitions` passes over the sentences, after a warm-up pass. latency: also time each sentence alone"""
    bench, device = DecodingBench(task), choose_device(task.device)
    warm_up = bench.run()
    reset_peak_memory(device)
    passes = [bench.run() for _ in range(repetitions)]
    return DecodingResult(
        parameters=bench.parameters,
        load_seconds=bench.load_seconds,
        warm_up_seconds=warm_up.seconds,
        sentences=len(task.sentences),
        tokens=passes[0].tokens,
        tokens_per_second=Spread.of([one.tokens / one.seconds for one in passes]),
        sentences_per_second=Spread.of([len(task.sentences) / one.seconds for one in passes]),
        peak_memory=peak_memory(device),
        latencies=summarize_latencies(bench.latencies()) if latency else None,
    )


def summarize_latencies(seconds: Sequence[float]) -> dict[str, float]:
    """Return percentiles (linearly interpolated), mean and maximum."""
    summary = {f"p{percent}": float(np.percentile(seconds, percent)) for percent in _PERCENTILES}
    return {**summary, "mean": float(np.mean(seconds)), "max": float(np.max(seconds))}
