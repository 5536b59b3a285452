"""Command line of `tools/torture`: runs the cases, shows progress, and prints a table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from nmt.logs import format_duration
from torture_cases.damage import damaged_checkpoint, malicious_pickles
from torture_cases.interruptions import disk_full, kill_at_file_operations, kill_at_random_moments, stop_and_resume
from torture_cases.multi_process import (
    different_views,
    lost_process,
    process_counts,
    same_run_twice,
    terminated_process,
)
from torture_cases.sandbox import Case, Sandbox, SetupError, Trial
from torture_cases.shared_runs import shared_run
from torture_cases.streams import odd_streams

CASES = (
    Case("kill", "SIGKILL at random times during `nmt run`: restarts, bit-identical", 180, kill_at_random_moments),
    Case("save", "SIGKILL at every file operation of a save: restarts, bit-identical", 240, kill_at_file_operations),
    Case("full", "disk full at every write of a save: one-line error, earlier checkpoint intact", 120, disk_full),
    Case("stop", "stopped by signals and resumed 1, 3 and 10 times: bit-identical", 30, stop_and_resume),
    Case("damage", "200 truncations and flipped bits: all detected, resume falls back", 20, damaged_checkpoint),
    Case("pickle", "malicious pickle in place of every loaded file: nothing executed", 70, malicious_pickles),
    Case("twice", "the same run twice: losses and final state equal", 25, same_run_twice),
    Case("shared", "concurrent commands on one run, changed corpus: one-line errors", 25, shared_run),
    Case("streams", "translation to pipes, links, devices, partial output of another model", 25, odd_streams),
    Case("lost", "one of two processes killed or suspended: the job ends and names it", 200, lost_process, True),
    Case("terminate", "SIGTERM to one of two processes: same step, status 143, in 30 s", 150, terminated_process, True),
    Case("views", "checkpoint damaged or missing for one rank: error; for both: fallback", 60, different_views, True),
    Case("sizes", "1, 2 and 4 processes: losses within 1e-6", 100, process_counts, True),
)

# Approximate duration of a case with --quick.
QUICK_SECONDS = 4.0

SECONDS_BETWEEN_LINES = 15.0

EXAMPLES = """\
examples:
  tools/torture                       all cases, about 20 minutes on two cores
  tools/torture --only save           one case; --only is repeatable
  tools/torture --quick               single-process cases with fewer trials, half a minute
  tools/torture --out torture.jsonl   append a line of JSON per case

Each trial runs `nmt` on a small corpus, with dropout, gradient accumulation, EMA and subword sampling. "Bit-identical"
means that weights, optimizer state, averages, train state and all metrics equal those of a fault-free run. Most
commands are forks of this process, to save import time; some are new interpreters, and jobs of several processes are
started by torchrun. Needs Linux.

exit status: 0 all passed, 1 a trial failed (its folder is kept), 2 invalid command line

