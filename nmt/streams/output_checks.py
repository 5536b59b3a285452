"""Checks of the files that a command writes: each must be writable, and none may overwrite an input or other data."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from nmt.errors import UserError
from nmt.storage.run_folder import owning_directory
from nmt.storage.sealed import require_no_loop, require_writable, writes_through
from nmt.text.lines import STANDARD_STREAM


def require_not_input(option: str, out: Path, inputs: Iterable[Path | None]) -> None:
    """Raise UserError if an output is the same file or pipe as an input, or a file of a run or model.

    option: the option that names the output; inputs: files, `-`, and directories whose files are read
    """
    if out == STANDARD_STREAM:
        out_status = None if sys.stdout is None else os.fstat(sys.stdout.fileno())
    else:
        out_status = out.stat() if out.is_file() or out.is_fifo() else None
    if out_status is None or not _is_file_or_pipe(out_status):
        return
    for path in filter(None, inputs):
        if path == STANDARD_STREAM and sys.stdin is not None:
            found = {"standard input": os.fstat(0)}
        else:
            files = path.iterdir() if path.is_dir() else [path]
            found = {str(file): file.stat() for file in files if file.is_file() or file.is_fifo()}
        for name, status in found.items():
            if os.path.samestat(out_status, status):
                output = "standard output" if out == STANDARD_STREAM else f"{option} {out}"
                raise UserError(f"{output} is the input {name}; it must be another file; choose a new one")
    if out != STANDARD_STREAM and (owner := owning_directory(out)) is not None:
        raise UserError(f"{option} {out} is a file of {owner}; it must be another file; choose a new one")


def _is_file_or_pipe(status: os.stat_result) -> bool:
    """Return whether this is a regular file or a pipe.

    False for terminals and sockets, which are often both standard input and standard output.
    """
    return stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode)


def is_standard_output(path: Path) -> bool:
    """Return whether a path, such as /dev/stdout, is the regular file or pipe that standard output refers to."""
    is_file_or_pipe = path.is_file() or path.is_fifo()
    return is_file_or_pipe and sys.stdout is not None and os.path.samestat(path.stat(), os.fstat(sys.stdout.fileno()))


def require_distinct(outputs: Mapping[str, Path | None]) -> None:
    """Raise UserError if two of the files that a command writes are the same. outputs: by option"""
    seen: dict[Path, str] = {}
    for option, path in outputs.items():
        if path in (None, STANDARD_STREAM) or (path.exists() and not path.is_file() and not path.is_fifo()):
            continue
        other = seen.setdefault(Path(os.path.realpath(path)), option)
        if other != option:
            raise UserError(f"{option} {path} is also {other}; each needs its own file; choose a new one")


def require_output(
    option: str, out: Path | None, inputs: Iterable[Path | None] = (), replaces: bytes | None = None
) -> None:
    """Raise UserError early if the output file of an option cannot be written or must not be replaced.

    inputs:   see `require_not_input`
    replaces: mark of all outputs of the command, see `_has_mark`; other files are not replaced
    """
    if out is None:
        return
    require_no_loop(out)
    folder = Path(os.path.realpath(out)).parent
    if not folder.is_dir():
        raise UserError(f"cannot write {out}: {folder} is not a directory; {option} must be in an existing directory")
    if not writes_through(out):
        require_writable(folder, out)
    if out.is_dir():
        raise UserError(f"cannot write {out}: it is a directory; {option} must be a file; name one in it")
    if out == STANDARD_STREAM or is_standard_output(out):
        raise UserError(f"{option} {out} is standard output; it must be a file; name one")
    require_not_input(option, out, inputs)
    if replaces is not None and out.is_file() and not _has_mark(out, replaces):
        raise UserError(
            f"{out} was not written by this command; {option} replaces only its own files; choose a new name"
        )


def _has_mark(path: Path, mark: bytes) -> bool:
    """Return whether a file is empty or has these bytes near its start; for PDF, near its end."""
    with path.open("rb") as file:
        content = file.read(1_000)
        if content.startswith(b"%PDF"):  # its metadata is at the end
            file.seek(max(0, path.stat().st_size - 10_000))
            content = file.read()
    return not content or mark in content


def require_new_file(out: Path) -> Path:
    """Return the path of -o; raises UserError unless it is that of a new file in a writable directory."""
    if out == STANDARD_STREAM:
        raise UserError("-o - is not supported; it must be a new file; name one")
    if os.path.lexists(out):
        raise UserError(f"{out} already exists; -o must be a new file; choose another name")
    require_output("-o", out)
    return out
