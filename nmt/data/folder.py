"""Crash-safe replacement of the directory of a prepared corpus."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path

from nmt.data.store import REPORT_FILE
from nmt.errors import UserError
from nmt.processes.run_lock import run_lock
from nmt.storage.run_folder import STAMPS, require_own_text
from nmt.storage.sealed import new_directory, reporting_disk_errors, sync

# Names of the files in the directory of a prepared corpus, temporary ones included.
_OWN_FILES = (
    *(REPORT_FILE, STAMPS, "tokenizer.model", "tokenizer.src.model", "tokenizer.tgt.model"),
    *("train.*.npy", "valid.*.npy", "valid.src.txt", "valid.tgt.txt", "valid.previous.txt", "valid.tags.txt"),
    *("epochs", "alignment", "markup", ".*"),
)


@contextmanager
def replacing(directory: Path) -> Iterator[Path]:
    """Yield an empty directory that replaces `directory` if the block succeeds and is removed if it fails.

    If `directory` is a symbolic link, its target is replaced; runs may share it, so its parent directory is
    locked. If the process is killed, the next call removes the leftovers, as `remove_leftovers` does.
    Raises UserError if the directory cannot be written, contains other files, or belongs to another trained run.
    """
    require_own_text(directory)
    run_dir = Path(os.path.realpath(directory.parent))
    directory = Path(os.path.realpath(directory))
    replaced = _replaced(directory)
    needed = "preparation needs about as much space as the uncompressed text"
    alternative = "set run_dir to a directory on another disk"
    errors = reporting_disk_errors(directory, needed=needed, alternative=alternative)
    lock = run_lock(directory.parent) if directory.parent != run_dir else nullcontext()
    with lock, errors:
        if replaced.exists() and not directory.exists():
            replaced.rename(directory)  # the process was killed between the two renames below
        if directory.exists() and not (directory / REPORT_FILE).exists() and any(directory.iterdir()):
            raise UserError(f"{directory} exists but is not a prepared corpus; it is not overwritten; move it away")
        _require_no_other_files(directory)
        remove_leftovers(directory)
        with new_directory(directory) as new:
            yield new
            for path in new.iterdir():
                sync(path)
            if directory.exists():
                directory.rename(replaced)
        if replaced.exists():
            shutil.rmtree(replaced)


def remove_leftovers(directory: Path) -> None:
    """Remove temporary directories of killed preparations next to a prepared corpus; its run must be locked.

    Ignores errors.
    """
    for leftover in (_replaced(directory), *directory.parent.glob(f".{escape(directory.name)}.part-*")):
        shutil.rmtree(leftover, ignore_errors=True)


def _replaced(directory: Path) -> Path:
    """Return the temporary name of a prepared corpus that is being replaced."""
    return directory.with_name(f".{directory.name}.replaced")


def _require_no_other_files(directory: Path) -> None:
    """Raise UserError if a prepared corpus contains files that preparation did not write: they would be lost."""
    names = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    if others := [name for name in names if not any(fnmatchcase(name, pattern) for pattern in _OWN_FILES)]:
        raise UserError(
            f"{directory / others[0]} is not part of the prepared corpus and would be lost; move it away, then rerun"
        )
