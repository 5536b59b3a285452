"""The server's log on stderr. Requests must not fail if it cannot be written, for example because the disk is full."""

from __future__ import annotations

from contextlib import suppress

from nmt.logs import is_verbose, print_line, say, warn


def log(message: str) -> None:
    """Print a line if possible, even with --quiet."""
    with suppress(OSError):
        if is_verbose():  # with the time
            say(message)
        else:
            print_line(message)


def log_warning(message: str) -> None:
    """Print a warning if possible."""
    with suppress(OSError):
        warn(message)
