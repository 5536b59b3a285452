"""One run, one writer: a lock on a run directory that dies with its process."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO

from nmt.recipe import UserError

if sys.platform != "win32":
    import fcntl

LOCK_FILE = ".lock"


@contextmanager
def run_lock(run_dir: Path) -> Iterator[None]:
    """Be the only process that writes to a run directory, for the length of a `with` block.

    Makes the directory, and removes it where the block leaves it empty. The lock is one of POSIX's record locks: the
    kernel drops it when the process ends, however it ends, so that a file left behind locks nothing, and children do
    not inherit it. Raises UserError, which names the process that has the lock, where another one has it.
    """
    path = run_dir / LOCK_FILE
    made = not run_dir.exists()
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        file = _lock(path)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}; set run_dir to a folder that can be written"
        ) from error
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # while it is still locked, so that nobody's lock is unlinked
        file.close()
        if made:
            with suppress(OSError):
                run_dir.rmdir()  # refused unless it is empty


def _lock(path: Path) -> IO[str]:
    """The lock file, open and locked."""
    while True:
        file = path.open("a+", encoding="utf-8")
        if sys.platform != "win32":
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _holder(file)
                file.close()
                raise UserError(
                    f"{path.parent} is in use by {holder}; one process at a time may write to a run; "
                    "wait for it, end it, or choose another name"
                ) from None
        if path.exists() and path.stat().st_ino == os.fstat(file.fileno()).st_ino:
            break
        file.close()  # the holder has removed it in between
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()} since {datetime.now():%Y-%m-%d %H:%M:%S}\n")
    file.flush()
    return file


def _holder(file: IO[str]) -> str:
    """What the process that has the lock wrote about itself; it writes that a moment after it has the lock."""
    for _ in range(20):
        file.seek(0)
        if holder := file.read().strip():
            return holder
        time.sleep(0.05)
    return "another process"
