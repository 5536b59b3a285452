"""Reads and compares the files of runs."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from nmt.storage.run_folder import checkpoint_step, list_checkpoints
from nmt.storage.sealed import CorruptError, verify_directory

# Keys that depend on the speed of the machine or on changes of train.max_steps.
_VARYING = re.compile("second|memory|minute|^changes$")


def metrics(run: Path) -> list[dict[str, float]]:
    """Complete lines of metrics.jsonl without values that depend on speed."""
    path = run / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return [{key: value for key, value in json.loads(line).items() if not _VARYING.search(key)} for line in lines]


def last_step(run: Path) -> int:
    """Last update in metrics.jsonl, 0 if none."""
    return max((int(line["step"]) for line in metrics(run)), default=0)


def newest_step(run: Path) -> int:
    """Step of the newest checkpoint, 0 if none."""
    return max(map(checkpoint_step, list_checkpoints(run)), default=0)


def corrupt_checkpoints(run: Path) -> list[str]:
    """Names of checkpoints that fail verification."""
    return [path.name for path in list_checkpoints(run) if not verifies(path)]


def verifies(directory: Path) -> bool:
    """Return whether the files of a directory match its manifest."""
    try:
        verify_directory(directory)
    except CorruptError:
        return False
    return True


def state(checkpoint: Path) -> Any:
    """State of a checkpoint without values that differ between identical runs."""
    return _without_varying(json.loads((checkpoint / "state.json").read_bytes()))


def _without_varying(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _without_varying(value) for key, value in tree.items() if not _VARYING.search(key)}
    return tree


def check_repeated(run: Path, save_every: int) -> tuple[int, str | None]:
    """Return how many updates a killed run will repeat, and a problem if there are too many.

    At most one save interval may be repeated, or two during an unfinished save: training continues while a checkpoint
    is written, and waits for it only before it saves the next.
    """
    replaced = [_step_in(path.name) for path in (run / "checkpoints").glob(".step-*.replaced")]  # restored on resuming
    reached, saved = last_step(run), max(newest_step(run), *replaced, 0)
    again = max(0, reached - saved)
    unfinished = [path.name for path in (run / "checkpoints").glob(".step-*") if _step_in(path.name) > saved]
    if again <= (2 if unfinished else 1) * save_every:
        return again, None
    return again, f"{again} updates are lost: the run was at step {reached}, the newest checkpoint is step {saved}"


def _step_in(name: str) -> int:
    return int(found[1]) if (found := re.search(r"step-(\d{8})", name)) else 0


def differences(run: Path, reference: Path) -> list[str]:
    """List the files in which a finished run differs from the reference; empty if bit-identical.

    Compares tensors and state of the newest checkpoint, all metrics, the averaged model and the translations.
    """
    ends = [(list_checkpoints(each) or [each / "no checkpoint"])[-1] for each in (run, reference)]
    if ends[0].name != ends[1].name:
        return [f"the newest checkpoint is {ends[0].name} instead of {ends[1].name}"]
    found = _different_files(ends[0], ends[1], "*.safetensors")
    found += [] if state(ends[0]) == state(ends[1]) else ["state.json"]
    found += _different_metrics(metrics(run), metrics(reference))
    if (run / "model").exists():
        found += _different_files(run / "model", reference / "model", "*.safetensors")
        found += _different_files(run / "translations", reference / "translations", "*")
    return found


def _different_files(folder: Path, reference: Path, pattern: str) -> list[str]:
    here, there = ({path.name: path.read_bytes() for path in each.glob(pattern)} for each in (folder, reference))
    names = sorted(here.keys() | there.keys())
    assert names, f"{folder} and {reference} have no {pattern} files"
    return [f"{folder.name}/{name}" for name in names if here.get(name) != there.get(name)]


def _different_metrics(here: list[dict[str, float]], there: list[dict[str, float]]) -> list[str]:
    if here == there:
        return []
    for line, expected in zip(here, there, strict=False):
        if line != expected:
            return [f"metrics.jsonl from step {int(line['step'])} ({line} instead of {expected})"]
    return [f"metrics.jsonl ({len(here)} lines instead of {len(there)})"]


def max_loss_difference(run: Path, reference: Path) -> tuple[float, str | None]:
    """Return the largest relative difference of losses, and a problem if the runs logged different steps."""
    here, there = _losses(run), _losses(reference)
    if here.keys() != there.keys():
        return math.inf, f"losses at different steps: {len(here)} instead of {len(there)}"
    return max(abs(here[key] - there[key]) / abs(there[key]) for key in there), None


def _losses(run: Path) -> dict[tuple[int, str], float]:
    return {(int(line["step"]), key): line[key] for line in metrics(run) for key in line if key.endswith("loss")}
