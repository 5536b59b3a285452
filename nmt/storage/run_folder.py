"""Where a run keeps its checkpoints and its model, and which of them a path given by the user means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nmt.recipe import UserError


def checkpoint_directory(run: Path, step: int) -> Path:
    """Where the checkpoint of an update lies; names sort by step."""
    return run / "checkpoints" / f"step-{step:08d}"


def checkpoint_step(directory: Path) -> int:
    """The update after which a checkpoint was saved."""
    return int(directory.name.removeprefix("step-"))


def list_checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, oldest first, unverified."""
    return sorted(path for path in (run / "checkpoints").glob("step-????????") if path.is_dir())


def find_model(path: Path) -> Path:
    """The model directory that a path given by the user means; UserError where there is none.

    That is the path itself for a model directory or a checkpoint, and for a run its averaged model, or else its newest
    checkpoint.
    """
    if (path / "model.toml").is_file():
        return path
    if (path / "model" / "model.toml").is_file():
        return path / "model"
    if checkpoints := list_checkpoints(path):
        return checkpoints[-1]
    what = "does not exist" if not path.exists() else "holds no model"
    raise UserError(f"{path} {what}; it must be a model directory (with model.toml), a checkpoint or a run directory")


def find_report(model: Path) -> dict[str, Any] | None:
    """The report of the run whose averaged model is in the directory `model`; None for any other model."""
    path = model.resolve().parent / "report.json"
    if model.resolve().name != "model" or not path.is_file():
        return None
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None
    return report if isinstance(report, dict) else None
