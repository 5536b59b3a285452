"""What a run left behind: read from its files, as anybody could."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from nmt.storage.sealed import CorruptError, verify_directory

# What depends on the speed of the machine, and in how many steps a run was raised to its train.max_steps.
_VARIES = re.compile("second|memory|minute|^changes$")


def metrics(run: Path) -> list[dict[str, float]]:
    """The whole lines of metrics.jsonl, in their order, without what depends on the speed of the machine."""
    path = run / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return [{key: value for key, value in json.loads(line).items() if not _VARIES.search(key)} for line in lines]


def last_step(run: Path) -> int:
    """The newest update that metrics.jsonl tells of; 0 before the first."""
    return max((int(line["step"]) for line in metrics(run)), default=0)


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted((run / "checkpoints").glob("step-????????"))


def step_of(checkpoint: Path) -> int:
    """The update after which a checkpoint was saved."""
    return int(checkpoint.name.removeprefix("step-"))


def newest_step(run: Path) -> int:
    """The step of the newest checkpoint, 0 without one."""
    return max(map(step_of, checkpoints(run)), default=0)


def broken_checkpoints(run: Path) -> list[str]:
    """The checkpoints that look whole by their names but do not verify."""
    return [path.name for path in checkpoints(run) if not verifies(path)]


def verifies(directory: Path) -> bool:
    """Whether `nmt` takes the files of a directory for what its manifest says."""
    try:
        verify_directory(directory)
    except CorruptError:
        return False
    return True


def state(checkpoint: Path) -> Any:
    """The state of a checkpoint without what may differ between runs that are the same to the bit."""
    return _without_varying(json.loads((checkpoint / "state.json").read_bytes()))


def _without_varying(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _without_varying(value) for key, value in tree.items() if not _VARIES.search(key)}
    return tree


def repeated(run: Path, save_every: int) -> tuple[int, str | None]:
    """How many updates a run that was killed will do again, and what is wrong with that, if anything.

    At most one save interval may be repeated. Training goes on while a checkpoint is written; the updates since then
    count only if that save is not there in its unfinished form.
    """
    replaced = [_step_in(path.name) for path in (run / "checkpoints").glob(".step-*.replaced")]  # which will come back
    reached, saved = last_step(run), max(newest_step(run), *replaced, 0)
    again = max(0, reached - saved)
    unfinished = [path.name for path in (run / "checkpoints").glob(".step-*") if _step_in(path.name) > saved]
    if again <= save_every or (again < 2 * save_every and unfinished):
        return again, None
    return again, f"{again} updates are lost: it had come to {reached}, and the newest checkpoint is of {saved}"


def _step_in(name: str) -> int:
    return int(found[1]) if (found := re.search(r"step-(\d{8})", name)) else 0


def differences(run: Path, reference: Path) -> list[str]:
    """In what the end of a run differs from that of an undisturbed one: empty when all is the same to the bit.

    Compared are the tensors and the state of the newest checkpoint, all metrics, the averaged model, the translations.
    """
    ends = [folder[-1] if (folder := checkpoints(each)) else Path(each / "no checkpoint") for each in (run, reference)]
    if ends[0].name != ends[1].name:
        return [f"it ends with {ends[0].name}, not with {ends[1].name}"]
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
    assert names, f"{folder} and {reference} hold nothing to compare"
    return [f"{folder.name}/{name}" for name in names if here.get(name) != there.get(name)]


def _different_metrics(here: list[dict[str, float]], there: list[dict[str, float]]) -> list[str]:
    if here == there:
        return []
    for mine, theirs in zip(here, there, strict=False):
        if mine != theirs:
            return [f"metrics.jsonl from step {int(mine['step'])} ({mine} instead of {theirs})"]
    return [f"metrics.jsonl ({len(here)} lines instead of {len(there)})"]


def farthest_losses(run: Path, reference: Path) -> tuple[float, str | None]:
    """The largest relative difference of any loss between two runs, and what is missing in one of them, if anything."""
    here, there = _losses(run), _losses(reference)
    if here.keys() != there.keys():
        return math.inf, f"losses of other steps: {len(here)} instead of {len(there)}"
    return max(abs(here[key] - there[key]) / abs(there[key]) for key in there), None


def _losses(run: Path) -> dict[tuple[int, str], float]:
    return {(int(line["step"]), key): line[key] for line in metrics(run) for key in line if key.endswith("loss")}
