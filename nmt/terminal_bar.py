"""Progress bar on a terminal, drawn by rich. Imported lazily, because importing rich is slow."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

console = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)
"""Console on stderr; printed lines appear above the bar."""


class _Rate(ProgressColumn):
    """Rate in units per second or hour."""

    def __init__(self, format_rate: Callable[[float, str], str]) -> None:
        super().__init__()
        self._format_rate = format_rate

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        text = self._format_rate(speed, f" {task.fields['unit']}") if speed else ""
        return Text(text, style="progress.data.speed")


def open_bar(
    description: str, total: float | None, unit: str, done: float, format_rate: Callable[[float, str], str]
) -> tuple[Progress, TaskID]:
    """Show a bar with description, percentage, rate, and time elapsed and left.

    done: units finished so far; format_rate: formats units per second, with the unit
    """
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), _Rate(format_rate))
    bar = Progress(*columns, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=console)
    task = bar.add_task(description, total=total, completed=int(done), unit=unit)
    bar.start()
    return bar, task
