"""A command with an optional fault: `python -m torture_cases.child` is `python -m nmt` with a fault.

A new interpreter reads the fault and the log directory from environment variables. Each process writes its process id
to `pid-RANK` at the start, and its exit status and number of optimizer steps to `end-RANK` at the end.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from nmt.cli import program
from torture_cases.faults import Fault, count_updates, install

FAULT, LOG_DIR = "NMT_TORTURE_FAULT", "NMT_TORTURE_LOG_DIR"


def run_nmt(arguments: Sequence[str], fault: Fault | None, log_dir: Path) -> None:
    """Run `nmt` like its console script."""
    rank = int(os.environ.get("RANK", "0"))
    (log_dir / f"pid-{rank}").write_text(str(os.getpid()))
    updates = count_updates()
    if fault is not None and fault.rank == rank:
        install(fault, run_directory(arguments), log_dir)
    sys.argv = ["nmt", *arguments]
    status: object = 1
    try:
        program.main()
        status = 0
    except SystemExit as error:
        status = error.code or 0
        raise
    finally:
        with (log_dir / f"end-{rank}").open("w") as file:
            json.dump({"status": status, "updates": updates()}, file)


def run_directory(arguments: Sequence[str]) -> Path:
    """Run directory in the arguments, else the current directory."""
    named = [argument.removeprefix("run_dir=") for argument in arguments if argument.startswith("run_dir=")]
    return Path(named[-1]) if named else Path()


def run_in_fork(arguments: Sequence[str], fault: Fault | None, log_dir: Path) -> None:
    """Run the command in a fork, with output to the files `stdout` and `stderr` in `log_dir`."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        file = os.open(log_dir / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
        os.close(file)
    run_nmt(arguments, fault, log_dir)


if __name__ == "__main__":
    given = os.environ.get(FAULT)
    run_nmt(sys.argv[1:], Fault.from_json(given) if given else None, Path(os.environ[LOG_DIR]))
