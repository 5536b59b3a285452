"""Atomic, verified writes of directories and files.

A directory is written under a temporary name, synced to disk, sealed with a manifest (size and SHA-256 of every file)
and renamed. Every load of weights verifies the manifest, because a tensor file with a flipped bit loads without an
error.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from nmt.errors import UserError, describe_write_error
from nmt.processes.run_lock import require_lock

MANIFEST = "manifest.json"

# Conversions in a model directory, see `nmt.export.cache`, and hidden files.
_CACHED = re.compile(r"ctranslate2-(\d+-)?[0-9a-f]{16}-\w+|\..*")
# Files of a model whose manifest is unreadable.
_MODEL_FILE = re.compile(r"model\.(toml|safetensors)|classifier\.toml|tokenizer(\.src|\.tgt)?\.model|manifest\.json")


class CorruptError(UserError):
    """A sealed directory is incomplete or unreadable, or differs from its manifest."""


def write_directory(
    directory: Path, files: Mapping[str, bytes | Callable[[], bytes]], *, replaces: bool = False
) -> None:
    """Write a new sealed directory atomically.

    files:    name -> content, or a function that returns the content
    replaces: replace a model and its conversions, or the target of a symbolic link, once the new one is complete

    Raises UserError if the directory exists (without `replaces`), has files that are not part of the model to replace,
    or cannot be written, or if the disk is full.
    """
    if replaces:
        directory = Path(os.path.realpath(directory))
        _require_replaceable(directory)
    else:
        require_new(directory)
    with reporting_disk_errors(directory), new_directory(directory, replaces=replaces) as temporary:
        manifest = {}
        for name, content in files.items():
            data = content() if callable(content) else content
            write_synced(temporary / name, data)
            manifest[name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            del data  # frees the memory before the next content is created
        write_synced(temporary / MANIFEST, json.dumps(manifest, indent=1).encode())


@contextmanager
def new_directory(directory: Path, *, replaces: bool = False) -> Iterator[Path]:
    """Yield an empty temporary directory, renamed to `directory` at the end of a `with` block or removed on an error.

    replaces: replace an existing `directory`, which is removed after the new one has its name

    The block must sync the files that it writes. A killed process leaves the temporary directory, `.NAME.part-PID`.

    Raises UserError if `directory` is in a run that this process locked and whose lock file was deleted or replaced.
    """
    require_lock(directory)
    temporary = directory.with_name(f".{directory.name}.part-{os.getpid()}")
    old = directory.with_name(f".{directory.name}.old-{os.getpid()}")
    for leftover in (temporary, old):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        sync(temporary)
        require_lock(directory)
        if replaces and directory.exists():
            directory.rename(old)
        temporary.rename(directory)
        sync(directory.parent)
    finally:
        if old.exists() and not directory.exists():
            old.rename(directory)
        for leftover in (temporary, old):
            shutil.rmtree(leftover, ignore_errors=True)


def link_or_copy(source: Path | str, target: Path | str) -> None:
    """Hard-link a file, or copy it if the file system has no hard links; follows a symbolic link."""
    try:
        Path(target).hardlink_to(os.path.realpath(source))
    except OSError:
        shutil.copyfile(source, target)


def require_new(directory: Path) -> None:
    """Raise UserError if the path exists, if a directory cannot be created there, or if the path is `-`.

    A dangling symbolic link counts as existing.
    """
    if str(directory) == "-":
        raise UserError("- means standard output; expected a new directory; name one")
    if os.path.lexists(directory):
        raise UserError(f"{directory} already exists; it is not overwritten; choose another name or remove it")
    parent = next(path for path in directory.absolute().parents if os.path.lexists(path))
    if not parent.is_dir():
        raise UserError(f"cannot write {directory}: {parent} is not a directory; choose another path")
    require_writable(parent, directory)


def require_writable(folder: Path, output: Path) -> None:
    """Raise UserError if an output cannot be created in an existing folder."""
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"cannot write {output}: {folder} is not writable; change its permissions or choose another")


def require_no_loop(path: Path) -> None:
    """Raise UserError if an output is, or is in, a symbolic link that leads back to itself."""
    try:
        path.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            wrong = f"cannot write {path}: its symbolic link loops"
            raise UserError(f"{wrong}; it must lead to a file; remove the link, or choose another output") from error


def writes_through(path: Path) -> bool:
    """Return whether a path must be written in place and not replaced by a new file, as for pipes and devices."""
    if path.absolute().parts[1:2] in (("dev",), ("proc",)):
        return True
    return path.exists() and not path.is_file() and not path.is_dir()


def write_file(path: Path, content: bytes) -> None:
    """Write or replace a file atomically; raise UserError if that fails.

    Replaces the target of a symbolic link. Writes to pipes and devices in place.
    """
    require_no_loop(path)
    with reporting_disk_errors(path):
        if writes_through(path):
            path.write_bytes(content)
            return
        require_lock(path)
        path = path.resolve()
        temporary = path.with_name(f".{path.name}.part-{os.getpid()}")
        try:
            write_synced(temporary, content, path)
            temporary.replace(path)
            sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def remove_partial_files(directory: Path) -> None:
    """Remove what a killed `write_file` left in a directory; no other process may be writing there."""
    for partial in filter(Path.is_file, directory.glob(".*.part-*")):
        partial.unlink(missing_ok=True)


def read_manifest(directory: Path) -> dict[str, tuple[int, str]]:
    """Return the manifest of a directory, name -> size and SHA-256; raise CorruptError if it is unreadable."""
    try:
        manifest = json.loads((directory / MANIFEST).read_bytes())
        return {str(name): (int(entry["size"]), str(entry["sha256"])) for name, entry in manifest.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(
            f"{directory} has no readable {MANIFEST}; the directory must be complete; copy it again"
        ) from error


def _require_replaceable(directory: Path) -> None:
    """Raise UserError if the directory of a model has files that are neither the model's nor its conversions."""
    names = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    try:
        model_files = {MANIFEST, *read_manifest(directory)}
    except CorruptError:
        model_files = {name for name in names if _MODEL_FILE.fullmatch(name)}
    for name in names:
        if name not in model_files and not _CACHED.fullmatch(name):
            raise UserError(f"{directory / name} is not part of the model and would be lost; move it away, then rerun")


