"""The input of `nmt translate`: a file, or a pipe or terminal that is read line by line."""

from __future__ import annotations

import math
import os
import select
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from time import monotonic

from nmt.decode.glossary import Glossary, split_forms
from nmt.decode.line_encoder import CONTINUES_LINES, RIGHT_TO_LEFT
from nmt.decode.task import Previous
from nmt.errors import UserError
from nmt.logs import counted
from nmt.recipe import Context, DecodeRecipe
from nmt.storage.model_metadata import ModelMetadata
from nmt.streams.records import DOCUMENT_FORMATS, Record, RecordReader
from nmt.text.context import is_blank
from nmt.text.lines import (
    MAX_LINE_BYTES,
    STANDARD_STREAM,
    InvalidUtf8,
    count_lines,
    decode_lines,
    input_name,
    line_too_long,
    read_lines,
    unreadable,
)

_BLOCK_BYTES = 1 << 16
_MAX_WAIT = 1e6  # seconds; `poll` rejects very large timeouts


@dataclass(frozen=True)
class Source:
    """The input, with optional files of the target prefix and the required phrases of each line.

    glossary: glossary of all lines
    pipe:     the lines of a pipe or terminal; None for a file, which can be read several times
    """

    path: Path
    reader: RecordReader
    invalid_utf8: InvalidUtf8 = "error"
    prefixes: Path | None = None
    required: Path | None = None
    glossary: Glossary | None = None
    pipe: PipeLines | None = None

    @classmethod
    def open(
        cls,
        path: Path,
        reader: RecordReader,
        invalid_utf8: InvalidUtf8,
        prefixes: Path | None = None,
        required: Path | None = None,
        glossary: Path | None = None,
    ) -> Source:
        """Open a file, a named pipe, or `-` for standard input, and read the header, if any.

        Raises UserError if the input cannot be opened, or if its header or the glossary is invalid.
        """
        terms = None if glossary is None else Glossary.load(glossary)
        source = cls(path, reader, invalid_utf8, prefixes, required, terms, _open_pipe(path))
        if not reader.header:
            return source
        return replace(source, reader=reader.with_header(next(source._lines(), None), source.name))

    @property
    def name(self) -> str:
        """The name of the input in messages."""
        return input_name(self.path)

    @property
    def description(self) -> str:
        """The name of the input and of the files that accompany it."""
        files = {"--prefixes": self.prefixes, "--required": self.required}
        given = [f"{option} {path}" for option, path in files.items() if path is not None]
        return f"{self.name} with {' and '.join(given)}" if given else self.name

    @property
    def _units(self) -> tuple[str, str]:
        """What has a line in the accompanying files, in singular and plural."""
        if self.reader.format in DOCUMENT_FORMATS:
            return "text segment", "text segments"
        return "line of text", "lines of text"

    @property
    def is_terminal(self) -> bool:
        """Whether the input is typed at a terminal."""
        return self.path == STANDARD_STREAM and os.isatty(_standard_input())

    def check(self) -> int | None:
        """Read a whole file to report errors before translation starts; return its number of lines, None for a pipe.

        Raises UserError as `records` does.
        """
        if self.pipe is not None:
            return None
        unit, units = self._units
        count = sum(record.is_line for record in replace(self, prefixes=None, required=None).records())
        for path in filter(None, (self.prefixes, self.required)):
            num_lines = count_lines(path)
            if num_lines != count:
                raise UserError(
                    f"{path} has {counted(num_lines, 'line')} and {self.name} has {counted(count, unit, units)}; it "
                    f"must have one line, possibly empty, per {unit}; check both"
                )
        if self.prefixes is not None or self.required is not None:
            for _ in self.records():  # reports errors of these files
                pass
        return count

    def file_states(self) -> dict[Path, tuple[int, int, int]]:
        """Return what changes when a file that is read is modified: inode, size and time.

        Pipes and deleted files are missing.
        """
        states = {}
        for path in (self.path if self.pipe is None else None, self.prefixes, self.required):
            if path is not None and path.exists():
                status = path.stat()
                states[path] = status.st_ino, status.st_size, status.st_mtime_ns
        return states

    def records(self) -> Iterator[Record]:
        """Yield the records without reading ahead.

        Raises UserError, with the line number, for a line that is not UTF-8 or has no text in the expected field.
        """
        reader = self.reader
        lines = self._lines()
        name = self.name
        if reader.format in DOCUMENT_FORMATS:
            records = reader.read_document(lines, name)
        else:
            records = (reader.read(line, number, name) for number, line in enumerate(lines, start=1))
        if self.prefixes is not None:
            records = self._add_lines(records, self.prefixes, self._with_prefix)
        if self.required is not None:
            records = self._add_lines(records, self.required, _with_required)
        return with_context(records, reader.context) if reader.context.size else records

    def has_required(self, decode: DecodeRecipe) -> bool:
        """Return whether --required, --glossary or the fields of a JSON Lines file require phrases or terms.

        Terms that are annotated in the source are not required. `decode.require` is not considered.
        """
        annotates = decode.glossary_mode == "annotate"
        if self.required is not None or (self.glossary is not None and not annotates):
            return True
        if self.pipe is not None or self.reader.format != "jsonl":
            return False
        return any(record.required or (record.terms and not annotates) for record in self.records())

    def require_supported(self, decode: DecodeRecipe, metadata: ModelMetadata, *, required: bool) -> None:
        """Raise UserError for constraints of lines that sampling or the model does not support, before translation.

        The fields of a pipe are checked when they arrive. required: see `has_required`
        """
        if metadata.is_language_model and (self.glossary is not None or self._has_terms() or self._has_prefix()):
            raise UserError(CONTINUES_LINES)
        if metadata.reverse_target and self._has_prefix():
            raise UserError(f"{RIGHT_TO_LEFT}; remove the prefixes")
        if decode.sampling and required:
            raise UserError(
                "sampling does not support required phrases and glossaries; they need beam search; set decode.sampling "
                "to false, or leave out both"
            )

    def _has_prefix(self) -> bool:
        """Return whether a line of --prefixes or of a JSON Lines file has a prefix."""
        if self.pipe is not None:
            return self.prefixes is not None and any(map(str.strip, read_lines(self.prefixes, self.invalid_utf8)))
        may_have = self.prefixes is not None or self.reader.format == "jsonl"
        return may_have and any(record.prefix.strip() for record in self.records())

    def _has_terms(self) -> bool:
        """Return whether a line of a JSON Lines file has glossary terms."""
        return self.pipe is None and self.reader.format == "jsonl" and any(record.terms for record in self.records())

    def _with_prefix(self, record: Record, line: str) -> Record:
        if record.prefix and line.strip():
            raise UserError(
                f"{self.name}, line {record.number} has a field 'prefix', and --prefixes has another one; a line can "
                "have only one prefix; remove one of them"
            )
        return replace(record, prefix=record.prefix or line)

    def _lines(self) -> Iterator[str]:
        """Yield the lines, without the header once it has been read."""
        header_lines = self.reader.header_lines
        if self.pipe is None:
            return islice(read_lines(self.path, self.invalid_utf8), header_lines, None)
        return decode_lines(self.pipe, self.name, self.invalid_utf8, first=header_lines + 1)

    def _add_lines(
        self, records: Iterator[Record], path: Path, add: Callable[[Record, str], Record]
    ) -> Iterator[Record]:
        """Combine each record with the line of the same number in another file."""
        lines = read_lines(path, self.invalid_utf8)
        expected = f"it must have one line, possibly empty, per {self._units[0]}; check both"
        for record in records:
            if not record.is_line:
                yield record
                continue
            line = next(lines, None)
            if line is None:
                raise UserError(f"{path} has {counted(record.number - 1, 'line')} and {self.name} has more; {expected}")
            yield add(record, line)
        if next(lines, None) is not None:
            raise UserError(f"{path} has more lines than {self.name} has {self._units[1]}; {expected}")


