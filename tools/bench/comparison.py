"""Speed comparison of two systems in alternating rounds: each is suspended while the other runs.

Slow phases of the machine therefore affect both alike.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from bench.environments import PEERS, find_python, inherited_environment, shared_packages
from bench.ratio import Ratio, paired_ratio
from bench.workload import Workload
from nmt.errors import UserError
from nmt.logs import say

TOOLS = Path(__file__).resolve().parents[1]

System = tuple[str, dict[str, str]]
"""Name of a system and its settings."""


@dataclass(frozen=True)
class Measurement:
    """Rates of one system, one per round, in target tokens per second.

    Preparation counts the tokens of both sides; files and servers count lines.
    """

    name: str
    settings: dict[str, str]
    versions: dict[str, str]
    warm_up_seconds: float
    rates: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Comparison:
    """Measurements of two systems and the ratio of their rates, ours to theirs."""

    ours: Measurement
    theirs: Measurement
    ratio: Ratio


def compare(workload: Workload, ours: System, theirs: System, rounds: int) -> Comparison:
    """Run a workload on two systems in alternating rounds.

    Raises UserError if one of them fails.
    """
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        system_process(workload, *ours, Path(folder)) as one,
        system_process(workload, *theirs, Path(folder)) as other,
    ):
        return alternate(one, other, rounds, "tokens")


def alternate(one: SystemProcess, other: SystemProcess, rounds: int, unit: str) -> Comparison:
    """Run rounds of both systems alternately. unit: what their rates count"""
    for number in range(1, rounds + 1):
        rates = [process.run_round() for process in (one, other)]
        say(f"round {number} of {rounds}: {rates[0]:,.1f} and {rates[1]:,.1f} {unit}/s")
    ratio = paired_ratio(one.measurement.rates, other.measurement.rates)
    return Comparison(one.measurement, other.measurement, ratio)


def system_process(workload: Workload, name: str, settings: dict[str, str], folder: Path) -> SystemProcess:
    """Start a system on a workload, in its own environment."""
    workload = workload.with_settings({key: value for key, value in settings.items() if not key.isupper()})
    description = folder / f"{name}-{len(list(folder.iterdir()))}.json"
    description.write_text(workload.to_json(), encoding="utf-8")
    command = [find_python(name), "-m", "bench.worker", PEERS[name].module, str(description)]
    environment = _environment(name, workload, settings, folder)
    return SystemProcess(name, settings, command, environment, description.with_suffix(".log"))


class SystemProcess:
    """A system in its own process group, suspended except during its warm-up and its rounds."""

    def __init__(
        self, name: str, settings: dict[str, str], command: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> None:
        self._name, self._log = name, log.open("w+", encoding="utf-8")
        say(f"warming up {name}")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            text=True,
            start_new_session=True,
        )
        try:
            ready = self._read()["ready"]
        except BaseException:  # `__exit__` is not called if the constructor fails
            self.__exit__()
            raise
        self.measurement = Measurement(name, settings, ready["versions"], ready["seconds"])
        self._suspend()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def run_round(self) -> float:
        """Resume the system for one round; returns its rate, see `Measurement`."""
        answer = self.request_round()
        self.measurement.rates.append(answer["tokens"] / answer["seconds"])
        return self.measurement.rates[-1]

    def request_round(self) -> dict[str, Any]:
        """Resume the system for one round; returns its answer."""
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # `_read` reports a system that has exited
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
        answer = self._read()
        self._suspend()
        return answer

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        self._log.seek(0)
        last = [text for text in self._log.read().splitlines() if text.strip()][-15:]
        sys.stderr.write("".join(f"  {text}\n" for text in last))
        raise UserError(f"{self._name} exited early; its last output is above; fix the cause, then rerun")

    def _suspend(self) -> None:
        """Suspend the system; returns when it is suspended or has exited."""
        self._signal(signal.SIGSTOP)
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            self._process.returncode = os.waitstatus_to_exitcode(status)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def _environment(name: str, workload: Workload, settings: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Environment variables of a system's process; upper-case settings are variables."""
    threads = str(workload.threads)
    # Only nmt is imported from the source tree.
    path = [*filter(None, [shared_packages()]), *map(str, [TOOLS, TOOLS.parent] if name == "nmt" else [TOOLS])]
    return {
        **inherited_environment(),
        "PYTHONPATH": os.pathsep.join(path),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "TMPDIR": str(folder),  # removed even if the process is killed
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        **{key: value for key, value in settings.items() if key.isupper()},
    }
