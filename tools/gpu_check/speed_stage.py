"""The GPU goals of the ledger. `gpu_check.measured_goals` is imported only to measure one, as it imports torch."""

from __future__ import annotations

import importlib
import shlex
from importlib.util import find_spec

from bench.goals import BY_NAME, Goal

from gpu_check.outcome import Results
from gpu_check.settings import Settings

# A dry run measures one goal of nmt alone, one comparison with random weights, and one of complete commands.
_IN_DRY_RUN = ("train-gpu-big", "decode-gpu-batch32", "file-gpu-float16")


def run(settings: Settings, results: Results, part: str) -> None:
    """Measure one goal."""
    goal = BY_NAME[part]
    row = (goal.text, goal.target_text)
    peer = other_system(goal)
    if peer is not None and find_spec(peer) is None:
        results.not_measured(*row, f"{peer} is not installed")
    elif settings.small and goal.name not in _IN_DRY_RUN:
        results.not_measured(*row, "a dry run measures one goal of each kind")
    else:
        importlib.import_module("gpu_check.measured_goals").measure(settings, results, goal)


def other_system(goal: Goal) -> str | None:
    """Return the system that nmt is compared with, if any. Commands start with `tools/bench/run TASK OURS THEIRS`."""
    words = shlex.split(goal.command)
    return None if words[0] == "nmt" else words[3].partition(":")[0]
