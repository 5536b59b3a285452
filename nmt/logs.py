"""Output on stderr: lines and progress bars."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from time import monotonic
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

# Interval of progress lines without a terminal.
SECONDS_BETWEEN_PLAIN_LINES = 15.0

_UNDECODED = re.compile(r"[\udc80-\udcff]+")  # bytes of a path, see PEP 383

Verbosity = Literal["quiet", "normal", "verbose"]
_verbosity: Verbosity = "normal"


def set_verbosity(verbosity: Verbosity) -> None:
    """Set the output on stderr: only warnings, everything, or everything with times and tracebacks."""
    global _verbosity
    _verbosity = verbosity


def is_first_rank() -> bool:
    """Return whether this is the only process, or rank 0 of a job."""
    return os.environ.get("RANK", "0") == "0"


def is_verbose() -> bool:
    """Return whether the user asked for verbose output."""
    return _verbosity == "verbose"


@contextmanager
def warnings_only() -> Iterator[None]:
    """Print only warnings in a `with` block."""
    global _verbosity
    verbosity_before = _verbosity
    _verbosity = "quiet"
    try:
        yield
    finally:
        _verbosity = verbosity_before


def say(message: str) -> None:
    """Print a line to stderr, unless the verbosity is quiet."""
    if _verbosity != "quiet":
        _print(message)


def warn(message: str) -> None:
    """Print a warning to stderr at every verbosity."""
    _print(f"warning: {message}")


def _print(line: str) -> None:
    print_line(f"{datetime.now():%H:%M:%S} {line}" if is_verbose() else line)


def print_line(line: str) -> None:
    r"""Print a line to stderr at every verbosity, above the progress bar if there is one.

    Bytes of a path that Python could not decode are decoded as UTF-8, or printed as `\xff`.

    A line that cannot be written, for example to a full disk, is lost. Raises BrokenPipeError if the reader has exited.
    """
    line = _UNDECODED.sub(lambda found: os.fsencode(found[0]).decode(errors="backslashreplace"), line)
    try:
        if bars := sys.modules.get("nmt.terminal_bar"):
            bars.console.print(line, markup=False)
        elif sys.stderr is not None:  # None if the caller closed it
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
    except BrokenPipeError:
        raise
    except OSError:
        _discard_unwritten()


def _discard_unwritten() -> None:
    """Replace sys.stderr, whose buffer still has the failed line and would fail again at exit."""
    old = sys.stderr
    with suppress(OSError):
        sys.stderr = os.fdopen(old.fileno(), "w", 1, encoding=old.encoding, errors=old.errors, closefd=False)


class ProgressBar:
    """A progress bar on a terminal, or a line every 15 seconds elsewhere."""

    def __init__(
        self, description: str, total: float | None, unit: str, *, done: float = 0.0, silent: bool = False
    ) -> None:
        """Show the bar, unless it is `silent`.

        `done` units were finished earlier; they count toward progress but not toward the rate.
        """
        self._silent = silent or _verbosity == "quiet"
        self._description = description
        self._total = total
        self._unit = unit
        self._done = self._done_before = done
        self._started = self._last_line = monotonic()
        self._bar: tuple[Progress, TaskID] | None = None
        if not self._silent and sys.stderr is not None and sys.stderr.isatty():
            from nmt.terminal_bar import open_bar  # noqa: PLC0415 - slow to import

            self._bar = open_bar(description, total, unit, done, format_rate)

    def advance(self, amount: float = 1.0, description: str | None = None) -> None:
        """Advance by `amount` units, optionally with a new description."""
        self._done += amount
        self._description = description or self._description
        if self._bar is not None:
            bar, task = self._bar
            bar.update(task, advance=amount, description=self._description)
        elif not self._silent and monotonic() - self._last_line >= SECONDS_BETWEEN_PLAIN_LINES:
            self._last_line = monotonic()
            say(self._plain_line())

    def close(self) -> None:
        """Stop the bar; its last state stays on the terminal."""
        if self._bar is not None:
            with suppress(OSError):  # see `print_line`
                self._bar[0].stop()

    def _plain_line(self) -> str:
        total = "" if self._total is None else f" of {self._total:,.0f}"
        parts = [f"{self._description}: {self._done:,.0f}{total} {self._unit}"]
        rate = (self._done - self._done_before) / max(monotonic() - self._started, 1e-9)
        if rate > 0:
            parts.append(format_rate(rate))
            if self._total is not None:
                parts.append(f"{format_duration((self._total - self._done) / rate)} left")
        return ", ".join(parts)


@contextmanager
def progress(
    description: str, total: float | None, unit: str, *, done: float = 0.0, silent: bool = False
) -> Iterator[ProgressBar]:
    """Show a progress bar during a `with` block; see `ProgressBar`."""
    bar = ProgressBar(description, total, unit, done=done, silent=silent)
    try:
        yield bar
    finally:
        bar.close()


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Format a count with its noun: `1 line`, `2,000 lines`; plural: None appends an s."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def format_rate(rate: float, unit: str = "") -> str:
    """Format units per second as `2,000/s` or `0.5/s`, slow ones per hour as `180/h`. unit: text before the slash"""
    period = "s"
    if rate < 0.1:
        rate, period = rate * 3600, "h"
    decimals = 0 if rate >= 10 else 1
    return f"{rate:,.{decimals}f}{unit}/{period}"


def format_duration(seconds: float) -> str:
    """Format seconds as `1 h 02 min`, `3 min 04 s` or `5.0 s`."""
    if seconds >= 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
    if seconds >= 60:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    return f"{seconds:.1f} s"
