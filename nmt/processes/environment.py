"""Environment variables: numbers that torchrun or another launcher sets, and the import path of child processes."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from nmt.errors import UserError

_environment_lock = threading.RLock()

MAX_NUMBER = 1_000_000_000
"""Largest valid number; as seconds, it is below the limits of timers."""


def world_size() -> int:
    """Return the number of processes of the job; raises UserError for an invalid value."""
    return read_integer("WORLD_SIZE", 1)


def local_rank() -> int:
    """Return the rank of this process among those of the job on its machine; raises UserError for an invalid value."""
    return read_integer("LOCAL_RANK", 0)


def local_world_size() -> int:
    """Return the number of processes of the job on this machine; raises UserError for an invalid value."""
    return read_integer("LOCAL_WORLD_SIZE", 1)


def read_integer(variable: str, default: int) -> int:
    """Return the integer in an environment variable: positive, or equal to `default`; else raise UserError."""
    value = read_number(variable, default)
    if value != int(value):
        raise UserError(f"{variable} is {value:g}; it must be an integer; correct or unset it")
    return int(value)


def read_number(variable: str, default: float) -> float:
    """Return the number in an environment variable: positive, or `default`; else raise UserError.

    An empty variable counts as unset and gives `default`. Numbers above `MAX_NUMBER` are invalid.
    """
    text = os.environ.get(variable, "")
    with suppress(ValueError):
        value = float(text or default)
        if value == default or 0 < value <= MAX_NUMBER:
            return value
    kind = "positive" if default else "non-negative"
    raise UserError(f"{variable} is {text!r}; it must be a {kind} number up to {MAX_NUMBER:,}; correct or unset it")


@contextmanager
def same_import_path() -> Iterator[None]:
    """Let interpreters that start in a `with` block import from where this one does.

    multiprocessing starts `python -c`, which would import from the working directory first: a `random.py` there would
    replace the module of the standard library.
    """
    entries = import_path()
    if any(os.pathsep in entry for entry in entries):  # PYTHONPATH cannot contain it
        yield
        return
    with _environment_lock:
        given = {name: os.environ.get(name) for name in ("PYTHONPATH", "PYTHONSAFEPATH")}
        os.environ.update(PYTHONPATH=os.pathsep.join(entries), PYTHONSAFEPATH="1")
        try:
            yield
        finally:
            for name, value in given.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def import_path() -> list[str]:
    """Return `sys.path` without entries that Python ignores, such as a Path."""
    return [entry for entry in sys.path if isinstance(entry, str)]
