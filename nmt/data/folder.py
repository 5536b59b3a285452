"""Folders of prepared text: written under another name and renamed when complete, so they are there whole or not."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nmt.data.fingerprint import REPORT_FILE
from nmt.recipe import UserError


@contextmanager
def replacing(directory: Path) -> Iterator[Path]:
    """An empty folder beside `directory` that takes its place at the end of the block, and goes if the block fails.

    A symbolic link stays, and its target is replaced. What was killed on its way leaves only the folder beside, which
    the next call removes. Raises UserError when the system does not let it write, and when `directory` is anything else
    than a prepared corpus.
    """
    directory = Path(os.path.realpath(directory))
    unfinished, replaced = (directory.with_name(f".{directory.name}.{state}") for state in ("unfinished", "replaced"))
    try:
        if directory.exists() and not (directory / REPORT_FILE).exists() and any(directory.iterdir()):
            raise UserError(f"{directory} is there but is no prepared corpus; it must not be overwritten; move it away")
        _remove(unfinished)
        _remove(replaced)
        unfinished.mkdir(parents=True)
        yield unfinished
        for path in unfinished.iterdir():
            flush_to_disk(path)
        if directory.exists():
            directory.rename(replaced)
        unfinished.rename(directory)
        _remove(replaced)
    except OSError as error:
        needs = "preparation needs about as much room as the uncompressed text"
        raise UserError(explain_disk_error(directory, error, needs, or_else="set run_dir to another disk")) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where the file system has no such names."""
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)


def flush_to_disk(path: Path) -> None:
    """Wait until a file is on the disk: the name of its folder must not outlive it when the power goes."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def explain_disk_error(directory: Path, error: OSError, needs: str, or_else: str) -> str:
    """One line for the user; `needs` says how much room is needed, `or_else` what helps besides making room."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk of {directory} is full; {needs}; make room, or {or_else}"
    where = f"cannot write {directory}: {error.strerror or error}"
    return f"{where}; the folder must be writable; change its permissions or set run_dir"


def _remove(directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)
