"""Forecast of a run, made by `nmt plan` and saved in the run directory as `plan.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nmt.logs import say
from nmt.storage.sealed import write_file

FORECAST_FILE = "plan.json"


@dataclass(frozen=True)
class TextForecast:
    """Counts of a run, exact unless the run stops early or samples segmentations.

    train_pairs:            pairs in the prepared corpus
    updates, epochs:        of the whole run; an incomplete epoch counts as a fraction
    updates_in_first_epoch: other epochs may differ by a few
    tgt_tokens:             trained target tokens, EOS included
    """

    train_pairs: int
    updates: int
    epochs: float
    updates_in_first_epoch: int
    tgt_tokens: int


@dataclass(frozen=True)
class WorkForecast:
    """Mean micro-batches per update, and useful fraction of the work, for a number of processes."""

    processes: int
    micro_batches: float
    useful: float


@dataclass(frozen=True)
class SpeedForecast:
    """Measured speed, and the training time at this speed.

    micro_batch_tokens: maximum tokens per side of a micro-batch
    measured_updates:   timed updates
    tgt_tokens_per_second: mean
    seconds, low, high: training time with its 95% confidence interval, without validation
    validations, validation_seconds: number of validations, and their total time without BLEU
    memory, available:  bytes that training needs with the largest micro-batch, and that are available; None if unknown
    """

    device: str
    precision: str
    processes: int
    micro_batch_tokens: int
    measured_updates: int
    tgt_tokens_per_second: float
    seconds: float
    low: float
    high: float
    validations: int
    validation_seconds: float
    memory: int | None
    available: int | None


@dataclass(frozen=True)
class Forecast:
    """Forecast of a run.

    options:    non-default options of the recipe, as TOML
    checkpoint, disk: bytes of a checkpoint, and the maximum for all checkpoints and the averaged model
    disk_free:   bytes of free disk space plus those of the run's existing checkpoints, which `disk` includes
    text, speed: None without prepared text, or without a measurement
    """

    options: str
    parameters: int
    checkpoint: int
    disk: int
    disk_free: int
    text: TextForecast | None = None
    work: tuple[WorkForecast, ...] = ()
    speed: SpeedForecast | None = None


def with_earlier_speed(forecast: Forecast, run_dir: Path) -> Forecast:
    """Return a forecast without a measurement with the speed of the saved one, if options and text are the same."""
    if forecast.speed is not None or (earlier := read_forecast(run_dir)) is None:
        return forecast
    is_same = (earlier.options, earlier.text) == (forecast.options, forecast.text)
    return replace(forecast, speed=earlier.speed) if is_same else forecast


def write_forecast(forecast: Forecast, run_dir: Path) -> Path:
    """Write `plan.json` in a run directory and return its path."""
    path = run_dir / FORECAST_FILE
    write_file(path, (json.dumps(asdict(forecast), indent=1, ensure_ascii=False) + "\n").encode())
    return path


def read_forecast(run_dir: Path) -> Forecast | None:
    """Return the forecast of a run; None if there is none or, with a log line, if it cannot be read."""
    path = run_dir / FORECAST_FILE
    try:
        return _parse(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError):
        say(f"{path} is damaged or from another version of nmt; it is ignored")
        return None


def _parse(tree: Mapping[str, Any]) -> Forecast:
    fields = dict(tree)
    if fields.get("text"):
        fields["text"] = TextForecast(**fields["text"])
    if fields.get("speed"):
        fields["speed"] = SpeedForecast(**fields["speed"])
    fields["work"] = tuple(WorkForecast(**work) for work in fields.get("work", ()))
    return Forecast(**fields)
