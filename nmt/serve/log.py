"""The server's log on stderr. Requests must not fail if it cannot be written, such as on a full disk."""

from __future__ import annotations

from contextlib import suppress

from nmt.logs import say, warn


def log(message: str) -> None:
    """Print a line if possible."""
    with suppress(OSError):
        say(message)


def log_warning(message: str) -> None:
    """Print a warning if possible."""
    with suppress(OSError):
        warn(message)
