"""Where `nmt translate` writes to: standard output, or a file that takes its name when it is whole.

Until then it is called `NAME.part` and holds all translations so far, from which an interrupted call can resume.
Compressed it is a row of gzip members, which any program reads as one text: behind a whole one it can be cut. A pipe or
a device is written to as it is.
"""

from __future__ import annotations

import errno
import gzip
import os
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from itertools import takewhile
from pathlib import Path
from typing import Protocol

from nmt.recipe import UserError
from nmt.storage.sealed import writes_through

_STANDARD_OUTPUT = Path("-")
_GZIP = 31  # window bits: the largest window, with gzip's head and tail
_MEMBER_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 20


class _Compressor(Protocol):
    """What `zlib.compressobj` gives; its class has no public name."""

    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self, mode: int = ..., /) -> bytes: ...


@dataclass(frozen=True)
class Output:
    """Standard output (`-`) or a file.

    n_best: lines that a record may have, each of which begins with its number; 0 where each record is one line
    """

    path: Path
    n_best: int = 0

    def __post_init__(self) -> None:
        if self.path.suffix in (".xz", ".zst", ".bz2"):
            raise UserError(f"{self.path} cannot be written; output can be compressed as .gz alone; name it so")

    @property
    def unfinished(self) -> Path:
        """What the file is called until it is whole; it lies beside the target of a symbolic link."""
        place = self.path.resolve()
        return place.with_name(f"{place.name}.part")

    def require_other_than(self, inputs: Iterable[Path | None]) -> None:
        """Raise UserError where the output is one of the files that are read, which it would overwrite."""
        for path in inputs:
            if path is not None and path.is_file() and self.path.exists() and self.path.samefile(path):
                raise UserError(f"-o {self.path} is the input {path}; it must be another file; name a new one")

    @contextmanager
    def open(self, *, append: bool = False) -> Iterator[Sink]:
        """What to write to for the length of a `with` block; without an error, the file is whole at its end.

        With `append`, what was written to the unfinished file before stays. Raises UserError where it cannot be
        written.
        """
        if self.path == _STANDARD_OUTPUT:
            with open(sys.stdout.fileno(), "wb", buffering=0, closefd=False) as file:
                yield Sink(file, "standard output", is_compressed=False)
            return
        through = writes_through(self.path)
        with _naming_errors(str(self.path)):
            if self.path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if through:
                file = self.path.open("wb", buffering=0)
            else:
                file = self.unfinished.open("ab" if append else "wb", buffering=0)
        with file:
            sink = Sink(file, str(self.path), self._is_compressed)
            yield sink
            sink.finish(is_file=not through)
        if not through:
            with _naming_errors(str(self.path)):
                self.unfinished.replace(self.path.resolve())

    def records_done(self) -> int:
        """How many records an interrupted call has surely written; UserError where none can be gone on with."""
        if self.path == _STANDARD_OUTPUT:
            raise UserError("--resume cannot go on with standard output; the output must be a file; name one by -o")
        if writes_through(self.path):
            raise UserError(f"--resume cannot resume {self.path}, which is no plain file; name a file by -o")
        if not self.unfinished.exists():
            return 0
        if not self.n_best:
            return sum(1 for _ in self._lines())
        last = lines_of_last = 0
        for line in self._lines():
            number = self._number(line)
            lines_of_last = lines_of_last + 1 if number == last else 1
            last = number
        # Of the last record there may be more translations to come.
        return last if lines_of_last == self.n_best else max(last - 1, 0)

    def cut(self, records: int) -> None:
        """Keep only the first records of the unfinished file, where there is one."""
        if not self.unfinished.exists():
            return
        numbered = ((self._number(line) if self.n_best else place, line) for place, line in enumerate(self._lines(), 1))
        size = sum(len(line) for _, line in takewhile(lambda one: one[0] <= records, numbered))
        if self._is_compressed:
            _cut_members(self.unfinished, size)
        else:
            os.truncate(self.unfinished, size)

    @property
    def _is_compressed(self) -> bool:
        return self.path.suffix == ".gz"

    def _lines(self) -> Iterator[bytes]:
        """The whole lines of the unfinished file."""
        if not self._is_compressed:
            with self.unfinished.open("rb") as file:
                yield from takewhile(_is_whole, file)
            return
        rest = b""
        for block, _ in _decompress(self.unfinished):
            *lines, rest = (rest + block).split(b"\n")
            yield from (line + b"\n" for line in lines)

    def _number(self, line: bytes) -> int:
        """The number that a line begins with."""
        number = line.partition(b"\t")[0]
        if not number.isdigit():
            raise UserError(
                f"{self.unfinished} has a line without number; it must be what the same call has left; remove it"
            )
        return int(number)


