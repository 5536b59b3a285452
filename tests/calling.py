"""Types and helpers for tests of the command line."""

from collections.abc import Callable

Result = tuple[int, str, str]
Nmt = Callable[..., Result]
"""Runs a command; returns exit status, stdout and stderr."""

Write = Callable[[bytes], None]
PipeIn = Callable[[Callable[[Write], None]], None]
"""Runs a function that writes to stdin in a thread."""


def one_line(err: str) -> str:
    """Return the only line of stderr, with its prefix `nmt: ` removed."""
    (line,) = err.strip().splitlines()
    assert line.startswith("nmt: ")
    return line.removeprefix("nmt: ")
