"""The output of `nmt translate`: standard output, a pipe, a device, or a file.

Translations for a file go to a partial output, which a later command can resume and which is renamed when complete; see
`nmt.streams.part`.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from nmt.errors import UserError
from nmt.processes.interruption import ended_by_reader
from nmt.storage.sealed import require_no_loop, writes_through
from nmt.streams.part import Origin, PartFile, journal_path, open_part, part_path
from nmt.streams.records import DOCUMENT_FORMATS, Format
from nmt.streams.sink import Sink, write_errors
from nmt.text.lines import STANDARD_STREAM, count_lines, read_lines

# Opening these would truncate a file that standard output is redirected to.
_NAMES_OF_STANDARD_OUTPUT = {"/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"}
# Number of leading bytes to check: translation memories, shortlists and weights contain a null byte there.
_HEAD_BYTES = 4096
_OWN_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/([0-9]+)")


def _own_descriptor(path: Path) -> int | None:
    """Return the open descriptor that a path such as /dev/fd/3 or /dev/stderr names, directly or by links."""
    for _ in range(40):  # the kernel's limit on links
        descriptor = _OWN_DESCRIPTOR.fullmatch(str(path.absolute()))
        if descriptor:
            return int(descriptor[1])
        if not path.is_symlink():
            break
        path = path.parent / path.readlink()
    return None


def _is_binary(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return b"\0" in file.read(_HEAD_BYTES)
    except OSError:  # missing or unreadable
        return False


class Stream:
    """An output that cannot be resumed: standard output, a pipe or a device."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, text: str, records: int, sha256: str) -> None:
        """Write text; the other arguments are those of `PartFile.write`."""
        self._sink.write(text)


@dataclass(frozen=True)
class Output:
    """Standard output (`-`) or a file.

    is_numbered: whether a record may have several lines, each starting with the number of the record
    header:      the first line, with its line feed; "" if there is none
    """

    path: Path
    is_numbered: bool = False
    header: str = ""

    def __post_init__(self) -> None:
        if self.path.suffix.lower() in (".xz", ".zst", ".bz2"):
            raise UserError(f"cannot write {self.path}: only .gz compression is supported; change the name")
        if str(self.path) in _NAMES_OF_STANDARD_OUTPUT:
            object.__setattr__(self, "path", STANDARD_STREAM)
        if self.path != STANDARD_STREAM:
            require_no_loop(self.path)

    @property
    def part(self) -> Path:
        """The path of the incomplete output."""
        return part_path(self.path)

    @property
    def written(self) -> dict[str, Path]:
        """The output and the files that the command writes next to it, by their names in messages."""
        if self.is_stream:
            return {"-o": self.path}
        part = self.part
        return {"-o": self.path, "the partial output of -o": part, "the journal of -o": journal_path(part)}

    @property
    def is_stream(self) -> bool:
        """Whether the output is standard output, a pipe or a device, which are written in place."""
        return self.path == STANDARD_STREAM or writes_through(self.path) or _own_descriptor(self.path) is not None

    def open(
        self, origin: Origin, *, resume: bool = False, restart: bool = False
    ) -> AbstractContextManager[PartFile | Stream]:
        """Open the output for a `with` block; a file is complete after a block that ends without an error.

        Raises UserError if it cannot be written, and the errors of `open_part`.
        """
        if self.is_stream:
            return self._open_stream()
        with write_errors(str(self.path)):
            if self.path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        return open_part(self.path, origin, resume=resume, restart=restart)

    @contextmanager
    def _open_stream(self) -> Iterator[Stream]:
        is_standard = self.path == STANDARD_STREAM
        name = "standard output" if is_standard else str(self.path)
        descriptor = sys.stdout.fileno() if is_standard else _own_descriptor(self.path)
        with write_errors(name):
            file = self.path.open("wb", buffering=0) if descriptor is None else FileIO(os.dup(descriptor), "wb")
        with file, ended_by_reader(file.fileno()):
            sink = Sink(file, name, is_compressed=self.path.suffix.lower() == ".gz")
            yield Stream(sink)
            sink.finish()

    def require_text(self) -> None:
        """Raise UserError if the output would replace a file that is not text."""
        if not self.is_stream and self.path.suffix.lower() != ".gz" and _is_binary(self.path):
            raise UserError(f"{self.path} is not a text file; only text files are overwritten; choose a new file")

    def require_resumable(self, kind: Format, *, resume: bool, restart: bool) -> None:
        """Raise UserError if --resume or --restart is given and does not support the output. kind: of the input"""
        if resume and kind in DOCUMENT_FORMATS:
            raise UserError(
                f"--resume does not support {kind}; a document is translated as a whole; leave out --resume"
            )
        if (resume or restart) and self.is_stream:
            action = "resume" if resume else "restart"
            is_standard = self.path == STANDARD_STREAM
            name, expected = ("standard output", "a file") if is_standard else (self.path, "a regular file")
            raise UserError(f"--{action} cannot {action} {name}; the output must be {expected}; set one with -o")

    def count_finished(self) -> int | None:
        """Return the number of records of the complete output.

        None if there is no output or a partial one exists; -1 if the file should be an n-best list but is not.
        """
        if not self.path.is_file() or self.part.exists():
            return None
        if not self.is_numbered:
            return max(count_lines(self.path) - bool(self.header), 0)
        line = "0\t"
        for line in read_lines(self.path):  # noqa: B007 - the number of the last line is used
            pass
        found = re.match(r"([0-9]+)(\t| \|\|\| )", line)
        if found is None:
            return -1
        is_moses = found[2] != "\t"
        return int(found[1]) + 1 if is_moses else int(found[1])  # Moses counts from 0
