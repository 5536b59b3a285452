"""What the tests of the command line are handed, and how they read what it says."""

from collections.abc import Callable

Result = tuple[int, str, str]
Nmt = Callable[..., Result]
"""Runs a command: arguments to exit status, stdout and stderr."""

Write = Callable[[bytes], None]
PipeIn = Callable[[Callable[[Write], None]], None]
"""Lets a function write to standard input in a thread."""


def one_line(err: str) -> str:
    """The only line on stderr, without `nmt: `; no traceback."""
    (line,) = err.strip().splitlines()
    assert line.startswith("nmt: ")
    return line.removeprefix("nmt: ")
