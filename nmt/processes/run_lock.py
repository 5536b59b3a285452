"""Lock of a run directory against a second writer; released when its process ends."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import IO

from nmt.errors import UserError, describe_write_error

LOCK_FILE = ".lock"
_LOCK_START = "process "  # followed by the process id

# Attempts to open the lock file, because another process may remove its directory in the meantime.
_ATTEMPTS = 100

# Run directories, by their real path, that this process has locked.
_locked: dict[Path, IO[str]] = {}
_changes = threading.Lock()  # record locks do not exclude other threads of the process


@contextmanager
def run_lock(run_dir: Path) -> Iterator[None]:
    """Lock a run directory for a `with` block; create it if needed, and remove it and its new parents if left empty.

    Uses a POSIX record lock: the kernel releases it when the process ends, a stale file locks nothing, and child
    processes do not inherit it.

    Raises:
        UserError: another process holds the lock, or another thread of this one (the message names the process), or
            the lock file cannot be written.
    """
    path = run_dir / LOCK_FILE
    real_path = Path(os.path.realpath(run_dir))
    with _changes:
        _require_not_locked_here(real_path)
        created = [folder for folder in (run_dir, *run_dir.parents) if not folder.exists()]
        try:
            file = _lock(path)
            _locked[real_path] = file
        except OSError as error:
            _remove_if_empty(created)
            advice, alternative = "set run_dir to a writable folder", "set run_dir to a directory on another disk"
            raise UserError(describe_write_error(error, str(path), advice, alternative=alternative)) from error
    try:
        yield
    finally:
        with _changes:
            del _locked[real_path]
            with suppress(OSError):
                if _is_at(path, file):
                    path.unlink()  # before releasing the lock: later, the file may be the next holder's
            file.close()
            _remove_if_empty(created)


def _remove_if_empty(folders: Iterable[Path]) -> None:
    """Remove folders up to the first that is not empty."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _require_not_locked_here(real_path: Path) -> None:
    """Raise UserError if another thread of this process has locked a run directory; record locks do not detect it.

    The run stays locked even if the lock file has been deleted: the other thread must not write into a new run.
    """
    file = _locked.get(real_path)
    if file is None:
        return
    holder = os.pread(file.fileno(), 100, 0)  # closing a second file would release the lock
    if holder.startswith(f"{_LOCK_START}{os.getpid()} ".encode()):  # not a process from which this one was forked
        raise _in_use(real_path, "another thread of this process")


def _in_use(run_dir: Path, holder: str) -> UserError:
    return UserError(
        f"{run_dir} is in use by {holder}; only one process may write to a run; wait for it, stop it, or choose "
        "another name"
    )


def require_lock(path: Path) -> None:
    """Raise UserError if `path` is in a run that this process has locked, and the lock file was deleted or replaced.

    Another process may have started a run there. Without a lock, every path is valid.
    """
    real_path = Path(os.path.realpath(path))
    for run, file in list(_locked.items()):  # other threads may lock and release runs concurrently
        if run in real_path.parents and not _is_at(run / LOCK_FILE, file):
            raise UserError(
                f"{run / LOCK_FILE} was deleted or replaced, so another process may write to this run; a run directory "
                f"must stay in place until its command ends; {path.name} is not written; rerun the command"
            )


def _is_at(path: Path, file: IO[str]) -> bool:
    """Return whether an open file still has this path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except (FileNotFoundError, NotADirectoryError):
        return False


def _lock(path: Path) -> IO[str]:
    """Return the lock file, open and locked. Creates its directory, which an exiting holder may concurrently remove."""
    for attempt in count(1):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _require_regular(path)
            file = path.open("a+", encoding="utf-8", errors="replace")
        except FileNotFoundError:
            if attempt == _ATTEMPTS:
                raise
            continue
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(file)
            file.close()
            raise _in_use(path.parent, holder) from None
        if _is_at(path, file):
            break
        file.close()  # the previous holder has removed it
    file.seek(0)
    if not _LOCK_START.startswith(file.read(len(_LOCK_START))):  # neither a lock nor empty
        file.close()
        raise UserError(f"{path} is not the lock of a run; move it away, or set run_dir to another directory")
    holder = f"{_LOCK_START}{os.getpid()} on {socket.gethostname()} since {datetime.now():%Y-%m-%d %H:%M:%S}\n"
    try:
        file.truncate(0)
        os.write(file.fileno(), holder.encode(errors="replace"))  # without the buffer, which `close` would try to write
    except OSError:  # such as a full disk
        with suppress(OSError):
            path.unlink()
        file.close()
        raise
    return file


def _require_regular(path: Path) -> None:
    """Raise UserError if `path` is anything but a regular file; a symbolic link to one is rejected, too."""
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(path.lstat().st_mode):
            raise UserError(f"{path} is not a regular file, as a lock must be; remove {path.name}, then rerun")


def _holder(file: IO[str]) -> str:
    """Return the description of the process that holds the lock, which it writes just after locking."""
    for _ in range(20):
        file.seek(0)
        if holder := file.read().strip():
            return holder
        time.sleep(0.05)
    return "another process"
