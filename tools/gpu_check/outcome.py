"""The outcome of a stage: its checks and notes, stored in one JSON file that is replaced atomically."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Verdict = Literal["passed", "failed", "not measured"]
Status = Literal["unfinished", "done", "failed", "timed out"]
"""unfinished: running, or interrupted with the whole command; the stage is repeated."""


@dataclass(frozen=True)
class Check:
    """One row of the table. `actual` of a check that was not measured is the reason."""

    name: str
    expected: str
    actual: str
    verdict: Verdict


@dataclass
class Outcome:
    """Status and results of a stage. notes: Markdown, such as tables of measurements."""

    stage: str
    status: Status = "unfinished"
    seconds: float = 0.0
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        """Write `STAGE.json` atomically."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / file_name(self.stage)
        part = path.with_suffix(f".part-{os.getpid()}")
        part.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        part.replace(path)


def file_name(stage: str, suffix: str = ".json") -> str:
    """File name of a stage, without the colon of sub-stages, which some file systems do not allow."""
    return stage.replace(":", "-") + suffix


def read_outcome(folder: Path, stage: str) -> Outcome | None:
    """Read the outcome of a stage; None if it is missing or unreadable."""
    try:
        tree: dict[str, Any] = json.loads((folder / file_name(stage)).read_text(encoding="utf-8"))
        return Outcome(**{**tree, "checks": [Check(**check) for check in tree["checks"]]})
    except (OSError, ValueError, TypeError, KeyError):
        return None


class Results:
    """Outcome of the running stage. Every addition is written immediately, so a killed stage keeps its results."""

    def __init__(self, stage: str, folder: Path) -> None:
        self._folder, self._started = folder, time.monotonic()
        self.outcome = Outcome(stage)
        self._write()

    def check(self, name: str, expected: str, actual: str, passed: bool) -> None:
        """Add a measured check."""
        self._add(Check(name, expected, actual, "passed" if passed else "failed"))

    def not_measured(self, name: str, expected: str, reason: str) -> None:
        """Add a check that cannot be measured here."""
        self._add(Check(name, expected, reason, "not measured"))

    def note(self, text: str) -> None:
        """Add a line of Markdown."""
        self.outcome.notes.append(text)
        self._write()

    def table(self, title: str, head: Sequence[object], rows: Sequence[Sequence[object]]) -> None:
        """Add a table."""
        lines = [f"**{title}**", "", table_row(head), table_row(["---"] * len(head)), *map(table_row, rows), ""]
        self.outcome.notes += lines
        self._write()

    def finish(self) -> None:
        """Mark the stage as done."""
        self.outcome.status = "done"
        self._write()

    def _add(self, check: Check) -> None:
        self.outcome.checks.append(check)
        self._write()

    def _write(self) -> None:
        self.outcome.seconds = round(time.monotonic() - self._started, 1)
        self.outcome.write(self._folder)


def table_row(cells: Sequence[object]) -> str:
    """Format a row of a Markdown table."""
    escaped = (str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells)
    return f"| {' | '.join(escaped)} |"
