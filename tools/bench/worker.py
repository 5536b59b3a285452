"""One system at work, in an environment of its own: `python -m bench.worker MODULE WORK.json`.

It is told on its standard input when a lap may begin, and answers each with a line of JSON on its standard output:
`{"ready": ...}` when it has warmed up, then `{"seconds": ..., "tokens": ...}` for each lap. What the system itself
prints goes to standard error.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import Any, TextIO

from bench.work import Work

_PACKAGES = ("torch", "transformers", "ctranslate2", "eole", "OpenNMT-py", "sockeye", "joeynmt", "nmt", "sentencepiece")

# The option of prctl(2), as <sys/prctl.h> numbers it.
_PR_SET_PDEATHSIG = 1


class Clock:
    """Times laps and holds the system between them.

    Everything that the system does between two laps counts, and nothing while it waits to be told to go on.
    """

    def __init__(self, warm_up: int, answers: TextIO, orders: TextIO) -> None:
        self._to_warm_up = warm_up
        self._answers, self._orders = answers, orders
        self._begun = self._started = perf_counter()

    def lap(self, tokens: int) -> None:
        """The end of a lap with so many target tokens, end tokens counted."""
        _wait_for_gpu()
        seconds = perf_counter() - self._started
        self._to_warm_up -= 1
        if self._to_warm_up < 0:
            self._say({"seconds": seconds, "tokens": tokens})
        if self._to_warm_up == 0:
            self._say({"ready": {"versions": _versions(), "seconds": perf_counter() - self._begun}})
        if self._to_warm_up <= 0 and self._orders.readline() != "go\n":
            os._exit(0)  # without the goodbyes of threads and processes that the system started
        self._started = perf_counter()

    def _say(self, answer: dict[str, Any]) -> None:
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()


def _wait_for_gpu() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def end_with_parent() -> None:
    """Let Linux kill this process when the contest is killed, for what is stopped cannot end by itself."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main(peer: str, path: str) -> None:
    """Let a peer do the work that a file describes, until nobody says to go on."""
    end_with_parent()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    work = Work.from_json(Path(path).read_text(encoding="utf-8"))
    module = importlib.import_module(peer)
    getattr(module, work.task)(work, Clock(work.warm_up, answers, sys.stdin))


if __name__ == "__main__":
    main(*sys.argv[1:])
