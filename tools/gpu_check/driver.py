"""Runs the stages one after the other, each in a process of its own with a limit, and keeps what they find."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.goals import GOALS

from gpu_check.outcome import Check, Outcome, file_name, read_outcome
from gpu_check.packages import ROOT
from gpu_check.settings import Settings

# A stage is ended after so many seconds.
STAGE_SECONDS = 540.0
# With a budget, so many seconds are kept for the table.
_SECONDS_FOR_TABLE = 5.0
_SECONDS_TO_END = 3.0
_SECONDS_WHEN_SMALL = 10.0


@dataclass(frozen=True)
class Stage:
    """A stage; a sub-stage has its stage's name, a colon and its own.

    seconds: what it is expected to take on a GPU, so that a budget need not be spent on a stage that it cannot hold
    """

    name: str
    title: str
    seconds: float

    @property
    def module(self) -> str:
        """The module that does it."""
        return f"gpu_check.{self.name.partition(':')[0]}_stage"

    def is_meant_by(self, name: str) -> bool:
        """Whether a name of the command line means this stage: its own, or that of all sub-stages together."""
        return self.name == name or self.name.startswith(f"{name}:")


GPU_GOALS = tuple(goal for goal in GOALS if goal.name.startswith(("train-gpu-", "decode-gpu-")))
STAGES = (
    Stage("machine", "what the machine is, and its rates of F.linear", 40),
    Stage("tests", "pytest: all tests marked gpu", 240),
    Stage("losses", "200 losses on CPU and GPU in every precision", 240),
    Stage("compile", "train.compile: graphs, gradients, seconds, speed", 240),
    Stage("graphs", "recorded decoder steps: graphs, equality, speed", 120),
    Stage("translate", "trains the quickstart model; translations by precision, batch and beam", 300),
    *(Stage(f"speed:{goal.name}", f"ledger: {goal.text}", 240) for goal in GPU_GOALS),
    Stage("memory", "micro-batches by memory, and too little memory in translation", 180),
)


def chosen_stages(names: Sequence[str]) -> list[Stage]:
    """The stages that names mean, in the order of STAGES; ValueError for a name that means none."""
    for name in names:
        if name != "table" and not any(stage.is_meant_by(name) for stage in STAGES):
            known = ", ".join(dict.fromkeys(stage.name.partition(":")[0] for stage in STAGES))
            raise ValueError(f"{name!r} is no stage; it must be one of {known}, table; see --list")
    return [stage for stage in STAGES if any(stage.is_meant_by(name) for name in names)]


class Driver:
    """Works through stages. Those that are over are not run again, unless `again`.

    limit:  seconds of each stage
    budget: seconds of this whole call, counted from `started`; None for any
    """

    def __init__(
        self, settings: Settings, environment: dict[str, str], limit: float, budget: float | None, started: float
    ) -> None:
        self._settings, self._environment, self._limit = settings, environment, limit
        self._deadline = None if budget is None else started + budget - _SECONDS_FOR_TABLE
        self._results, self._logs = settings.folder("results"), settings.folder("logs")
        self._have_run = 0

    def run(self, stages: Sequence[Stage], again: bool) -> None:
        """Run what is not over yet, as far as the budget reaches."""
        for stage in stages:
            outcome = read_outcome(self._results, stage.name)
            if not again and outcome is not None and outcome.ended != "unfinished":
                continue
            left = self._seconds_left()
            if left <= 0 or (self._have_run and left < self._settings.pick(stage.seconds, _SECONDS_WHEN_SMALL)):
                say(f"{max(left, 0):.0f} s of the budget are left; stopping before {stage.name}; call again to go on")
                return
            self._run(stage, min(self._limit, left))
            self._have_run += 1

    def _seconds_left(self) -> float:
        return float("inf") if self._deadline is None else self._deadline - time.monotonic()

    def _run(self, stage: Stage, seconds: float) -> None:
        """Run one stage in at most so many seconds, and see to it that its outcome says how it ended."""
        say(f"{stage.name}: {stage.title} (at most {seconds:.0f} s)")
        (self._results / file_name(stage.name)).unlink(missing_ok=True)
        log, started = self._logs / file_name(stage.name, ".log"), time.monotonic()
        with log.open("w", encoding="utf-8") as file:
            status = self._wait(stage, file.fileno(), seconds)
        outcome = read_outcome(self._results, stage.name) or Outcome(stage.name)
        if status is None and seconds < self._limit and self._have_run:
            say(f"{stage.name} was cut short by the budget; it is run again in the next call")
            return
        if status is None:
            self._fail(outcome, "over its limit", f"ended after {seconds:.0f} s", seconds)
        elif outcome.ended != "done":
            self._fail(outcome, "failed", f"{_last_line(log)} ({log})", time.monotonic() - started)
        held = sum(check.verdict == "held" for check in outcome.checks)
        wrong = sum(check.verdict == "did not hold" for check in outcome.checks)
        rest = len(outcome.checks) - held - wrong
        say(f"{stage.name}: {outcome.seconds:.0f} s; {held} held, {wrong} did not hold, {rest} not measured")

    def _wait(self, stage: Stage, log: int, seconds: float) -> int | None:
        """The exit status of a stage's process; None where it had to be ended."""
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

    def _fail(self, outcome: Outcome, ended: str, seen: str, seconds: float) -> None:
        outcome.ended = "over its limit" if ended == "over its limit" else "failed"
        outcome.seconds = round(seconds, 1)
        outcome.checks.append(Check("the stage runs to its end", "done", seen, "did not hold"))
        outcome.write(self._results)


def say(text: str) -> None:
    """A line for people."""
    sys.stderr.write(f"gpu-check: {text}\n")
    sys.stderr.flush()


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a stage with all that it has started, first politely."""
    for number, patience in ((signal.SIGTERM, _SECONDS_TO_END), (signal.SIGKILL, 60.0)):
        try:
            os.killpg(process.pid, number)
            process.wait(patience)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").split("\n") if line.strip()]
    return lines[-1][:300] if lines else "it ended without a word"
