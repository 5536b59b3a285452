"""Where `nmt translate` reads from: a file, or a pipe or terminal whose lines are taken as they come."""

from __future__ import annotations

import math
import os
import select
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from time import monotonic

from nmt.recipe import UserError
from nmt.streams.records import Layout, Record
from nmt.text.lines import MAX_LINE_BYTES, InvalidUtf8, count_lines, decode_lines, line_too_long, read_lines

_BLOCK_BYTES = 1 << 16
_LONGEST_WAIT = 1e6  # seconds; the system refuses very large numbers
_STANDARD_INPUT = Path("-")


@dataclass(frozen=True)
class Source:
    """The input, and how it is read.

    prefixes: a file of what each translation must begin with; required: one of the phrases that each must hold
    pipe:     what the lines come through as they are written; None for a file, which can be read again
    """

    path: Path
    layout: Layout
    invalid_utf8: InvalidUtf8 = "error"
    prefixes: Path | None = None
    required: Path | None = None
    pipe: PipeLines | None = None

    @classmethod
    def open(
        cls,
        path: Path,
        layout: Layout,
        invalid_utf8: InvalidUtf8,
        prefixes: Path | None = None,
        required: Path | None = None,
    ) -> Source:
        """Of a file, a named pipe, or `-` for standard input; raises UserError where it cannot be opened.

        A header is read at once: the layout of the source knows its names.
        """
        source = cls(path, layout, invalid_utf8, prefixes, required)
        if path == _STANDARD_INPUT:
            source = replace(source, pipe=PipeLines(_standard_input(), source.name))
        elif path.exists() and not path.is_file() and not path.is_dir():
            try:
                source = replace(source, pipe=PipeLines(os.open(path, os.O_RDONLY), source.name))
            except OSError as error:
                raise UserError(f"cannot read {path}: {error.strerror}; give a file that can be read") from error
        if not layout.header:
            return source
        return replace(source, layout=layout.with_header(next(source._lines(), None), source.name))

    @property
    def name(self) -> str:
        """What errors call it."""
        return "standard input" if self.path == _STANDARD_INPUT else str(self.path)

    @property
    def is_terminal(self) -> bool:
        """Whether a person types it."""
        return self.path == _STANDARD_INPUT and os.isatty(_standard_input())

    def check(self) -> int | None:
        """Read a file through, so that what is wrong with it shows before any work; how many lines it has.

        None for a pipe. Raises UserError as `records` does.
        """
        if self.pipe is not None:
            return None
        count = sum(1 for _ in replace(self, prefixes=None, required=None).records())
        for path in filter(None, (self.prefixes, self.required)):
            if (given := count_lines(path)) != count:
                raise UserError(
                    f"{path} has {given:,} lines and {self.name} has {count:,}; each line of the text needs one, which "
                    "may be empty; check both"
                )
        return count

    def records(self) -> Iterator[Record]:
        """The lines one by one, and no further than asked for.

        Raises UserError, with the number of the line, for one that holds no text where it should, or is not UTF-8.
        """
        records: Iterator[Record] = (
            self.layout.read(line, number, self.name) for number, line in enumerate(self._lines(), start=1)
        )
        if self.prefixes is not None:
            records = self._beside(records, self.prefixes, lambda record, line: replace(record, prefix=line))
        if self.required is not None:
            records = self._beside(records, self.required, _requiring)
        return records

    def _lines(self) -> Iterator[str]:
        """The lines, but the header once it is known."""
        has_read_header = self.layout.names is not None
        if self.pipe is None:
            return islice(read_lines(self.path, self.invalid_utf8), int(has_read_header), None)
        return decode_lines(self.pipe, self.name, self.invalid_utf8, first=1 + has_read_header)

    def _beside(self, records: Iterator[Record], path: Path, add: Callable[[Record, str], Record]) -> Iterator[Record]:
        """Each record with what the line beside it says."""
        lines = read_lines(path, self.invalid_utf8)
        for record in records:
            line = next(lines, None)
            if line is None:
                raise UserError(
                    f"{path} has {record.number - 1:,} lines and {self.name} has more; each line of the text needs "
                    "one, which may be empty; check both"
                )
            yield add(record, line)


def _requiring(record: Record, line: str) -> Record:
    """The record with the phrases between the tabs of a line."""
    return replace(record, required=tuple(phrase for phrase in line.split("\t") if phrase.strip()))


class PipeLines:
    """The lines of a pipe or a terminal, each with its line feed but perhaps the last; can be asked whether one comes.

    It reads the descriptor itself and starts no thread: a reader that waits for input must not hold up the end of the
    program, and while a window is translated the pipe's own buffer makes the writer wait.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        self._descriptor, self._name = descriptor, name
        self._buffer = bytearray()
        self._searched = 0  # so many bytes of the buffer hold no line feed
        self._has_ended = False
        self._problem: OSError | None = None
        self._count = 0

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        """The next line, whenever it comes; UserError for one that is too long, or where reading fails."""
        self._read_on(None)
        end = self._buffer.find(b"\n", self._searched) + 1
        if not end and self._problem is not None:
            raise UserError(
                f"cannot read {self._name}: {self._problem.strerror}; it must stay open; start again"
            ) from self._problem
        if not end and not self._buffer:
            raise StopIteration
        end = end or len(self._buffer)
        self._count += 1
        if end > MAX_LINE_BYTES:
            raise line_too_long(self._name, self._count)
        line = bytes(self._buffer[:end])
        del self._buffer[:end]
        self._searched = 0
        return line

    def wait(self, seconds: float) -> bool:
        """Whether the next line, or the end, is there within so many seconds, which may be infinitely many."""
        return self._read_on(monotonic() + min(seconds, _LONGEST_WAIT) if seconds < math.inf else None)

    def _read_on(self, deadline: float | None) -> bool:
        """Read until a whole line is in the buffer, or the end, or all that can be a line; False if time is over."""
        while self._buffer.find(b"\n", self._searched) < 0 and not self._has_ended:
            if len(self._buffer) > MAX_LINE_BYTES:
                return True
            self._searched = len(self._buffer)
            patience = None if deadline is None else max(deadline - monotonic(), 0.0)
            try:
                if not select.select([self._descriptor], [], [], patience)[0]:
                    return False
                block = os.read(self._descriptor, _BLOCK_BYTES)
            except OSError as error:
                self._problem, block = error, b""
            self._buffer += block
            self._has_ended = not block
        return True


def _standard_input() -> int:
    if sys.stdin is None:
        raise UserError("standard input is closed; there must be text to translate; name a file, or use a pipe")
    return sys.stdin.fileno()