cases:
"""


@dataclass
class _Result:
    """Result of a case."""

    case: Case
    seconds: float = 0.0
    passed: int = 0
    problems: list[str] = field(default_factory=list)
    measured: dict[str, float] = field(default_factory=dict)

    @property
    def trials(self) -> int:
        return self.passed + len(self.problems)

    def add(self, trial: Trial) -> None:
        if trial.problem is None:
            self.passed += 1
            if trial.run is not None:
                shutil.rmtree(trial.run)
        else:
            where = f" ({trial.run})" if trial.run is not None else ""
            self.problems.append(f"{trial.name}: {trial.problem}{where}")
        for name, value in trial.measured.items():
            self.measured[name] = max(value, self.measured.get(name, value))

    def row(self) -> str:
        measured = ", ".join(f"{name} {value:.4g}" for name, value in self.measured.items())
        cells = (self.case.name, self.case.title, self.trials, self.passed, f"{self.seconds:.0f}", measured)
        return f"| {' | '.join(map(str, cells))} |"

    def record(self, seed: int) -> dict[str, Any]:
        return {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "case": self.case.name,
            "title": self.case.title,
            "trials": self.trials,
            "passed": self.passed,
            "seconds": round(self.seconds, 1),
            "measured": self.measured,
            "problems": self.problems,
            "seed": seed,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cores": len(os.sched_getaffinity(0)),
        }


class _Progress:
    """Progress on stderr: an updated line on a terminal, otherwise occasional lines."""

    def __init__(self, cases: Sequence[Case], quick: bool) -> None:
        self._expected = {case.name: QUICK_SECONDS if quick else case.seconds for case in cases}
        self._left = [case.name for case in cases]
        self._started = self._last = time.monotonic()
        self._is_terminal = sys.stderr.isatty()

    def show(self, result: _Result, *, finished: bool = False) -> None:
        """Show the progress of a case."""
        now = time.monotonic()
        if finished:
            self._left.remove(result.case.name)
        elif not self._is_terminal and now - self._last < SECONDS_BETWEEN_LINES:
            return
        self._last = now
        elapsed = now - self._started
        left = format_duration(self._seconds_left(elapsed, result))
        line = f"torture: {result.case.name}: {result.passed} of {result.trials} trials passed"
        line += f", {format_duration(elapsed)} elapsed, about {left} left"
        self._write(line, keep=finished or not self._is_terminal)

    def _seconds_left(self, elapsed: float, result: _Result) -> float:
        """Scale the expected seconds of the remaining cases by the speed of the finished ones."""
        running = result.seconds if result.case.name in self._left else 0.0
        finished = sum(seconds for name, seconds in self._expected.items() if name not in self._left)
        speed = (elapsed - running) / finished if finished else 1.0
        return max(sum(self._expected[name] for name in self._left) * speed - running, 0.0)

    def problem(self, text: str) -> None:
        """Show a failed trial."""
        self._write(f"torture: FAILED {text}", keep=True)

    def _write(self, line: str, *, keep: bool) -> None:
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r\x1b[K{line if keep else line[:width]}" + ("\n" if keep else ""))
        else:
            sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def main() -> int:
    """Run the selected cases; returns the exit status."""
    options = _read_command_line()
    cases = [case for case in CASES if case.name in options.only] if options.only else list(CASES)
    if options.quick and not options.only:
        cases = [case for case in cases if not case.multi_process]
    folder = Path(tempfile.mkdtemp(prefix="nmt-torture-", dir=options.folder))
    progress, passed = _Progress(cases, options.quick), False
    results: list[_Result] = []
    try:
        with Sandbox(folder, options.seed) as sandbox:
            for case in cases:
                results.append(_run_case(case, sandbox, options.quick, progress))
                if options.out is not None:
                    with options.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(results[-1].record(options.seed)) + "\n")
        passed = all(not result.problems for result in results)
    finally:
        if passed and not options.keep:
            shutil.rmtree(folder)
        else:
            sys.stderr.write(f"torture: kept the working folder {folder}\n")
    sys.stdout.write(_table(results))
    return 0 if passed else 1


def _run_case(case: Case, sandbox: Sandbox, quick: bool, progress: _Progress) -> _Result:
    started, result = time.monotonic(), _Result(case)
    try:
        for trial in case.trials(sandbox, quick):
            result.add(trial)
            result.seconds = time.monotonic() - started
            if trial.problem:
                progress.problem(f"{case.name}: {result.problems[-1]}")
            progress.show(result)
    except SetupError as error:
        result.problems.append(str(error))
        progress.problem(f"{case.name}: {error}")
    except Exception as error:  # the other cases still run
        traceback.print_exc()
        result.problems.append(f"exception in the case: {error!r}")
    if not result.trials:
        result.problems.append("no trials")
    result.seconds = time.monotonic() - started
    progress.show(result, finished=True)
    return result


def _table(results: Sequence[_Result]) -> str:
    lines = ["| case | fault: pass criterion | trials | passed | seconds | measured |", "|---|---|---|---|---|---|"]
    lines += [result.row() for result in results]
    problems = [f"{result.case.name}: {problem}" for result in results for problem in result.problems]
    if problems:
        lines += ["", f"{len(problems)} failed:", *(f"- {problem}" for problem in problems)]
    return "\n".join(lines) + "\n"


def _read_command_line() -> argparse.Namespace:
    known = "\n".join(f"  {case.name:<10} {case.title}" for case in CASES)
    parser = argparse.ArgumentParser(
        prog="tools/torture",
        description="Test that killed, stopped and damaged runs end with the result of a fault-free run.",
        epilog=EXAMPLES + known,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [case.name for case in CASES]
    parser.add_argument(
        "--only", action="append", choices=names, metavar="CASE", help="run only this case; repeatable (see below)"
    )
    parser.add_argument("--quick", action="store_true", help="fewer trials, and no torchrun unless with --only")
    parser.add_argument("--out", type=Path, metavar="FILE", help="append one line of JSON per case to this file")
    parser.add_argument("--seed", type=int, default=1, help="random seed (%(default)s)")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="parent of the working folder (system default)")
    parser.add_argument("--keep", action="store_true", help="keep the working folder even if all passed")
    options = parser.parse_args()
    for folder in (options.folder, None if options.out is None else options.out.absolute().parent):
        if folder is not None and not folder.is_dir():
            parser.error(f"{folder} is not a folder")
    if options.out is not None and options.out.is_dir():
        parser.error(f"--out {options.out} is a folder; it must be a file")
    return options


if __name__ == "__main__":
    sys.exit(main())
