"""The ledger's GPU goals: which of them can be measured here. How, `gpu_check.measured_goals` says."""

from __future__ import annotations

import importlib
import shlex
from importlib.util import find_spec

from bench.goals import BY_NAME, Goal

from gpu_check.outcome import Results
from gpu_check.settings import Settings

# A dry run measures one goal of each kind: of nmt alone, and against another system.
_IN_DRY_RUN = ("train-gpu-big", "decode-gpu-batch32")


def run(settings: Settings, results: Results, part: str) -> None:
    """Measure one goal."""
    goal = BY_NAME[part]
    row = (goal.text, goal.target_text)
    peer = other_system(goal)
    if peer is not None and find_spec(peer) is None:
        results.not_measured(*row, f"{peer} is not installed")
    elif settings.small and goal.name not in _IN_DRY_RUN:
        results.not_measured(*row, "a dry run measures one goal of each kind")
    else:  # which takes the import of torch
        importlib.import_module("gpu_check.measured_goals").measure(settings, results, goal)


def other_system(goal: Goal) -> str | None:
    """The system that nmt is measured against; None where it is measured alone."""
    words = shlex.split(goal.command)
    return None if words[0] == "nmt" else words[3].partition(":")[0]
