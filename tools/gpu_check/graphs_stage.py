"""Decoder steps captured as CUDA graphs: count, capture time, equality and speedup.

A dry run uses a recorder that calls the step again instead of replaying a graph.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gpu_check.outcome import Results
from gpu_check.settings import NO_GPU, Settings
from nmt.bench.device import synchronize
from nmt.bench.inputs import DecodingRequest, prepare_decoding
from nmt.checkpoint import load_model
from nmt.devices.precision import ComputeType, torch_dtype
from nmt.inference.captured import CapturedModel, EagerRecorder, GraphRecorder, Recorder, Run
from nmt.inference.prepacked import prepack
from nmt.model.transformer import Transformer
from nmt.packing.packed import PackedSequences
from nmt.processes.distributed import choose_device
from nmt.search.beam_search import StepModel, beam_search
from nmt.search.hypothesis import Hypothesis
from nmt.search.options import SearchOptions
from nmt.special_ids import EOS_ID
from nmt.text.tokenizer import Tokenizers

Found = list[list[Hypothesis]]

_NOT_CAPTURED = "the same steps, not captured"

# Maximum relative difference of scores between captured steps and the Transformer, whose matmuls have different shapes
# and therefore sum in a different order.
_SCORE_LIMITS = {"fp32": 1e-5, "bf16": 0.01}


class CountingRecorder:
    """Counts captures, failed captures and their seconds."""

    def __init__(self, inner: Recorder) -> None:
        self._inner = inner
        self.captured = self.failed = 0
        self.seconds = 0.0

    def record(self, run: Run) -> Run:
        """See `Recorder.record`."""
        started = time.perf_counter()
        made = self._inner.record(run)
        self.seconds += time.perf_counter() - started
        self.captured += 1
        self.failed += made is run
        return made

    def clear(self) -> None:
        """See `Recorder.clear`."""
        self._inner.clear()


def run(settings: Settings, results: Results, _part: str) -> None:
    """Search with random weights of the base model, with and without CUDA graphs."""
    with tempfile.TemporaryDirectory() as folder:
        request = DecodingRequest(
            settings.pick("base", "tiny"), None, None, settings.pick(256, 6), settings.pick(None, 60), None, []
        )
        directory, decode, lines = prepare_decoding(request, Path(folder))
        device = choose_device(settings.device)
        batches = _batches(directory, lines, device, size=settings.pick(32, 3))
        options = SearchOptions.from_recipe(decode, 250)
        precisions: tuple[ComputeType, ...] = ("fp32", "bf16")
        for precision in precisions:
            model = load_model(directory, device).transformer.to(torch_dtype(precision))
            prepack(model)
            _compare(settings, results, model, batches, options, precision)


def _compare(
    settings: Settings,
    results: Results,
    model: Transformer,
    batches: Sequence[PackedSequences],
    options: SearchOptions,
    precision: str,
) -> None:
    device = batches[0].tokens.device
    recorder = CountingRecorder(GraphRecorder(device) if settings.on_gpu else EagerRecorder())
    captured, plain = CapturedModel(model, recorder), CapturedModel(model, EagerRecorder())
    found: dict[str, Found] = {}
    seconds: dict[str, tuple[float, float]] = {}
    for name, searched in (("captured", captured), (_NOT_CAPTURED, plain), ("Transformer", model)):
        first, _ = _search(searched, batches, options)
        again, found[name] = _search(searched, batches, options)
        seconds[name] = first, again
    tokens = sum(map(_length, found["captured"]))
    rows = [[name, f"{one:.3f}", f"{two:.3f}", f"{tokens / two:,.0f}"] for name, (one, two) in seconds.items()]
    head = ["search", "seconds, first", "seconds, again", "tokens/s, again"]
    results.table(f"{precision}, beam {options.beam_size}, {len(found['captured'])} sentences", head, rows)
    row = (f"{precision}: captured steps", "all shapes that occur three times")
    actual = f"{recorder.captured - recorder.failed} of {recorder.captured} in {recorder.seconds:.2f} s"
    if settings.on_gpu:
        results.check(*row, actual, recorder.captured > 0 and not recorder.failed)
        speedup = seconds[_NOT_CAPTURED][1] / seconds["captured"][1]
        results.check(f"{precision}: captured steps", "faster than eager steps", f"{speedup:.2f} times", speedup > 1)
    else:
        results.not_measured(*row, NO_GPU)
    bits = found["captured"] == found[_NOT_CAPTURED]
    results.check(f"{precision}: replays and the same steps", "bit-identical", "equal" if bits else "differ", bits)
    strings, distance = _agreement(found["captured"], found["Transformer"])
    limit = _SCORE_LIMITS[precision]
    results.check(
        f"{precision}: scores of equal strings, captured and Transformer", f"within {limit:g}", f"{distance:.2g}",
        distance <= limit,
    )  # fmt: skip
    if precision == "fp32":
        results.check("fp32: strings of captured steps and Transformer", "99%", f"{strings:.1%}", strings >= 0.99)


def _search(model: StepModel[Any], batches: Sequence[PackedSequences], options: SearchOptions) -> tuple[float, Found]:
    device = batches[0].tokens.device
    synchronize(device)
    started = time.perf_counter()
    found = [hypotheses for src in batches for hypotheses in beam_search(model, src, options)]
    return time.perf_counter() - started, found


def _agreement(found: Found, expected: Found) -> tuple[float, float]:
    """Fraction of equal best outputs, and the largest relative difference of their scores."""
    pairs = [(one[0], other[0]) for one, other in zip(found, expected, strict=True)]
    equal = [(one, other) for one, other in pairs if one.tokens == other.tokens]
    distance = max((abs(one.score / other.score - 1) for one, other in equal), default=float("inf"))
    return len(equal) / len(pairs), distance


def _length(hypotheses: list[Hypothesis]) -> int:
    return len(hypotheses[0].tokens) + 1


def _batches(directory: Path, lines: Sequence[str], device: torch.device, size: int) -> list[PackedSequences]:
    encode = Tokenizers.load(directory).src.encode
    sentences = sorted(([*encode(line), EOS_ID] for line in lines), key=len)
    parts = [sentences[start : start + size] for start in range(0, len(sentences), size)]
    return [PackedSequences.from_lists(part).to(device) for part in parts]
