"""Checksums of prepared files, because an array of token ids with a flipped bit loads without an error."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nmt.errors import UserError
from nmt.logs import progress
from nmt.processes.cores import num_cores
from nmt.storage.run_folder import read_json_object
from nmt.storage.sealed import file_sha256, sync, write_synced

_CHECKSUM = "checksum"


def sha256_of(paths: Sequence[Path], *, silent: bool = False) -> dict[str, str]:
    """Return the SHA-256 of files of one directory, by name; raise UserError if one is unreadable.

    Reads several files in parallel: a fast disk delivers more bytes than one core hashes.

    silent: show no progress bar; required while another bar is shown, because rich before 14.1 cannot show two
    """
    digests: dict[str, str] = {}
    sizes = [_size(path) for path in paths]
    with (
        progress("computing checksums", sum(sizes), "bytes", silent=silent) as bar,
        ThreadPoolExecutor(num_cores()) as threads,
    ):
        for path, size, digest in zip(paths, sizes, threads.map(_sha256, paths), strict=True):
            digests[path.name] = digest
            bar.advance(size)
    return digests


def damaged_files(directory: Path, expected: Mapping[str, str]) -> list[Path]:
    """Return the files whose SHA-256 differs from the expected one; raise UserError if one is unreadable."""
    actual = sha256_of([directory / name for name in expected])
    return [directory / name for name, digest in expected.items() if actual[name] != digest]


def require_undamaged(directory: Path, expected: Mapping[str, str], report: str) -> None:
    """Raise UserError if a file is missing or does not match its SHA-256. report: name of the file with the digests"""
    remedy = f"remove {directory}, then rerun to create it again"
    for name in expected:
        if not (directory / name).exists():
            raise UserError(f"{directory / name} is missing, but {report} lists it; {remedy}")
    if damaged := damaged_files(directory, expected):
        raise UserError(f"{damaged[0]} is damaged: its SHA-256 is not the one in {report}; {remedy}")


def write_checked(path: Path, report: Mapping[str, Any]) -> None:
    """Write a report with the SHA-256 of its own content, in ASCII, because file names need not be valid UTF-8."""
    content = {**report, _CHECKSUM: _content_digest(report)}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="ascii")


def read_checked(path: Path) -> dict[str, Any]:
    """Read a report that `write_checked` wrote, without its checksum; raise UserError if the checksum does not match.

    Otherwise like `read_json_object`. Reports of earlier versions have no checksum.
    """
    report = read_json_object(path)
    checksum = report.pop(_CHECKSUM, None)
    if checksum is not None and checksum != _content_digest(report):
        raise UserError(
            f"{path} is damaged: its content does not match its checksum; it must be unchanged; restore it, or remove "
            f"{path.parent} and rerun to create it again"
        )
    return report


def write_report(directory: Path, name: str, report: Mapping[str, Any], *, silent: bool = False) -> None:
    """Write a report with the SHA-256 of all files of a directory, and sync all of them to disk; see `sha256_of`."""
    paths = sorted(directory.iterdir())
    content = {**report, "sha256": sha256_of(paths, silent=silent)}
    write_synced(directory / name, (json.dumps(content, indent=1) + "\n").encode())
    for path in paths:
        sync(path)


def _content_digest(report: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(report, sort_keys=True).encode()).hexdigest()


def _size(path: Path) -> int:
    with _reading(path):
        return path.stat().st_size


def _sha256(path: Path) -> str:
    with _reading(path):
        return file_sha256(path)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        advice = "it must be readable; check its permissions, or restore it"
        raise UserError(f"cannot read {path}: {error.strerror}; {advice}") from error