def verify_directory(directory: Path, *, without: str | None = None) -> dict[str, tuple[int, str]]:
    """Compare every file with the manifest and return the manifest; raise CorruptError for the first difference.

    without: pattern of file names to skip
    """
    manifest = read_manifest(directory)
    for name, (size, digest) in manifest.items():
        if without is not None and fnmatchcase(name, without):
            continue
        path = directory / name
        if not path.is_file() or path.stat().st_size != size or file_sha256(path) != digest:
            require_present(directory)
            raise CorruptError(
                f"{path} is missing or corrupt (its size or SHA-256 differs from {MANIFEST}); "
                "it must be unchanged since it was saved; copy it again or use another checkpoint"
            )
    return manifest


def require_present(directory: Path) -> None:
    """Raise CorruptError if a model directory has been removed in the meantime."""
    if not directory.exists():
        raise CorruptError(
            f"{directory} was removed while it was read; training removes old checkpoints (train.keep_last); rerun the "
            "command to read a newer one"
        )


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def manifest_digest(directory: Path) -> str:
    """Return the SHA-256 of a directory's manifest, which identifies all its files; "" if there is no manifest."""
    manifest = directory / MANIFEST
    return file_sha256(manifest) if manifest.is_file() else ""


def keep_mode(replaced: Path, descriptor: int) -> None:
    """Copy the permissions of a file, if it exists, to the open file that replaces it."""
    if replaced.is_file():
        os.fchmod(descriptor, stat.S_IMODE(replaced.stat().st_mode) | stat.S_IWUSR)


def write_synced(path: Path, data: bytes, replaces: Path | None = None) -> None:
    """Write a file and sync it to disk. replaces: file whose permissions to copy, if it exists"""
    with path.open("wb") as file:
        if replaces is not None:
            keep_mode(replaces, file.fileno())
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Sync a file, or the entries of a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def reporting_disk_errors(path: Path, *, needed: str = "", alternative: str = "") -> Iterator[None]:
    """Convert an OSError in a `with` block to a UserError.

    needed:      space requirement, for the message
    alternative: remedy other than freeing space
    """
    try:
        yield
    except OSError as error:
        advice = "it must be writable; change its permissions or choose another path"
        raise UserError(
            describe_write_error(error, str(path), advice, needed=needed, alternative=alternative)
        ) from error
