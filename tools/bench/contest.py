"""Two systems in turns on one machine: one computes while the other is stopped, so that both see the same weather."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.environments import PEERS, find_python, shared_packages
from bench.work import Work
from nmt.bench.statistics import Ratio, Spread, paired_ratio
from nmt.logs import say
from nmt.recipe import UserError

TOOLS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Side:
    """What one system did: its settings, versions and target tokens per second of each lap."""

    name: str
    settings: dict[str, str]
    versions: dict[str, str]
    warm_up_seconds: float
    rates: list[float] = field(default_factory=list)

    @property
    def spread(self) -> Spread:
        """Median, quartiles and extremes of the laps."""
        return Spread.of(self.rates)


@dataclass(frozen=True)
class Contest:
    """Laps of two systems in turns, and how many times as fast the first is."""

    ours: Side
    theirs: Side
    ratio: Ratio


def hold_contest(
    work: Work, ours: tuple[str, dict[str, str]], theirs: tuple[str, dict[str, str]], rounds: int
) -> Contest:
    """Let two systems, each with settings of its own, do the same work in turns, A-B-A-B; UserError where one fails."""
    # Both warm up before the first round, one after the other.
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        Contestant(work, *ours, Path(folder)) as one,
        Contestant(work, *theirs, Path(folder)) as other,
    ):
        for number in range(1, rounds + 1):
            rates = [contestant.lap() for contestant in (one, other)]
            say(f"round {number} of {rounds}: " + " against ".join(f"{rate:,.1f}" for rate in rates) + " tokens/s")
        return Contest(one.side, other.side, paired_ratio(one.side.rates, other.side.rates))


class Contestant:
    """One system in a process group of its own, which is stopped whenever it is not its turn."""

    def __init__(self, work: Work, name: str, settings: dict[str, str], folder: Path) -> None:
        own = work.with_settings({key: value for key, value in settings.items() if not key.isupper()})
        description = folder / f"{name}-{len(list(folder.iterdir()))}.json"
        description.write_text(own.to_json(), encoding="utf-8")
        self._name, self._log = name, description.with_suffix(".log").open("w+", encoding="utf-8")
        say(f"{name} warms up")
        self._process = subprocess.Popen(
            [find_python(name), "-m", "bench.worker", PEERS[name].module, str(description)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=_environment(name, own, settings, folder),
            text=True,
            start_new_session=True,
        )
        ready = self._read()["ready"]
        self.side = Side(name, settings, ready["versions"], ready["seconds"])
        self._signal(signal.SIGSTOP)

    def __enter__(self) -> Contestant:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def lap(self) -> float:
        """Let it do one lap; target tokens per second."""
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        answer = self._read()
        self._signal(signal.SIGSTOP)
        self.side.rates.append(answer["tokens"] / answer["seconds"])
        return self.side.rates[-1]

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        self._log.seek(0)
        last = [text for text in self._log.read().splitlines() if text.strip()][-15:]
        sys.stderr.write("".join(f"  {text}\n" for text in last))
        self._signal(signal.SIGKILL)
        raise UserError(f"{self._name} has ended before its time; what it said last is above; mend that first")

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return


def _environment(name: str, work: Work, settings: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Variables of a process; settings in capitals are variables."""
    threads = str(work.threads)
    # nmt itself is imported from the source tree, and by no other system.
    path = [*filter(None, [shared_packages()]), *map(str, [TOOLS, TOOLS.parent] if name == "nmt" else [TOOLS])]
    return {
        **{key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "OMP_NUM_THREADS")},
        "PYTHONPATH": os.pathsep.join(path),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "TMPDIR": str(folder),  # what a killed process leaves goes with it
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        **{key: value for key, value in settings.items() if key.isupper()},
    }