def _is_whole(line: bytes) -> bool:
    return line.endswith(b"\n")


@contextmanager
def _naming_errors(name: str) -> Iterator[None]:
    """Turn what the system refuses into one line, but for a reader that has gone."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(f"cannot write {name}: {error.strerror}; choose a place that can be written to") from error


class Sink:
    """What text is written to; what was written can be read by others at once.

    A compressed one writes gzip members end to end, each of about as much text as compresses well.
    """

    def __init__(self, file: FileIO, name: str, is_compressed: bool) -> None:
        """Write to `file`, which errors call `name`; it has no buffer, so that each error shows where it arises."""
        self._file, self._name = file, name
        self._compressor = zlib.compressobj(wbits=_GZIP) if is_compressed else None
        self._member_bytes = 0

    def write(self, text: str) -> None:
        """Write some lines; UserError where there is no room for them."""
        content = text.encode()
        self._write_bytes(content if self._compressor is None else self._compress(content, self._compressor))

    def finish(self, *, is_file: bool = True) -> None:
        """Write what is held back and, for a file, wait until it is on the disk."""
        if self._compressor is not None:
            self._write_bytes(self._compressor.flush())
        if is_file:
            with _naming_errors(self._name):
                os.fsync(self._file.fileno())

    def _write_bytes(self, content: bytes) -> None:
        with _naming_errors(self._name):
            rest = memoryview(content)
            while rest:
                rest = rest[self._file.write(rest) or 0 :]

    def _compress(self, content: bytes, compressor: _Compressor) -> bytes:
        self._member_bytes += len(content)
        compressed = compressor.compress(content)
        if self._member_bytes < _MEMBER_BYTES:
            return compressed + compressor.flush(zlib.Z_SYNC_FLUSH)
        self._compressor, self._member_bytes = zlib.compressobj(wbits=_GZIP), 0
        return compressed + compressor.flush()


def _decompress(path: Path) -> Iterator[tuple[bytes, int | None]]:
    """The text of a compressed file as far as it goes, and behind each whole member where that ends in the file."""
    decompressor, position = zlib.decompressobj(wbits=_GZIP), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            while block:
                try:
                    text = decompressor.decompress(block)
                except zlib.error:
                    return
                unused = decompressor.unused_data
                position += len(block) - len(unused)
                yield text, position if decompressor.eof else None
                if decompressor.eof:
                    decompressor = zlib.decompressobj(wbits=_GZIP)
                block = unused


def _cut_members(path: Path, size: int) -> None:
    """Cut a compressed file behind the first `size` bytes of its text."""
    kept = seen = 0
    rest = b""  # the text behind the last member that is kept as it is
    for text, end in _decompress(path):
        seen, rest = seen + len(text), rest + text
        if end is not None and seen <= size:
            kept, rest = end, b""
        if seen >= size:
            break
    tail = rest[: len(rest) - (seen - size)] if seen > size else rest
    os.truncate(path, kept)
    with path.open("ab") as file:
        file.write(gzip.compress(tail) if tail else b"")