def _with_required(record: Record, line: str) -> Record:
    phrases = [split_forms(phrase) for phrase in line.split("\t") if phrase.strip()]
    return replace(record, required=(*record.required, *phrases))


def with_context(records: Iterable[Record], context: Context) -> Iterator[Record]:
    """Yield records with the previous texts as context; a blank text ends a document.

    A record with its own context starts a document after that context. If the model needs translations of the context,
    only the first record of a document has a context, possibly empty: the others need translations not yet known.
    """
    recent: deque[Previous] = deque(maxlen=context.size)
    is_first = True
    for record in records:
        text = record.text or ""
        if record.context is not None:
            recent = deque(record.context, maxlen=context.size)
            is_first = True
        yield replace(record, context=tuple(recent) if is_first or not context.has_target else None)
        is_first = is_blank(text)
        if is_first:
            recent.clear()
        else:
            recent.append(text)


class PipeLines:
    """Iterator over the lines of a pipe or terminal, as bytes with their line feeds, that supports waiting for a line.

    Reads the descriptor directly, without a thread: a thread blocked in a read would delay the exit of the process.
    While a window is translated, the buffer of the pipe limits how far the writer gets ahead.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        self._descriptor, self._name = descriptor, name
        self._poll = select.poll()  # `select.select` rejects descriptors from 1024 on
        self._poll.register(descriptor, select.POLLIN)
        self._buffer = bytearray()
        self._searched = 0  # bytes of the buffer known to contain no line feed
        self._has_ended = False
        self._problem: OSError | None = None
        self._count = 0

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        """Return the next line, waiting for it; raises UserError if it is too long or reading fails."""
        self._fill(None)
        end = self._buffer.find(b"\n", self._searched) + 1
        if not end and self._problem is not None:
            raise UserError(
                f"cannot read {self._name}: {self._problem.strerror}; it must stay open; rerun the command"
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
        """Wait at most `seconds`, possibly inf; return whether the next line or the end of the input is available."""
        return self._fill(monotonic() + min(seconds, _MAX_WAIT) if seconds < math.inf else None)

    def _fill(self, deadline: float | None) -> bool:
        """Read until the buffer has a line or exceeds its limit, or the input ends; return False after the deadline."""
        while self._buffer.find(b"\n", self._searched) < 0 and not self._has_ended:
            if len(self._buffer) > MAX_LINE_BYTES:
                return True
            self._searched = len(self._buffer)
            timeout = None if deadline is None else max(deadline - monotonic(), 0.0) * 1000
            try:
                if not self._poll.poll(timeout):
                    return False
                block = os.read(self._descriptor, _BLOCK_BYTES)
            except OSError as error:
                self._problem, block = error, b""
            self._buffer += block
            self._has_ended = not block
        return True


def _open_pipe(path: Path) -> PipeLines | None:
    """Open standard input or a named pipe; return None for a file.

    Raises UserError, before the model is converted or loaded, if the input cannot be opened.
    """
    if path == STANDARD_STREAM:
        return PipeLines(_standard_input(), input_name(path))
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            return PipeLines(os.open(path, os.O_RDONLY), input_name(path))
        path.open("rb").close()
    except OSError as error:
        raise unreadable(path, error) from error
    return None


def _standard_input() -> int:
    if sys.stdin is None:
        raise UserError("standard input is closed; expected text to translate; pass a file, or use a pipe")
    return sys.stdin.fileno()
