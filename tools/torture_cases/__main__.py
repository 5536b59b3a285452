"""The command line of `tools/torture`: runs the cases, shows where it is, and prints the table."""

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
from torture_cases.neighbors import shared_run
from torture_cases.several import any_number_of_processes, lost_process, same_run_twice, terminated_process
from torture_cases.streams import odd_streams
from torture_cases.trial import Case, Trial
from torture_cases.views import different_views
from torture_cases.workshop import Workshop, WorkshopError

CASES = (
    Case("kill", "SIGKILL at random moments of `nmt run`: restarts unaided, same bits", 180, kill_at_random_moments),
    Case(
        "save", "SIGKILL at every file operation of a save: restarts unaided, same bits", 240, kill_at_file_operations
    ),
    Case("full", "disk full at every write of a save: one clear line, earlier checkpoint whole", 120, disk_full),
    Case("stop", "stopped by signals and resumed 1, 3 and 10 times: same bits", 30, stop_and_resume),
    Case("damage", "200 truncations and flipped bits: all found, resume falls back", 20, damaged_checkpoint),
    Case("pickle", "malicious pickle as every file that is loaded: nothing executed", 70, malicious_pickles),
    Case("twice", "the same run twice: all losses and the final state equal", 25, same_run_twice),
    Case(
        "shared", "two commands on one run, and a changed corpus under it: one works, one line refuses", 25, shared_run
    ),
    Case("streams", "translation to pipes, links, devices, a part of another model: kept or refused", 25, odd_streams),
    Case("lost", "one of two processes killed or stopped: job ends and names it", 200, lost_process, is_long=True),
    Case("terminate", "SIGTERM to one of two: same step, 143, in 30 s", 150, terminated_process, is_long=True),
    Case("views", "two processes see different checkpoints: the first decides", 60, different_views, is_long=True),
    Case("sizes", "1, 2 and 4 processes: losses within 1e-6", 100, any_number_of_processes, is_long=True),
)

# A guess of how long a case takes with --quick.
QUICK_SECONDS = 4.0

SECONDS_BETWEEN_PLAIN_LINES = 15.0

EXAMPLES = """\
examples:
  tools/torture                       all cases, up to 20 minutes on two cores
  tools/torture --only save           one case; give --only again for more
  tools/torture --quick               a few trials of each case of one process, half a minute
  tools/torture --out torture.jsonl   adds a line of JSON for every case, to be kept

Each trial is a real `nmt` command on a corpus of a few hundred pairs: dropout, accumulation, moving average and subword
sampling are on. "Same bits" means that weights, optimiser state, averages, position and all metrics are those of an
undisturbed run. To spare the seconds of importing, most commands are forks of this process; some are new interpreters,
and several processes are started by torchrun as anybody would. Needs Linux.

exit status: 0 all passed, 1 something failed (its folder is kept and named), 2 the command line is wrong

cases:
"""


@dataclass
class _Result:
    """What became of a case."""

    case: Case
    seconds: float = 0.0
    passed: int = 0
    problems: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)

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
        for name, value in trial.figures.items():
            self.figures[name] = max(value, self.figures.get(name, value))

    def row(self) -> str:
        figures = ", ".join(f"{name} {value:.4g}" for name, value in self.figures.items())
        return (
            f"| {self.case.name} | {self.case.title} | {self.trials} | {self.passed} | {self.seconds:.0f} | {figures} |"
        )

    def record(self, seed: int) -> dict[str, Any]:
        return {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "case": self.case.name,
            "title": self.case.title,
            "trials": self.trials,
            "passed": self.passed,
            "seconds": round(self.seconds, 1),
            "figures": self.figures,
            "problems": self.problems,
            "seed": seed,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cores": len(os.sched_getaffinity(0)),
        }


