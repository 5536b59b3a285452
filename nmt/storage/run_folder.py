"""Layout of run directories, and resolution of user paths to models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nmt.recipe import UserError


def checkpoint_directory(run: Path, step: int) -> Path:
    """Return the directory of a checkpoint; names sort by step."""
    return run / "checkpoints" / f"step-{step:08d}"


def checkpoint_step(directory: Path) -> int:
    """Return the step of a checkpoint."""
    return int(directory.name.removeprefix("step-"))


def list_checkpoints(run: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first, unverified."""
    return sorted(path for path in (run / "checkpoints").glob("step-????????") if path.is_dir())


def find_model(path: Path) -> Path:
    """Resolve a user path to a model directory; raise UserError if there is none.

    A model directory or a checkpoint is returned as it is. For a run, returns its averaged model, or its newest
    checkpoint if there is no averaged model.
    """
    if (path / "model.toml").is_file():
        return path
    if (path / "model" / "model.toml").is_file():
        return path / "model"
    if checkpoints := list_checkpoints(path):
        return checkpoints[-1]
    wrong = "does not exist" if not path.exists() else "has no model"
    raise UserError(f"{path} {wrong}; expected a model directory (with model.toml), a checkpoint or a run directory")


def find_prepared(path: Path) -> Path:
    """Return the directory of the prepared corpus of a run; another path is returned as it is."""
    return path / "data" if (path / "data").is_dir() else path


def find_report(model: Path) -> dict[str, Any] | None:
    """Return the report of the run that contains the averaged model `model`; None for any other model."""
    path = model.resolve().parent / "report.json"
    if model.resolve().name != "model" or not path.is_file():
        return None
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None
    return report if isinstance(report, dict) else None
