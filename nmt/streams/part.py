"""The unfinished output `NAME.part`, and beside it the record `NAME.part.jsonl` of what made it and how far it came.

The first line of the record says which model, options and input made the part. Each further line is a mark: so many
records are in so many bytes of the part, and their input has this SHA-256. A call that resumes cuts the part at the
last mark and continues only if model, options and the input before the mark are the same. The record is locked while a
call writes. A part without a mark has nothing to lose: it is removed or overwritten.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from io import FileIO
from pathlib import Path
from time import monotonic
from typing import Any

from nmt.recipe import CommandError, UserError
from nmt.streams.records import Record
from nmt.streams.sink import Sink, naming_errors

if sys.platform != "win32":
    import fcntl

_FORMAT = 1

SECONDS_BETWEEN_MARKS = 10.0
"""Longest work that is repeated after a process was killed; one that is interrupted or fails marks its end."""


def unfinished(path: Path) -> Path:
    """What an output is called until it is whole; it lies beside the target of a symbolic link."""
    place = Path(os.path.realpath(path))  # unlike `resolve`, it leaves a loop of links to whoever opens the file
    return place.with_name(f"{place.name}.part")


@dataclass(frozen=True)
class Origin:
    """What made an output, besides the lines of its input.

    facts: options by name, and SHA-256 digests of files; to resume, all must be equal
    names: how messages call what a digest stands for
    input: how messages call the input
    """

    facts: Mapping[str, Any]
    names: Mapping[str, str] = field(default_factory=dict)
    input: str = "the input"

    def differences(self, before: Origin) -> list[str]:
        """What is not as in an earlier origin, with both values."""
        keys = [*self.facts, *(key for key in before.facts if key not in self.facts)]
        changed = [key for key in keys if self.facts.get(key) != before.facts.get(key)]
        return [f"{key} was {before._show(key)} and is {self._show(key)}" for key in changed]

    def _show(self, key: str) -> str:
        value = self.facts.get(key)
        if isinstance(value, str) and value in self.names:
            return f"{self.names[value]} (SHA-256 {value[:12]})"
        if isinstance(value, list) and value and all(one in self.names for one in value):
            return " and ".join(f"{self.names[one]} (SHA-256 {one[:12]})" for one in value)
        return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class Mark:
    """How far a part came: records, bytes of the part that hold them, and SHA-256 of their input."""

    records: int = 0
    bytes: int = 0
    sha256: str = ""


class InputDigest:
    """SHA-256 of the records of an input, as far as they were read."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self.records = 0

    def add(self, records: Iterable[Record]) -> None:
        """Take in further records."""
        for record in records:
            lines = (record.line, record.prefix, "\t".join(record.required))  # none of which holds a line feed
            self._digest.update("".join(f"{line}\n" for line in lines).encode())
            self.records += 1

    def hexdigest(self) -> str:
        """The digest of all records so far."""
        return self._digest.hexdigest()


class Part:
    """An unfinished output that this process alone writes.

    path:   of the part
    start:  where the part ended when it was opened; what is written goes behind it
    before: what made the part up to there
    """

    def __init__(self, path: Path, record: FileIO, sink: Sink, start: Mark, before: Origin) -> None:
        """Write text to `sink` and marks to `record`; see `open_part`."""
        self.path, self.start, self.before = path, start, before
        self._record, self._sink = record, sink
        self._reached = self._marked = start
        self._is_torn = False
        self._last_mark = -SECONDS_BETWEEN_MARKS

    @property
    def records(self) -> int:
        """How many records a call that resumes finds done."""
        return self._marked.records

    def check_input(self, digest: InputDigest, name: str) -> None:
        """Raise CommandError where the records before the start are not those of the input `name`."""
        if digest.records < self.start.records:
            wrong = f"{name} has {digest.records:,} lines; {self.path} holds translations of {self.start.records:,}"
        elif self.start.records and digest.hexdigest() != self.start.sha256:
            wrong = f"the first {digest.records:,} lines of {name} are not those that {self.path} was made of"
        else:
            return
        raise CommandError(f"{wrong} ({self.before.input}); give the same input, or --restart to start over")

    def write(self, text: str, records: int, sha256: str) -> None:
        """Write some lines, after which the part holds `records`, whose input has the digest `sha256`."""
        self._is_torn = True
        self._sink.write(text)
        self._reached = Mark(records, self._sink.position, sha256)
        self._is_torn = False
        if monotonic() - self._last_mark >= SECONDS_BETWEEN_MARKS:
            self.mark()

    def mark(self) -> None:
        """Note how far the part came, as far as it can be cut there."""
        if self._reached.records == self._marked.records or (self._is_torn and self._sink.is_compressed):
            return
        mark = self._reached
        if self._sink.is_compressed:
            self._sink.end_member()
            mark = replace(mark, bytes=self._sink.position)
        self._sink.sync()  # so that no mark is on the disk before its text
        with naming_errors(str(self.path)):
            self._record.write(_line(asdict(mark)))
        self._marked, self._last_mark = mark, monotonic()