class _Display:
    """Where the work is, on stderr: one line that changes on a terminal, elsewhere a line now and then."""

    def __init__(self, cases: Sequence[Case], quick: bool) -> None:
        self._expected = {case.name: QUICK_SECONDS if quick else case.seconds for case in cases}
        self._left = [case.name for case in cases]
        self._started = self._last = time.monotonic()
        self._is_terminal = sys.stderr.isatty()

    def show(self, result: _Result, *, finished: bool = False) -> None:
        """Tell of a case under way, or of its end."""
        now = time.monotonic()
        if finished:
            self._left.remove(result.case.name)
        elif not self._is_terminal and now - self._last < SECONDS_BETWEEN_PLAIN_LINES:
            return
        self._last = now
        gone = now - self._started
        line = f"torture: {result.case.name}: {result.passed} of {result.trials} trials passed"
        line += f", {format_duration(gone)} gone, about {format_duration(self._seconds_left(gone, result))} left"
        self._write(line, stays=finished or not self._is_terminal)

    def _seconds_left(self, gone: float, result: _Result) -> float:
        """Reckons that what is left goes as fast, compared to what is expected, as the cases that are finished."""
        running = result.seconds if result.case.name in self._left else 0.0
        finished = sum(seconds for name, seconds in self._expected.items() if name not in self._left)
        speed = (gone - running) / finished if finished else 1.0
        return max(sum(self._expected[name] for name in self._left) * speed - running, 0.0)

    def problem(self, text: str) -> None:
        """Tell of a trial that failed."""
        self._write(f"torture: FAILED {text}", stays=True)

    def _write(self, line: str, *, stays: bool) -> None:
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r\x1b[K{line if stays else line[:width]}" + ("\n" if stays else ""))
        else:
            sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def main() -> int:
    """Run the chosen cases; the exit status."""
    options = _read_command_line()
    cases = [case for case in CASES if case.name in options.only] if options.only else list(CASES)
    if options.quick and not options.only:
        cases = [case for case in cases if not case.is_long]
    folder = Path(tempfile.mkdtemp(prefix="nmt-torture-", dir=options.folder))
    display, whole = _Display(cases, options.quick), False
    results: list[_Result] = []
    try:
        with Workshop(folder, options.seed) as shop:
            for case in cases:
                results.append(_run_case(case, shop, options.quick, display))
                if options.out is not None:
                    with options.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(results[-1].record(options.seed)) + "\n")
        whole = all(not result.problems for result in results)
    finally:
        if whole and not options.keep:
            shutil.rmtree(folder)
        else:
            sys.stderr.write(f"torture: the runs are in {folder}\n")
    sys.stdout.write(_table(results))
    return 0 if whole else 1


def _run_case(case: Case, shop: Workshop, quick: bool, display: _Display) -> _Result:
    started, result = time.monotonic(), _Result(case)
    try:
        for trial in case.trials(shop, quick):
            result.add(trial)
            result.seconds = time.monotonic() - started
            if trial.problem:
                display.problem(f"{case.name}: {result.problems[-1]}")
            display.show(result)
    except WorkshopError as error:
        result.problems.append(str(error))
        display.problem(f"{case.name}: {error}")
    except Exception as error:  # one broken case must not take the others with it
        traceback.print_exc()
        result.problems.append(f"the case itself broke: {error!r}")
    if not result.trials:
        result.problems.append("nothing was tried")
    result.seconds = time.monotonic() - started
    display.show(result, finished=True)
    return result


def _table(results: Sequence[_Result]) -> str:
    lines = ["| case | passes when | trials | passed | seconds | measured |", "|---|---|---|---|---|---|"]
    lines += [result.row() for result in results]
    problems = [f"{result.case.name}: {problem}" for result in results for problem in result.problems]
    if problems:
        lines += ["", f"{len(problems)} failed:", *(f"- {problem}" for problem in problems)]
    return "\n".join(lines) + "\n"


def _read_command_line() -> argparse.Namespace:
    known = "\n".join(f"  {case.name:<10} {case.title}" for case in CASES)
    parser = argparse.ArgumentParser(
        prog="tools/torture",
        description="Kill, stop and damage training in every way, and prove that it ends as if nothing had happened.",
        epilog=EXAMPLES + known,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [case.name for case in CASES]
    parser.add_argument(
        "--only", action="append", choices=names, metavar="CASE", help="run this case alone (see below)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="few trials; leaves out what needs torchrun, unless --only"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="add one line of JSON for each case to this file")
    parser.add_argument("--seed", type=int, default=1, help="of all that is drawn at random (default: 1)")
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="where the runs lie meanwhile (default: the system's)"
    )
    parser.add_argument("--keep", action="store_true", help="keep the runs even when all passed")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
