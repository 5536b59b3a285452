"""Command line of `tools/gpu-check`."""

from __future__ import annotations

import argparse
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gpu_check import packages
from gpu_check.driver import STAGE_SECONDS, STAGES, Driver, Stage, say, select_stages
from gpu_check.outcome import Results, read_outcome
from gpu_check.report import SETUP, all_passed, format_report, format_table, outcomes
from gpu_check.settings import Settings

EXAMPLES = """\
examples:
  tools/gpu-check                          run all stages and print the table
  tools/gpu-check --stages losses,speed    run only these, even if finished
  tools/gpu-check --budget-seconds 540     stop within 540 s; the next call resumes
  tools/gpu-check --device cpu --small --out build/dry-run    dry run without a GPU
  tools/gpu-check --report                 print the table of the results so far

Uses NMT_PYTHON (default python3) with its installed torch, and no network. Other missing packages are installed from
--wheels into the output folder; the command that downloads them is printed.

exit status: 0 all measured checks passed, 1 a check failed or none was measured, 2 invalid command line
"""


# A dry run may share its cores with other programs, where spinning OpenMP threads are slow.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit status."""
    started = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the running stage too
    parser = _parser()
    options = parser.parse_args(arguments)
    if not all(0 < seconds < math.inf for seconds in (options.limit, options.budget_seconds) if seconds is not None):
        parser.error("--limit and --budget-seconds must be finite numbers above 0")
    names = None if options.stages is None else options.stages.split(",")
    try:
        stages = list(STAGES) if names is None else select_stages(names)
    except ValueError as error:
        parser.error(str(error))
    for given in (options.wheels, options.data):
        if given is not None and not given.is_dir():
            parser.error(f"{given} is not a folder")
    data = str(options.data.absolute()) if options.data else ""
    settings = Settings(options.device, options.small, str(options.out.absolute()), data)
    results = Path(settings.out) / "results"
    if options.list:
        sys.stdout.write("".join(_list_line(stage, results) for stage in stages))
        return 0
    if not options.report:
        problem = _run(options, settings, stages, again=names is not None, started=started)
        if problem is not None:
            say(problem)
            return 1
    return _finish(settings, results)


def _run(
    options: argparse.Namespace, settings: Settings, stages: Sequence[Stage], *, again: bool, started: float
) -> str | None:
    """Run the stages; returns an error message if none can run."""
    if problem := settings.conflict():
        return problem
    target = Path(settings.out) / "packages"
    environment = _environment(target) | settings.pick({}, _ONE_THREAD)
    _set_up(settings, options.wheels or Path("wheels"), target)
    if "torch" not in packages.installed():
        return "this Python has no torch; set NMT_PYTHON to a Python with torch"
    if settings.on_gpu:
        probe = "import sys, torch; sys.exit(not torch.cuda.is_available())"
        done = subprocess.run([sys.executable, "-c", probe], env=environment, capture_output=True, check=False)
        if done.returncode:
            return "torch finds no GPU; set NMT_PYTHON to a Python whose torch finds one, or try --device cpu --small"
    settings.record()
    Driver(settings, environment, options.limit, options.budget_seconds, started).run(stages, again)
    return None


def _set_up(settings: Settings, wheels: Path, target: Path) -> None:
    """Install the given wheels and record the packages."""
    results = Results(SETUP, settings.folder("results"))
    required = packages.requirements()
    present = {**packages.installed(), **packages.installed([str(target)])}
    if wheels.is_dir() and (problem := packages.install(wheels, target, required, present)):
        say(f"cannot install the wheels in {wheels}: {problem}")
    present |= packages.installed([str(target)])
    lacking = packages.missing(required, present)
    if problem := packages.torch_problem(present):
        say(problem)
    names = ", ".join(map(str, lacking))
    results.check("the packages of pyproject.toml", "all", f"missing: {names}" if names else "all", not lacking)
    results.note(f"Python {sys.version.split()[0]}, torch {present.get('torch')}.")
    commands = packages.download_commands(lacking)
    results.note(f"Download for --wheels ({'missing packages, ' if lacking else ''}other systems):\n")
    results.note("\n".join(["```bash", *commands, "```"]))
    if lacking:
        say(f"missing packages: {names}; download them for --wheels on a machine with a network:")
        sys.stderr.write(f"  {commands[0]}\n")
    results.finish()


def _environment(target: Path) -> dict[str, str]:
    """Environment of the stages: packages of the output folder come first; all systems use this Python."""
    path = [str(target), str(packages.ROOT), str(packages.ROOT / "tools")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*path, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "NMT_BENCH_SHARED": str(target),
        "HF_HUB_OFFLINE": "1",
    }


def _finish(settings: Settings, results: Path) -> int:
    """Write the report and print the table; returns the exit status."""
    found = outcomes(results)
    if not found:
        say(f"{settings.out} has no results; run stages first")
        return 1
    path = Path(settings.out) / "report.md"
    path.write_text(format_report(found), encoding="utf-8")
    sys.stdout.write(format_table(found))
    say(f"report: {path}")
    return 0 if all_passed(found) else 1


def _list_line(stage: Stage, results: Path) -> str:
    outcome = read_outcome(results, stage.name)
    return f"{stage.name:<32} {outcome.status if outcome else 'not run':<15} {stage.title}\n"


def _parser() -> argparse.ArgumentParser:
    parser = _OneLineParser(
        prog="tools/gpu-check",
        description="Run the checks of nmt that need a GPU, and measure the GPU goals of tools/bench/RESULTS.md.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--stages", metavar="NAMES", help="comma-separated stages to run; see --list")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("build/gpu-check"),
        help="output folder (%(default)s)",
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu for a dry run (%(default)s)")
    parser.add_argument("--small", action="store_true", help="tiny sizes, for a dry run")
    parser.add_argument(
        "--wheels", type=Path, metavar="FOLDER", help="wheels to install (default: wheels, if it exists)"
    )
    parser.add_argument(
        "--data", type=Path, metavar="FOLDER", help="raw text for speed comparisons (default: the toy corpus)"
    )
    parser.add_argument("--budget-seconds", type=float, metavar="N", help="end this call within N seconds")
    parser.add_argument("--limit", type=float, default=STAGE_SECONDS, metavar="N", help="seconds per stage (540)")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--list", action="store_true", help="list the stages and their status")
    shown.add_argument("--report", action="store_true", help="only write the report and print the table")
    return parser


class _OneLineParser(argparse.ArgumentParser):
    """Prints one-line errors, without usage."""

    def error(self, message: str) -> None:  # type: ignore[override]
        """Exit with status 2."""
        self.exit(2, f"gpu-check: {message}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
