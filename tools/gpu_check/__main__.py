"""The command line of `tools/gpu-check`."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gpu_check import packages
from gpu_check.driver import STAGE_SECONDS, STAGES, Driver, Stage, chosen_stages, say
from gpu_check.outcome import Outcome, Results, read_outcome
from gpu_check.report import SETUP, all_held, format_report, format_table, outcomes
from gpu_check.settings import Settings

EXAMPLES = """\
examples:
  tools/gpu-check                          all stages, in order, and the table
  tools/gpu-check --stages losses,speed    these alone, also where they are over already
  tools/gpu-check --budget-seconds 540     stops in time; the next call goes on
  tools/gpu-check --device cpu --small     a dry run without a GPU
  tools/gpu-check --report                 the table of what is known so far

It takes NMT_PYTHON, or else python3, with the torch that is there, and needs no network. What else is missing it
installs from the folder given by --wheels, under the output folder; what to put there, it says.

exit status: 0 all that was measured held, 1 something did not, 2 the command line is wrong
"""


# A dry run shares its cores with whatever else is running; threads that wait for each other would take the most of it.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def main(arguments: Sequence[str]) -> int:
    """Run the command; the exit status."""
    started = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the stage under way is ended too
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.limit <= 0 or (options.budget_seconds is not None and options.budget_seconds <= 0):
        parser.error("--limit and --budget-seconds must be above 0")
    names = [name for name in options.stages.split(",") if name] if options.stages is not None else None
    try:
        stages = list(STAGES) if names is None else chosen_stages(names)
    except ValueError as error:
        parser.error(str(error))
    for given in (options.wheels, options.data):
        if given is not None and not given.is_dir():
            parser.error(f"{given} is no folder; it must be one; give another")
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
    """Run the stages; what stands in the way of all of them, if anything."""
    target = Path(settings.out) / "packages"
    environment = _environment(target) | settings.pick({}, _ONE_THREAD)
    _set_up(settings, options.wheels or Path("wheels"), target)
    if "torch" not in packages.installed():
        return "this Python has no torch; it must have one; set NMT_PYTHON to a Python that does"
    if settings.on_gpu:
        found = "import sys, torch; sys.exit(not torch.cuda.is_available())"
        done = subprocess.run([sys.executable, "-c", found], env=environment, capture_output=True, check=False)
        if done.returncode:
            return (
                "this Python's torch finds no GPU; there must be one; "
                "set NMT_PYTHON to a Python whose torch does, or try --device cpu --small"
            )
    Driver(settings, environment, options.limit, options.budget_seconds, started).run(stages, again)
    return None


def _set_up(settings: Settings, wheels: Path, target: Path) -> None:
    """Install what wheels there are, and note which packages are there."""
    results = Results(SETUP, settings.folder("results"))
    wanted = packages.requirements()
    present = {**packages.installed(), **packages.installed([str(target)])}
    if wheels.is_dir() and (problem := packages.install(wheels, target, wanted, present)):
        say(f"the wheels of {wheels} cannot be installed: {problem}")
    present |= packages.installed([str(target)])
    lacking = packages.missing(wanted, present)
    if problem := packages.torch_problem(present):
        say(problem)
    names = ", ".join(map(str, lacking))
    results.check("the packages of pyproject.toml", "all", f"missing: {names}" if names else "all", not lacking)
    results.note(f"Python {sys.version.split()[0]}, torch {present.get('torch')}.")
    commands = packages.download_commands(lacking)
    results.note(f"Wheels for --wheels, made on a machine with a network ({'missing, ' * bool(lacking)}peers):\n")
    results.note("\n".join(["```bash", *commands, "```"]))
    if lacking:
        say(f"missing here: {names}; make the folder of --wheels where there is a network, by")
        sys.stderr.write(f"  {commands[0]}\n")
    results.end("done")


def _environment(target: Path) -> dict[str, str]:
    """Variables of the stages: packages of the output folder come first, and all systems run in this Python."""
    path = [str(target), str(packages.ROOT), str(packages.ROOT / "tools")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*path, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "NMT_BENCH_SHARED": str(target),
        "HF_HUB_OFFLINE": "1",
    }


def _finish(settings: Settings, results: Path) -> int:
    """Write the report, show the table; the exit status."""
    found = outcomes(results)
    if not found:
        say(f"{settings.out} holds no results; run some stages first")
        return 1
    path = Path(settings.out) / "report.md"
    path.write_text(format_report(found), encoding="utf-8")
    sys.stdout.write(format_table(found))
    say(f"report: {path}")
    return 0 if all_held(found) else 1


def _list_line(stage: Stage, results: Path) -> str:
    outcome: Outcome | None = read_outcome(results, stage.name)
    return f"{stage.name:<32} {outcome.ended if outcome else 'not run':<15} {stage.title}\n"


def _parser() -> argparse.ArgumentParser:
    parser = _OneLineParser(
        prog="tools/gpu-check",
        description="Check on one GPU all that tests on a CPU cannot show, and measure the ledger's GPU goals.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--stages", metavar="NAMES", help="stages to run, by name and with commas between; see --list")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("build/gpu-check"),
        help="folder of state, logs, results and table (%(default)s)",
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu for a dry run (cuda)")
    parser.add_argument("--small", action="store_true", help="tiny sizes, which show that all runs and nothing else")
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="folder of wheels (wheels, if it is there)")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="raw parallel text for the contests (built-in)")
    parser.add_argument(
        "--budget-seconds", type=float, metavar="N", help="end this call before so many seconds are over"
    )
    parser.add_argument(
        "--limit", type=float, default=STAGE_SECONDS, metavar="N", help="seconds after which a stage is ended (540)"
    )
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--list", action="store_true", help="list the stages and what became of them")
    shown.add_argument("--report", action="store_true", help="write the report and print the table, and nothing else")
    return parser


class _OneLineParser(argparse.ArgumentParser):
    """Errors are one line."""

    def error(self, message: str) -> None:  # type: ignore[override]
        """End with status 2."""
        self.exit(2, f"gpu-check: {message}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
