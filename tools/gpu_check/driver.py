"""Runs the stages in order, each in its own process with a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from bench.goals import GOALS

from gpu_check.outcome import Check, Outcome, Status, Verdict, file_name, read_outcome
from gpu_check.packages import ROOT
from gpu_check.settings import Settings

# Default time limit of a stage.
STAGE_SECONDS = 540.0
# Part of the budget that is reserved for the table.
_TABLE_SECONDS = 5.0
# Time between SIGTERM and SIGKILL.
_GRACE_SECONDS = 3.0
_SMALL_STAGE_SECONDS = 10.0


@dataclass(frozen=True)
class Stage:
    """A stage. The name of a sub-stage is STAGE:NAME.

    seconds: expected on a GPU; if less of the budget is left, only the first stage of a call starts
    """

    name: str
    title: str
    seconds: float

    @property
    def module(self) -> str:
        """Module of the stage."""
        return f"gpu_check.{self.name.partition(':')[0]}_stage"

    def matches(self, name: str) -> bool:
        """Return whether `name` is the name of this stage or, for a sub-stage, of its parent stage."""
        return self.name == name or self.name.startswith(f"{name}:")


GPU_GOALS = tuple(goal for goal in GOALS if goal.name.startswith(("train-gpu-", "decode-gpu-", "file-gpu-")))
STAGES = (
    Stage("machine", "machine and F.linear rates", 40),
    Stage("tests", "pytest: all tests marked gpu", 240),
    Stage("losses", "losses of 200 updates on CPU and GPU in every precision", 240),
    Stage("compile", "train.compile: graphs, gradients, seconds, speed", 240),
    Stage("graphs", "CUDA graphs of decoder steps: count, equality, speed", 120),
    Stage("translate", "quickstart model: translations by precision, batch and beam size", 300),
    *(Stage(f"speed:{goal.name}", f"ledger: {goal.text}", 240) for goal in GPU_GOALS),
    Stage("memory", "automatic micro-batch size; recovery when translation runs out of memory", 180),
)


def select_stages(names: Sequence[str]) -> list[Stage]:
    """Return the stages with these names, in the order of STAGES; raises ValueError for an unknown name."""
    for name in names:
        if name != "table" and not any(stage.matches(name) for stage in STAGES):
            known = ", ".join(dict.fromkeys(stage.name.partition(":")[0] for stage in STAGES))
            raise ValueError(f"unknown stage {name!r}; it must be one of {known}, table; see --list")
    return [stage for stage in STAGES if any(stage.matches(name) for name in names)]


class Driver:
    """Runs stages. Finished stages are skipped unless `again`.

    limit:  of each stage, in seconds
    budget: of the whole call, in seconds from `started`; None: unlimited
    """

    def __init__(
        self, settings: Settings, environment: dict[str, str], limit: float, budget: float | None, started: float
    ) -> None:
        self._settings, self._environment, self._limit = settings, environment, limit
        self._deadline = None if budget is None else started + budget - _TABLE_SECONDS
        self._results, self._logs = settings.folder("results"), settings.folder("logs")
        self._stages_run = 0

    def run(self, stages: Sequence[Stage], again: bool) -> None:
        """Run stages within the budget."""
        for stage in stages:
            outcome = read_outcome(self._results, stage.name)
            if not again and outcome is not None and outcome.status != "unfinished":
                continue
            left = float("inf") if self._deadline is None else self._deadline - time.monotonic()
            if left <= 0 or (self._stages_run and left < self._settings.pick(stage.seconds, _SMALL_STAGE_SECONDS)):
                advice = "rerun with --stages and the remaining stages" if again else "rerun to resume"
                say(f"{max(left, 0):.0f} s of the budget left; stopping before {stage.name}; {advice}")
                return
            self._run(stage, min(self._limit, left))
            self._stages_run += 1

    def _run(self, stage: Stage, seconds: float) -> None:
        """Run one stage with a time limit and complete its outcome."""
        say(f"{stage.name}: {stage.title} (at most {seconds:.0f} s)")
        (self._results / file_name(stage.name)).unlink(missing_ok=True)
        log, started = self._logs / file_name(stage.name, ".log"), time.monotonic()
        with log.open("w", encoding="utf-8") as file:
            status = self._wait(stage, file.fileno(), seconds)
        outcome = read_outcome(self._results, stage.name) or Outcome(stage.name)
        if status is None and seconds < self._limit and self._stages_run:
            say(f"{stage.name} exceeded the budget; the next call repeats it")
            return
        if status is None:
            self._fail(outcome, "timed out", f"timed out after {seconds:.0f} s", seconds)
        elif outcome.status != "done":
            self._fail(outcome, "failed", f"{_last_line(log)} ({log})", time.monotonic() - started)
        counts = Counter(check.verdict for check in outcome.checks)
        verdicts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in get_args(Verdict))
        say(f"{stage.name}: {outcome.seconds:.0f} s; {verdicts}")

    def _wait(self, stage: Stage, log: int, seconds: float) -> int | None:
        """Return the exit status of a stage's process; None if it timed out."""
        process = subprocess.Popen(
            [sys.executable, "-m", "gpu_check.child", stage.module, stage.name, self._settings.to_json()],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
            env=self._environment,
            start_new_session=True,
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end_group(process)

    def _fail(self, outcome: Outcome, status: Status, reason: str, seconds: float) -> None:
        outcome.status = status
        outcome.seconds = round(seconds, 1)
        outcome.checks.append(Check("the stage completes", "done", reason, "failed"))
        outcome.write(self._results)


def say(text: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(f"gpu-check: {text}\n")
    sys.stderr.flush()


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a stage and all processes it started: SIGTERM, then SIGKILL."""
    for number, seconds in ((signal.SIGTERM, _GRACE_SECONDS), (signal.SIGKILL, 60.0)):
        try:
            os.killpg(process.pid, number)
            process.wait(seconds)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").split("\n") if line.strip()]
    return lines[-1][:300] if lines else "no output"