@contextmanager
def open_part(path: Path, origin: Origin, *, resume: bool = False, restart: bool = False) -> Iterator[Part]:
    """The part of the output `path` for the length of a `with` block; without an error, the output is whole at its end.

    Raises CommandError where there is a part and neither option says what to do with it, and where `resume` finds one
    that something else made; UserError where another process writes it, or where it cannot be written.
    """
    part = unfinished(path)
    with naming_errors(str(path)):
        record = _lock(part)
    with record:
        is_new = not os.fstat(record.fileno()).st_size
        try:
            with naming_errors(str(path)):
                file, start, before = _begin(part, record, origin, resume=resume, restart=restart)
        except BaseException:
            if is_new:
                _record_of(part).unlink(missing_ok=True)
            raise
        with file:
            sink = Sink(file, str(path), is_compressed=path.suffix == ".gz", position=start.bytes)
            opened = Part(part, record, sink, start, before)
            try:
                yield opened
                sink.finish()
                sink.sync()
                with naming_errors(str(path)):
                    part.replace(os.path.realpath(path))
                _record_of(part).unlink()
            except BaseException:
                with suppress(OSError, UserError):
                    opened.mark()
                if not opened.records:
                    part.unlink(missing_ok=True)
                    _record_of(part).unlink(missing_ok=True)
                raise


def _begin(part: Path, record: FileIO, origin: Origin, *, resume: bool, restart: bool) -> tuple[FileIO, Mark, Origin]:
    """The part, open and cut at its last mark, that mark, and what made all before it."""
    before, marks, ends = _read_record(record)
    start = Mark()
    if not restart:
        size = part.stat().st_size if part.exists() else 0
        start = _find_start(part, origin, before, [mark for mark in marks if mark.bytes <= size], size, resume=resume)
    if before is not None and start.records:
        os.ftruncate(record.fileno(), ends[marks.index(start)])
        file = part.open("r+b", buffering=0)
        file.truncate(start.bytes)
        file.seek(start.bytes)
        return file, start, before
    os.ftruncate(record.fileno(), 0)
    record.write(_line({"format": _FORMAT, **asdict(origin)}))
    return part.open("wb", buffering=0), start, origin


def _find_start(
    part: Path, origin: Origin, before: Origin | None, marks: list[Mark], size: int, *, resume: bool
) -> Mark:
    """The last mark of a part of `size` bytes; CommandError where this call must not continue there."""
    if before is None and size:
        raise CommandError(
            f"{part} has no record of what made it; only a part with {_record_of(part).name} can be resumed; "
            "remove it, or give --restart to start over"
        )
    if before is None or not marks:
        return Mark()
    if not resume:
        raise CommandError(
            f"{part} holds {marks[-1].records:,} lines that an interrupted call has translated; it is not "
            "overwritten; give --resume to continue, or --restart to start over"
        )
    if different := origin.differences(before):
        raise CommandError(
            f"{part} was made otherwise: {'; '.join(different)}; --resume needs the same; give the same, or --restart "
            "to start over"
        )
    return marks[-1]


# --- The record -------------------------------------------------------------------------------------------------------


def _record_of(part: Path) -> Path:
    return part.with_name(f"{part.name}.jsonl")


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _read_record(file: FileIO) -> tuple[Origin | None, list[Mark], list[int]]:
    """The origin, None where the file is no record, the marks, and where in the file each of their lines ends.

    A last line that was cut short does not count.
    """
    file.seek(0)
    first, *others = file.readall().splitlines(keepends=True) or [b""]
    try:
        head = json.loads(first)
        if head.pop("format") != _FORMAT:
            return None, [], []
        origin = Origin(**head)
        marks, ends, end = [], [], len(first)
        for line in others:
            if line.endswith(b"\n"):
                end += len(line)
                marks.append(Mark(**json.loads(line)))
                ends.append(end)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None, [], []
    return origin, marks, ends


def _lock(part: Path) -> FileIO:
    """The record of a part, open and locked; an empty one where there is none. UserError where another has the lock."""
    path = _record_of(part)
    while True:
        file = path.open("a+b", buffering=0)
        if sys.platform != "win32":
            try:
                # Not one of POSIX's record locks: those end when any handle of the file is closed.
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                raise UserError(
                    f"{part} is written by another process; one at a time may write an output; wait for it, end it, "
                    "or name another output"
                ) from None
            except OSError:  # a file system without locks
                return file
        if path.exists() and path.stat().st_ino == os.fstat(file.fileno()).st_ino:
            return file
        file.close()  # the holder has removed it in between
