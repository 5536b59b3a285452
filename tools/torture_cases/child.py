"""A command in a process of its own, with a fault perhaps; `python -m torture_cases.child` is `python -m nmt` with it.

A new interpreter finds its fault and the folder for its notes in the environment. Each process notes its number in
`pid-RANK` when it begins, and in `end-RANK` its exit status and how many optimiser steps it did.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from nmt.cli import program  # with all commands, so that a fork begins with everything imported
from torture_cases.faults import Fault, count_updates, install

FAULT, NOTES = "NMT_TORTURE_FAULT", "NMT_TORTURE_NOTES"


def run_command(arguments: Sequence[str], fault: Fault | None, notes: Path) -> None:
    """Run `nmt` with these arguments as its console script does; ends with SystemExit, or with what is uncaught."""
    rank = int(os.environ.get("RANK", "0"))
    (notes / f"pid-{rank}").write_text(str(os.getpid()))
    updates = count_updates()
    if fault is not None and fault.rank == rank:
        install(fault, run_of(arguments), notes)
    sys.argv = ["nmt", *arguments]
    status: object = 1
    try:
        program.main()
        status = 0
    except SystemExit as leaving:
        status = leaving.code or 0
        raise
    finally:
        with (notes / f"end-{rank}").open("w") as file:
            json.dump({"status": status, "updates": updates()}, file)


def run_of(arguments: Sequence[str]) -> Path:
    """The run directory that the arguments name, or the present one."""
    named = [argument.removeprefix("run_dir=") for argument in arguments if argument.startswith("run_dir=")]
    return Path(named[-1]) if named else Path()


def run_in_fork(arguments: Sequence[str], fault: Fault | None, notes: Path) -> None:
    """Be the command, in a fresh fork: what it says goes to the files `out` and `said` in `notes`."""
    for name, descriptor in (("out", 1), ("said", 2)):
        file = os.open(notes / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
        os.close(file)
    run_command(arguments, fault, notes)


if __name__ == "__main__":
    given = os.environ.get(FAULT)
    run_command(sys.argv[1:], Fault.from_json(given) if given else None, Path(os.environ[NOTES]))
