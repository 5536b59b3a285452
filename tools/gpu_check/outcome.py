"""What a stage found: its checks and notes, in one JSON file that is whole at every moment."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Verdict = Literal["held", "did not hold", "not measured"]
# unfinished: its process is at work, or was ended with the whole command: the stage is run again
Ended = Literal["unfinished", "done", "failed", "over its limit"]


@dataclass(frozen=True)
class Check:
    """One row of the table. `seen` of a check that was not measured says why."""

    name: str
    expected: str
    seen: str
    verdict: Verdict


@dataclass
class Outcome:
    """What is known of a stage. notes: Markdown for people, such as tables of figures."""

    stage: str
    ended: Ended = "unfinished"
    seconds: float = 0.0
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        """Write `STAGE.json` to a folder, by way of a file beside it."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / file_name(self.stage)
        part = path.with_suffix(f".part-{os.getpid()}")
        part.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        part.replace(path)


def file_name(stage: str, suffix: str = ".json") -> str:
    """The name of a stage's file: a sub-stage is written with a colon, which some file systems refuse."""
    return stage.replace(":", "-") + suffix


def read_outcome(folder: Path, stage: str) -> Outcome | None:
    """What a folder holds of a stage; None where there is nothing, or nothing that can be read."""
    try:
        tree: dict[str, Any] = json.loads((folder / file_name(stage)).read_text(encoding="utf-8"))
        return Outcome(**{**tree, "checks": [Check(**check) for check in tree["checks"]]})
    except (OSError, ValueError, TypeError, KeyError):
        return None


class Results:
    """The outcome of the stage at work; whatever is added is on disk at once, so that an early end loses nothing."""

    def __init__(self, stage: str, folder: Path) -> None:
        self._folder, self._started = folder, time.monotonic()
        self.outcome = Outcome(stage)
        self._write()

    def check(self, name: str, expected: str, seen: str, held: bool) -> None:
        """Add a check that was measured."""
        self._add(Check(name, expected, seen, "held" if held else "did not hold"))

    def not_measured(self, name: str, expected: str, why: str) -> None:
        """Add a check that could not be measured here."""
        self._add(Check(name, expected, why, "not measured"))

    def note(self, text: str) -> None:
        """Add a line of Markdown."""
        self.outcome.notes.append(text)
        self._write()

    def table(self, title: str, head: Sequence[object], rows: Sequence[Sequence[object]]) -> None:
        """Add a table."""
        lines = [f"**{title}**", "", _row(head), _row(["---"] * len(head)), *map(_row, rows), ""]
        self.outcome.notes += lines
        self._write()

    def end(self, ended: Ended) -> None:
        """The stage is over."""
        self.outcome.ended = ended
        self._write()

    def _add(self, check: Check) -> None:
        self.outcome.checks.append(check)
        self._write()

    def _write(self) -> None:
        self.outcome.seconds = round(time.monotonic() - self._started, 1)
        self.outcome.write(self._folder)


def escaped(cell: object) -> str:
    """What a cell of a table may hold, on one line."""
    return str(cell).replace("|", "\\|").replace("\n", " ")


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(escaped, cells))} |"
