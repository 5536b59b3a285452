"""One system in its own environment: `python -m bench.worker MODULE WORKLOAD.json`.

Reads `go` from stdin before each round and answers with one line of JSON on stdout: `{"ready": ...}` after warm-up,
then `{"seconds": ..., "tokens": ...}` for each round. Output of the system itself is redirected to stderr.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import Any, TextIO

from bench.workload import Workload

_PACKAGES = ("torch", "transformers", "ctranslate2", "eole", "OpenNMT-py", "sockeye", "joeynmt", "nmt", "sentencepiece")

# Option number of prctl(2), from <sys/prctl.h>.
_PR_SET_PDEATHSIG = 1


class Clock:
    """Times rounds, and blocks the system between them. Time spent blocked does not count."""

    def __init__(self, warm_up: int, answers: TextIO, commands: TextIO) -> None:
        self._warm_up_left = warm_up
        self._answers, self._commands = answers, commands
        self._created = self._round_start = perf_counter()

    def end_round(self, tokens: int, results: Callable[[], dict[str, Any]] = dict) -> None:
        """End a round and block until the next one may start.

        tokens:  target tokens, EOS included; tokens of both sides for preparation, lines for files
        results: returns further entries of the answer; not timed
        """
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        seconds = perf_counter() - self._round_start
        self._warm_up_left -= 1
        if self._warm_up_left < 0:
            self._answer({"seconds": seconds, "tokens": tokens, **results()})
        if self._warm_up_left == 0:
            self._answer({"ready": {"versions": _versions(), "seconds": perf_counter() - self._created}})
        if self._warm_up_left <= 0 and self._commands.readline() != "go\n":
            os._exit(0)  # does not wait for threads and processes of the system
        self._round_start = perf_counter()

    def _answer(self, answer: dict[str, Any]) -> None:
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()


def _versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def end_with_parent() -> None:
    """On Linux, have this process killed when its parent dies: a suspended process cannot exit by itself."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def redirect_output() -> TextIO:
    """Redirect stdout to stderr; return the original stdout, for the answers."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def main(peer: str, path: str) -> None:
    """Run the workload described by a file on a system until stdin is closed."""
    end_with_parent()
    answers = redirect_output()
    workload = Workload.from_json(Path(path).read_text(encoding="utf-8"))
    module = importlib.import_module(peer)
    getattr(module, workload.task)(workload, Clock(workload.warm_up, answers, sys.stdin))


if __name__ == "__main__":
    main(*sys.argv[1:])
