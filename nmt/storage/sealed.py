"""Directories and files that are written whole or not at all, and verified when they are read.

A directory is written beside its place under a temporary name, synced to disk, sealed by a manifest (size and SHA-256
of every file) and renamed. Every load verifies the manifest first, because a flipped bit in a tensor file loads without
complaint.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from nmt.recipe import UserError

MANIFEST = "manifest.json"


class CorruptError(UserError):
    """A directory whose files are not what its manifest says."""


def write_directory(directory: Path, files: Mapping[str, bytes | Callable[[], bytes]]) -> None:
    """Write all `files` (name to content, or to a function that makes it) into a new sealed directory, or nothing.

    Raises UserError when the directory exists, cannot be written or the disk is full.
    """
    require_new(directory)
    with naming_disk_errors(directory):
        directory.parent.mkdir(parents=True, exist_ok=True)
        temporary = directory.with_name(f".{directory.name}.part-{os.getpid()}")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            manifest = {}
            for name, content in files.items():
                data = content() if callable(content) else content
                write_synced(temporary / name, data)
                manifest[name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
                del data  # so that the next content is not made while this one is still held
            write_synced(temporary / MANIFEST, json.dumps(manifest, indent=1).encode())
            sync_directory(temporary)
            temporary.rename(directory)
            sync_directory(directory.parent)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def require_new(directory: Path) -> None:
    """Raise UserError where something of this name is there."""
    if os.path.lexists(directory):  # a symbolic link without a target, too
        raise UserError(f"{directory} exists already; it must be a new name; choose another or remove it")


def writes_through(path: Path) -> bool:
    """Whether a path is written to as it is, as a pipe or a device must be, and not replaced by a new file."""
    return (path.exists() and not path.is_file() and not path.is_dir()) or path.absolute().parts[1:2] in (
        ("dev",),
        ("proc",),
    )


def write_file(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all, in the place of one that is there; UserError where it cannot be written.

    A symbolic link stays, and its target is replaced; what is no plain file is written to as it is.
    """
    with naming_disk_errors(path):
        if writes_through(path):
            path.write_bytes(content)
            return
        path = path.resolve()
        temporary = path.with_name(f".{path.name}.part-{os.getpid()}")
        try:
            write_synced(temporary, content)
            temporary.replace(path)
            sync_directory(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def verify_directory(directory: Path, *, without: str | None = None) -> dict[str, tuple[int, str]]:
    """Compare every file with the manifest, and return its entries: name -> size and SHA-256.

    Raises CorruptError that names the first file that differs.

    without: a pattern of the names of files that are not read, and so not verified
    """
    try:
        manifest = json.loads((directory / MANIFEST).read_bytes())
        expected = {str(name): (int(entry["size"]), str(entry["sha256"])) for name, entry in manifest.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(
            f"{directory} has no readable {MANIFEST}; the directory must be whole; copy it again"
        ) from error
    for name, (size, digest) in expected.items():
        if without is not None and fnmatchcase(name, without):
            continue
        path = directory / name
        if not path.is_file() or path.stat().st_size != size or _sha256(path) != digest:
            raise CorruptError(
                f"{path} is missing or corrupt (its size or SHA-256 is not what {MANIFEST} says); "
                "it must be the file that was saved; copy it again or use another checkpoint"
            )
    return expected


def manifest_digest(directory: Path) -> str:
    """SHA-256 of a directory's manifest, and so of all its files; "" where there is none."""
    manifest = directory / MANIFEST
    return _sha256(manifest) if manifest.is_file() else ""


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and wait until it is on the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(directory: Path) -> None:
    """Wait until what was created, renamed or removed in a directory is on the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def naming_disk_errors(directory: Path) -> Iterator[None]:
    """Turn what the file system refuses into one line for the user."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise UserError(
                f"the disk is full while writing {directory}; it must have room; free some and go on"
            ) from error
        raise UserError(f"cannot write {directory}: {error.strerror}; choose a place that can be written to") from error
