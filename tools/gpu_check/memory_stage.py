"""GPU memory: `train.micro_batch_tokens=auto`, its estimate, and behavior when memory runs out."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from gpu_check.outcome import Results
from gpu_check.settings import NO_GPU, Settings
from nmt.bench.inputs import BUILT_IN_LENGTHS, DecodingRequest, prepare_decoding, prepare_training_data
from nmt.bench.model_specs import find_model_spec
from nmt.bench.training import TrainingBench
from nmt.decode.translator import Translator
from nmt.devices.precision import autocast
from nmt.errors import UserError
from nmt.experiments.sweep import merge_overrides
from nmt.processes.device_memory import peak_memory
from nmt.processes.distributed import start_world
from nmt.train.memory import BUDGET_STEP, MicroBatchShape, missing_moment_bytes
from nmt.train.trainer import Trainer

# Limits of peak memory during training relative to the estimate.
_MAX_RATIO, _MIN_RATIO = 1.05, 0.7
_SMALL = ["train.threads=1", "train.batch_tokens=600", "data.max_tokens=100"]


def run(settings: Settings, results: Results, _part: str) -> None:
    """Check training, then translation."""
    _check_auto(settings, results)
    _check_too_large(settings, results)
    _check_translation(settings, results)


def _bench(settings: Settings, folder: Path, *options: str) -> TrainingBench:
    """Create a trainer of the big model; raises UserError if its micro-batches do not fit."""
    given = [f"train.device={settings.device}", "train.precision=bf16", "train.shapes=fixed"]
    vocabulary = settings.pick(None, 200)
    overrides = merge_overrides([*given, *settings.pick([], _SMALL)], options)
    spec = find_model_spec(settings.pick("big", "tiny"), overrides, vocabulary)
    with start_world(settings.device) as world:
        spec, store = prepare_training_data(spec, BUILT_IN_LENGTHS, folder, 12, vocabulary)
        return TrainingBench(spec, world, store)


def _check_auto(settings: Settings, results: Results) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        _bench(settings, Path(folder), "train.micro_batch_tokens=auto") as bench,
    ):
        chosen = bench.micro_batch_tokens
        row = ("train.micro_batch_tokens=auto", f"a multiple of {BUDGET_STEP}")
        results.check(*row, f"{chosen:,}", chosen > 0 and chosen % BUDGET_STEP == 0)
        row = ("peak memory of five updates relative to the estimate", f"{_MIN_RATIO:g} to {_MAX_RATIO:g} times")
        if not settings.on_gpu:
            bench.run(1)
            results.not_measured(*row, NO_GPU)
            return
        estimate = _estimated_bytes(bench.trainer)
        torch.cuda.reset_peak_memory_stats()
        bench.run(5)
        peak, total = torch.cuda.max_memory_allocated(), torch.cuda.get_device_properties(0).total_memory
        actual = f"{peak / estimate:.2f} times: {_gib(peak)}, estimated {_gib(estimate)}, GPU {_gib(total)}"
        results.check(*row, actual, _MIN_RATIO <= peak / estimate <= _MAX_RATIO)


def _estimated_bytes(trainer: Trainer) -> int:
    """Bytes of weights and moments, and of a step with the largest micro-batch."""
    assert trainer.batching.shape is not None
    device = trainer.world.device
    batch = MicroBatchShape.from_batch_shape(trainer.batching.shape).batch().to(device)

    def step() -> None:
        with autocast(trainer.updater.precision, device):
            loss, _ = trainer.loss(batch)
        loss.backward()

    before = torch.cuda.memory_allocated(device)
    need = peak_memory(step, device)
    trainer.loss.zero_grad(set_to_none=True)
    return before + need + missing_moment_bytes(trainer.updater.optimizer)


def _check_too_large(settings: Settings, results: Results) -> None:
    """Check that a micro-batch larger than the memory is rejected before training, with a size that fits."""
    row = ("a micro-batch that is too large", "one-line error with a size that fits")
    if not settings.on_gpu:
        results.not_measured(*row, NO_GPU)
        return
    torch.cuda.empty_cache()
    tokens = 1_500_000  # about 55,000 sentences; above 65,535, the number of sentences is the limit
    try:
        with tempfile.TemporaryDirectory() as folder:
            options = f"train.batch_tokens={tokens}", f"train.micro_batch_tokens={tokens}"
            _bench(settings, Path(folder), *options).close()
        results.check(*row, f"{tokens:,} tokens were accepted", False)
    except UserError as error:
        message = str(error)
        results.check(*row, message, "\n" not in message and re.search(r"at most [1-9]\d+", message) is not None)


def _check_translation(settings: Settings, results: Results) -> None:
    """Check that translation continues with smaller batches if only half of the required memory is available."""
    row = ("translation with too little memory", "recovers, 99% of strings equal")
    with tempfile.TemporaryDirectory() as folder:
        request = DecodingRequest(
            settings.pick("base", "tiny"), None, None, settings.pick(512, 8), settings.pick(None, 60), 20,
            ["batch_tokens=16384"],
        )  # fmt: skip
        directory, decode, lines = prepare_decoding(request, Path(folder))
        translator = Translator.load(directory, settings.device, "fp32", decode)
        if not settings.on_gpu:
            translator.translate(lines)
            results.not_measured(*row, NO_GPU)
            return
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        expected = translator.translate(lines)
        peak = torch.cuda.max_memory_allocated()
        del translator
        torch.cuda.empty_cache()
        translator = Translator.load(directory, settings.device, "fp32", decode)
        failures, translations = _translate_within(translator, lines, before + (peak - before) // 2)
        equal = sum(one == other for one, other in zip(translations, expected, strict=True)) / len(lines)
        actual = f"{equal:.1%} after {failures} failed allocations; {_gib(peak - before)} needed, half available"
        results.check(*row, actual, failures > 0 and equal >= 0.99)


def _translate_within(translator: Translator, lines: Sequence[str], limit: int) -> tuple[int, list[str]]:
    """Translate with a memory limit in bytes; returns the number of failed allocations and the translations."""
    total = torch.cuda.get_device_properties(0).total_memory
    failures = torch.cuda.memory_stats()["num_ooms"]
    torch.cuda.set_per_process_memory_fraction(limit / total)
    try:
        translations = translator.translate(lines)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return torch.cuda.memory_stats()["num_ooms"] - failures, translations


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"
