"""The speed of translation, measured on the translator itself: from lines of text to lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from nmt.bench.device import peak_memory, reset_peak_memory, synchronize
from nmt.bench.statistics import Spread
from nmt.decode.translator import Translator
from nmt.devices.precision import SearchPrecision
from nmt.processes.distributed import choose_device
from nmt.recipe import DecodeRecipe

# Lines that are translated together, as `nmt translate` does with a file.
WINDOW = 2_048
# Sentences that are translated before the clock runs, when one sentence at a time is measured.
_WARM_UP_SENTENCES = 8
_PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True)
class DecodingTask:
    """What is translated by what. `threads` is of each process; 0 leaves it to torch."""

    model: Path
    sentences: tuple[str, ...]
    decode: DecodeRecipe
    device: str
    precision: SearchPrecision
    threads: int


@dataclass(frozen=True)
class DecodedPass:
    """One translation of all sentences: output tokens of the best translations, end tokens not included."""

    seconds: float
    tokens: int


@dataclass(frozen=True)
class DecodingResult:
    """All that was measured; rates are per second, memory is in bytes and of all processes.

    load_seconds:    reading the model, outside the clock; warm_up_seconds: the first pass, outside the clock too
    tokens:          output tokens of a pass, end tokens not included
    latencies:       seconds of sentences translated alone, by percentile, with mean and largest; None if not asked for
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
    """A translator with its sentences, ready to be timed."""

    def __init__(self, task: DecodingTask) -> None:
        if task.threads:
            torch.set_num_threads(task.threads)
        started = perf_counter()
        self._task, self._device = task, choose_device(task.device)
        self.translator = Translator.load(task.model, task.device, task.precision, task.decode.all_given())
        synchronize(self._device)
        self.load_seconds = perf_counter() - started

    def run(self) -> DecodedPass:
        """Translate all sentences, with the clock on."""
        synchronize(self._device)
        started = perf_counter()
        found = list(self.translator.stream(self._task.sentences, WINDOW))
        seconds = perf_counter() - started  # translations are text on the host: nothing is left to wait for
        return DecodedPass(seconds, sum(len(translations[0].pieces) for translations in found))

    def latencies(self) -> list[float]:
        """Seconds that each sentence takes when it is translated alone; the first ones are translated twice."""
        for sentence in self._task.sentences[:_WARM_UP_SENTENCES]:
            self.translator.translate_n_best([sentence])
        return [self._latency(sentence) for sentence in self._task.sentences]

    def _latency(self, sentence: str) -> float:
        synchronize(self._device)
        started = perf_counter()
        self.translator.translate_n_best([sentence])
        return perf_counter() - started

    def reset_peak_memory(self) -> None:
        """Count memory from here on, where that can be."""
        reset_peak_memory(self._device)

    def peak_memory(self) -> int:
        """Most bytes so far."""
        return peak_memory(self._device)

    @property
    def parameters(self) -> int:
        """Number of weights of the model."""
        return self.translator.num_parameters


def summarize_latencies(seconds: Sequence[float]) -> dict[str, float]:
    """Percentiles (interpolated linearly), mean and largest."""
    summary = {f"p{percent}": float(np.percentile(seconds, percent)) for percent in _PERCENTILES}
    return {**summary, "mean": float(np.mean(seconds)), "max": float(np.max(seconds))}
