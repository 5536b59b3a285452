"""Training losses on the CPU and on the GPU in every precision.

Batches, initial weights and seed are equal. Without dropout only rounding differs. With dropout the masks differ
between devices, so only means over windows of updates are compared.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from gpu_check.outcome import Results
from gpu_check.quickstart import quickstart_recipe
from gpu_check.settings import NO_GPU, Settings
from nmt.data.prepare import Prepared, prepare
from nmt.processes.distributed import start_world
from nmt.train.trainer import build_trainer

_SHOWN = (1, 2, 5, 10, 20, 50, 100, 150, 200)
_WINDOW = 20
_FIRST = 10


@dataclass(frozen=True)
class Limits:
    """Largest relative distances from the CPU's float32 losses.

    first: each of the first 10 losses; last: mean of the last 20; smooth: with dropout, mean of any 20 in a row
    """

    first: float
    last: float
    smooth: float


# Measured on a CPU (first, last): another attention kernel in float32 1.2e-7 and 0.0016, bf16 6.8e-5 and 0.0018, fp16
# 6.7e-6 (first); other dropout masks in float32 0.007 (smooth). TF32 has as many mantissa bits as fp16 and would fail.
LIMITS = {
    "fp32": Limits(first=2e-6, last=0.01, smooth=0.03),
    "bf16": Limits(first=5e-4, last=0.01, smooth=0.03),
    "fp16": Limits(first=5e-5, last=0.01, smooth=0.03),
}


def run(settings: Settings, results: Results, _part: str) -> None:
    """Train in all precisions and compare."""
    prepared = prepare(quickstart_recipe(settings))
    results.note(
        f"float32 matmul precision: {torch.get_float32_matmul_precision()!r} ('highest' is without TF32); "
        f"cuDNN TF32, unused here: {torch.backends.cudnn.allow_tf32}.\n"
    )
    curves: dict[str, dict[str, list[float]]] = {}
    for dropout in (0.0, 0.1):
        of_dropout = curves[f"{dropout:g}"] = {}
        for device, precision in _variants(settings):
            losses = training_losses(settings, prepared, device, precision, dropout)
            of_dropout[f"{device} {precision}"] = losses
            _write(settings, curves)
            if not settings.small:
                _check_learning(results, f"{device} {precision}, dropout {dropout:g}", losses)
        _compare(settings, results, of_dropout, dropout)
        _show(results, of_dropout, dropout)
    results.note(_draw(curves, settings.folder("pictures") / "losses.png"))


def _variants(settings: Settings) -> list[tuple[str, str]]:
    others = [(settings.device, precision) for precision in ("fp32", "bf16", "fp16")]
    return list(dict.fromkeys([("cpu", "fp32"), *others]))


def training_losses(settings: Settings, prepared: Prepared, device: str, precision: str, dropout: float) -> list[float]:
    """Loss per target token of each of the first 200 updates."""
    options = [f"run_dir={settings.folder('work') / 'losses'}", f"model.dropout={dropout}"]
    options += [f"train.device={device}", f"train.precision={precision}"]
    recipe = quickstart_recipe(settings, options)
    losses = []
    with start_world(device) as world:
        trainer = build_trainer(recipe, prepared, world)
        trainer.loss.train()
        with trainer.batches() as batches:
            for step in range(1, settings.pick(200, 21) + 1):
                update = next(batches)
                losses.append(trainer.updater(update, step).loss / update.tgt_tokens)
        return [float(value) for value in torch.stack(losses).tolist()]


def _check_learning(results: Results, name: str, losses: Sequence[float]) -> None:
    first, last = losses[0], float(np.mean(losses[-_WINDOW:]))
    passed = all(map(math.isfinite, losses)) and last < 0.7 * first
    results.check(
        f"{name}: loss decreases", "mean of the last 20 below 0.7 of the first", f"{first:.3f} to {last:.3f}", passed
    )


def _compare(settings: Settings, results: Results, curves: dict[str, list[float]], dropout: float) -> None:
    reference = np.array(curves["cpu fp32"])
    for precision, limits in LIMITS.items():
        name = f"{settings.device} {precision}"
        if name == "cpu fp32":
            name = "GPU fp32"
        for what, limit, distance in _distances(limits, reference, curves.get(name), dropout):
            row = (f"{name} and cpu fp32, dropout {dropout:g}: {what}", f"within {limit:g}")
            if distance is None:
                results.not_measured(*row, NO_GPU)
            else:
                results.check(*row, f"{distance:.2g}", distance <= limit)


def _distances(
    limits: Limits, reference: np.ndarray, losses: Sequence[float] | None, dropout: float
) -> list[tuple[str, float, float | None]]:
    """Name, limit and relative distance of each comparison; the distance is None without losses."""

    def distance(select: Callable[[np.ndarray], np.ndarray]) -> float | None:
        if losses is None:
            return None
        largest = float(np.abs(select(np.array(losses)) / select(reference) - 1).max())
        return largest if math.isfinite(largest) else math.inf

    if dropout:
        return [("means of 20", limits.smooth, distance(_smooth))]
    return [
        (f"first {_FIRST} losses", limits.first, distance(lambda curve: curve[:_FIRST])),
        ("mean of the last 20", limits.last, distance(lambda curve: curve[-_WINDOW:].mean(keepdims=True))),
    ]


def _smooth(losses: np.ndarray) -> np.ndarray:
    return np.convolve(losses, np.full(_WINDOW, 1 / _WINDOW), mode="valid")


def _show(results: Results, curves: dict[str, list[float]], dropout: float) -> None:
    length = len(next(iter(curves.values())))
    rows = [[step, *(f"{losses[step - 1]:.6f}" for losses in curves.values())] for step in _SHOWN if step <= length]
    results.table(f"Losses, dropout {dropout:g}", ["update", *curves], rows)


def _write(settings: Settings, curves: dict[str, dict[str, list[float]]]) -> None:
    (settings.folder("results") / "losses-of-each-update.txt").write_text(json.dumps(curves), encoding="utf-8")


def _draw(curves: dict[str, dict[str, list[float]]], path: Path) -> str:
    """Plot the losses if matplotlib is installed; returns a note."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - optional
    except ImportError:
        return "No plot: matplotlib is not installed."
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    for axes, (dropout, of_dropout) in zip(figure.subplots(1, len(curves)), curves.items(), strict=True):
        for name, losses in of_dropout.items():
            axes.plot(range(1, len(losses) + 1), losses, label=name, linewidth=1)
        axes.set(title=f"dropout {dropout}", xlabel="update", ylabel="loss per target token")
        axes.legend()
    figure.savefig(path, dpi=120)
    return f"Curves: {path}"
