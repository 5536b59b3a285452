"""Progress bar on a terminal, drawn by rich. Imported lazily, because importing rich is slow."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

console = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)
"""Console on stderr; printed lines appear above the bar."""


class _Rate(ProgressColumn):
    """Rate in units per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f} {task.fields['unit']}/s" if speed else "", style="progress.data.speed")


class TerminalBar:
    """A bar with description, percentage, rate, and time elapsed and left."""

    def __init__(self, description: str, total: float | None, unit: str, done: float) -> None:
        """Show the bar. done: units finished so far"""
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), _Rate(), TimeElapsedColumn())
        self._progress = Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console)
        self._task = self._progress.add_task(description, total=total, completed=int(done), unit=unit)
        self._progress.start()

    def advance(self, amount: float, description: str) -> None:
        """Advance by `amount` units."""
        self._progress.update(self._task, advance=amount, description=description)

    def close(self) -> None:
        """Stop the bar; its last state stays on the terminal."""
        self._progress.stop()
