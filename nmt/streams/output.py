"""Where `nmt translate` writes to: standard output, or a file that takes its name when it is whole.

Until then it is a part from which an interrupted call can resume: see `nmt.streams.part`. A pipe or a device is written
to as it is.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nmt.processes.interruption import ended_by_reader
from nmt.recipe import UserError
from nmt.storage.sealed import writes_through
from nmt.streams.part import Origin, Part, open_part, unfinished
from nmt.streams.sink import Sink, naming_errors
from nmt.text.lines import count_lines, read_lines

# Other names of standard output; opened by them, a file that it was redirected to would lose what is in it.
_NAMES_OF_STANDARD_OUTPUT = {"/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"}


STANDARD_STREAM = Path("-")
"""Standard input or output, where a command can read or write it."""


def require_no_input(option: str, out: Path, inputs: Iterable[Path | None]) -> None:
    """Raise UserError where an output is one of the files that are read, which it would overwrite.

    inputs: files, `-` for standard input, and folders of which all files are read, such as models
    """
    if sys.stdout is None if out == STANDARD_STREAM else not out.is_file():
        return
    own = os.fstat(sys.stdout.fileno()) if out == STANDARD_STREAM else out.stat()
    if not stat.S_ISREG(own.st_mode):
        return
    for path in filter(None, inputs):
        if path == STANDARD_STREAM and sys.stdin is not None:
            found = {"standard input": os.fstat(0)}
        else:
            files = path.iterdir() if path.is_dir() else [path]
            found = {str(file): file.stat() for file in files if file.is_file()}
        for name, status in found.items():
            if os.path.samestat(own, status):
                called = "standard output" if out == STANDARD_STREAM else f"{option} {out}"
                raise UserError(f"{called} is the input {name}; it must be another file; name a new one")


class Stream:
    """An output that cannot be resumed: standard output, a pipe or a device."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, text: str, records: int, sha256: str) -> None:
        """Write some lines; the rest is for outputs that can be resumed, see `Part.write`."""
        self._sink.write(text)


@dataclass(frozen=True)
class Output:
    """Standard output (`-`) or a file.

    is_numbered: whether a record may be several lines, each of which begins with its number
    has_header:  whether a line of names stands before the records
    """

    path: Path
    is_numbered: bool = False
    has_header: bool = False

    def __post_init__(self) -> None:
        if self.path.suffix in (".xz", ".zst", ".bz2"):
            raise UserError(f"{self.path} cannot be written; output can be compressed as .gz alone; name it so")
        if str(self.path) in _NAMES_OF_STANDARD_OUTPUT:
            object.__setattr__(self, "path", STANDARD_STREAM)

    @property
    def unfinished(self) -> Path:
        """What the file is called until it is whole."""
        return unfinished(self.path)

    @property
    def is_stream(self) -> bool:
        """Whether it is written to as it is: standard output, a pipe or a device."""
        return self.path == STANDARD_STREAM or writes_through(self.path)

    def require_other_than(self, inputs: Iterable[Path | None]) -> None:
        """Raise UserError where the output is one of the files that are read, which it would overwrite."""
        require_no_input("-o", self.path, inputs)

    @contextmanager
    def open(self, origin: Origin, *, resume: bool = False, restart: bool = False) -> Iterator[Part | Stream]:
        """What to write to for the length of a `with` block; without an error, the file is whole at its end.

        Raises UserError where it cannot be written, and as `open_part` does.
        """
        if self.is_stream:
            with self._open_stream() as stream:
                yield stream
            return
        with naming_errors(str(self.path)):
            if self.path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with open_part(self.path, origin, resume=resume, restart=restart) as part:
            yield part

    @contextmanager
    def _open_stream(self) -> Iterator[Stream]:
        if self.path == STANDARD_STREAM:
            with (
                open(sys.stdout.fileno(), "wb", buffering=0, closefd=False) as file,
                ended_by_reader(file.fileno()),
            ):
                yield Stream(Sink(file, "standard output", is_compressed=False))
            return
        with naming_errors(str(self.path)):
            file = self.path.open("wb", buffering=0)
        with file, ended_by_reader(file.fileno()):
            sink = Sink(file, str(self.path), is_compressed=self.path.suffix == ".gz")
            yield Stream(sink)
            sink.finish()

    def require_file(self, option: str = "--resume") -> None:
        """Raise UserError where the output is none that can be resumed, or restarted, as the option asks."""
        cannot = f"{option} cannot {option.removeprefix('--')}"
        if self.path == STANDARD_STREAM:
            raise UserError(f"{cannot} standard output; the output must be a file; name one by -o")
        if self.is_stream:
            raise UserError(f"{cannot} {self.path}, which is no plain file; name a file by -o")

    def count_finished(self) -> int | None:
        """How many records the finished file has; None where there is none, or an unfinished one beside it."""
        if not self.path.is_file() or self.unfinished.exists():
            return None
        if not self.is_numbered:
            return max(count_lines(self.path) - self.has_header, 0)
        line = "0\t"
        for line in read_lines(self.path):  # noqa: B007 - the last one counts
            pass
        found = re.match(r"([0-9]+)(\t| \|\|\| )", line)
        return -1 if found is None else int(found[1]) + (found[2] != "\t")  # Moses counts from 0
