"""The incomplete output `NAME.part` and its journal `NAME.part.jsonl`, from which an interrupted command resumes.

The first line of the journal is the origin of the part: model, options and input. Each further line is a mark: the
number of records so far, the size of the part, and the SHA-256 of the input and of the part so far. A resuming command
truncates the part at the last mark if model, options and the part up to the mark are unchanged; before it writes, it
checks that the input up to the mark is unchanged. The journal is locked while a command writes. A part whose journal
has no marks is removed or overwritten; one without a valid journal is an error, except with --restart.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from io import FileIO
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from nmt.errors import CommandError, UserError
from nmt.logs import counted
from nmt.storage.sealed import keep_mode
from nmt.streams.records import Record
from nmt.streams.sink import Sink, lock, write_errors

if TYPE_CHECKING:
    from hashlib import _Hash

_FORMAT = 1
_START = b'{"format": '

SECONDS_BETWEEN_MARKS = 10.0
"""Output written within this time after a mark is lost if the process is killed. Interruptions and errors lose none."""


def part_path(path: Path) -> Path:
    """Return the path of the incomplete output; if `path` is a symbolic link, it is next to the target."""
    target = Path(os.path.realpath(path))  # `require_no_loop` has rejected symbolic link loops
    return target.with_name(f"{target.name}.part")


@dataclass(frozen=True)
class Origin:
    """The settings that determine an output, besides its input.

    settings: options by name, and SHA-256 digests of files; all must be equal to resume
    names:    names of the files in messages, by digest
    input:    `Source.description`, for messages
    """

    settings: Mapping[str, Any]
    names: Mapping[str, str] = field(default_factory=dict)
    input: str = "the input"

    def differences(self, before: Origin) -> list[str]:
        """Describe each setting that differs from an earlier origin."""
        keys = [*self.settings, *(key for key in before.settings if key not in self.settings)]
        changed = [key for key in keys if self.settings.get(key) != before.settings.get(key)]
        return [f"{key} was {before._show(key)} and is {self._show(key)}" for key in changed]

    def _show(self, key: str) -> str:
        value = self.settings.get(key)
        if isinstance(value, str) and value in self.names:
            return f"{self.names[value]} (SHA-256 {value[:12]})"
        if isinstance(value, list) and value and all(digest in self.names for digest in value):
            return " and ".join(f"{self.names[digest]} (SHA-256 {digest[:12]})" for digest in value)
        return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class Mark:
    """A position at which a part can be resumed: number of records, size in bytes, and SHA-256 of input and part."""

    records: int = 0
    bytes: int = 0
    sha256: str = ""
    output: str = ""


class InputDigest:
    """Running SHA-256 of the records of an input."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self.records = 0

    def add(self, records: Iterable[Record]) -> None:
        """Update the digest with records."""
        for record in records:
            required = "\t".join(item if isinstance(item, str) else "|".join(item) for item in record.required)
            # None of these contains a line feed, except in documents, which cannot be resumed.
            lines = (record.line, record.prefix, required)
            self._digest.update("".join(f"{line}\n" for line in lines).encode())
            self.records += 1

    def hexdigest(self) -> str:
        """Return the digest of all records so far."""
        return self._digest.hexdigest()


class PartFile:
    """An incomplete output, opened for writing by this process only.

    start:  the mark at which writing starts
    before: the origin of the content before `start`
    """

    def __init__(
        self, path: Path, journal: FileIO, sink: Sink, start: Mark, before: Origin, clear: Callable[[], None] | None
    ) -> None:
        """Write text to `sink` and marks to `journal`; use `open_part` instead.

        clear: removes the content of an earlier command; None to resume
        """
        self.path, self.start, self.before = path, start, before
        self._journal, self._sink, self._clear = journal, sink, clear
        self._written = self._marked = start
        self._has_partial_write = False
        self._last_mark = -SECONDS_BETWEEN_MARKS

    @property
    def records(self) -> int:
        """The number of records that a resuming command would keep."""
        return self._marked.records

    @property
    def is_unchanged(self) -> bool:
        """Whether the part still has the content that `clear` removes."""
        return self._clear is not None

    def clear(self) -> None:
        """Remove the content of an earlier command, unless writing resumes after it."""
        if self._clear is not None:
            with write_errors(str(self.path)):
                self._clear()
            self._clear = None

    def check_input(self, digest: InputDigest, name: str) -> None:
        """Raise CommandError unless the input starts with the records of the part. name: `Source.description`"""
        lines = counted(digest.records, "line")
        if digest.records < self.start.records:
            wrong = f"{name} has {lines}; {self.path} has translations of {self.start.records:,}"
        elif self.start.records and digest.hexdigest() != self.start.sha256:
            wrong = f"{name} does not start with the {lines} that {self.path} was made from"
        else:
            return
        raise CommandError(
            f"{wrong} ({self.before.input}); use the same input, --prefixes and --required, or --restart to start over"
        )

    def write(self, text: str, records: int, sha256: str) -> None:
        """Write text.

        records: number of records in the part after this write; sha256: digest of their input
        """
        self.clear()
        self._has_partial_write = True
        self._sink.write(text)
        self._written = Mark(records, self._sink.position, sha256, self._sink.digest.hexdigest())
        self._has_partial_write = False
        if monotonic() - self._last_mark >= SECONDS_BETWEEN_MARKS:
            self.mark()

    def mark(self) -> None:
        """Add a mark to the journal, unless nothing was written since the last or a compressed write failed midway."""
        if self._written.records == self._marked.records or (self._has_partial_write and self._sink.is_compressed):
            return
        mark = self._written
        if self._sink.is_compressed:
            self._sink.end_member()
            mark = replace(mark, bytes=self._sink.position, output=self._sink.digest.hexdigest())
        self._sink.sync()  # the text must reach the disk before its mark
        with write_errors(str(self.path)):
            _append_line(self._journal, asdict(mark))
        self._marked, self._last_mark = mark, monotonic()


@contextmanager
def open_part(path: Path, origin: Origin, *, resume: bool = False, restart: bool = False) -> Iterator[PartFile]:
    """Open the incomplete output of `path` for a `with` block, and rename it to `path` after a block without errors.

    With `restart`, the first write replaces an earlier part; a command that fails before it keeps the part.

    Raises CommandError if a part with marks exists and neither `resume` nor `restart` is set, if the part was changed
    or `resume` finds another origin, if a part has no valid journal and `restart` is not set, or if there is
    something else at the path of the part or of its journal; UserError if another process is writing the part, or it
    cannot be written.
    """
    part = part_path(path)
    for entry in (part, journal_path(part)):
        if entry.is_symlink() or (entry.exists() and not entry.is_file()):
            raise CommandError(
                f"{entry} is not a regular file; the partial output is written there; move it, or choose another output"
            )
    with write_errors(str(path)):
        journal = _open_journal(part)
    with journal:
        is_new = not os.fstat(journal.fileno()).st_size
        try:
            with write_errors(str(path)):
                file, start, before = _open_at_mark(part, journal, origin, resume=resume, restart=restart)
        except BaseException:
            if is_new:
                journal_path(part).unlink(missing_ok=True)
            raise
        with file:
            sink = Sink(file, str(path), is_compressed=path.suffix.lower() == ".gz", position=start.bytes)
            sink.digest = _digest_of(part, start.bytes)
            start_over = None if start.records else partial(_start_over, part, file, journal, origin)
            opened = PartFile(part, journal, sink, start, before, start_over)
            try:
                if not restart or not os.fstat(file.fileno()).st_size:
                    opened.clear()
                yield opened
                opened.clear()
                sink.finish()
                sink.sync()
                with write_errors(str(path)):
                    part.replace(os.path.realpath(path))
                journal_path(part).unlink()
            except BaseException:
                with suppress(OSError, UserError):
                    opened.mark()
                if not opened.records and not (opened.is_unchanged and os.fstat(file.fileno()).st_size):
                    part.unlink(missing_ok=True)
                if not opened.records and (is_new or not opened.is_unchanged):
                    journal_path(part).unlink(missing_ok=True)
                raise


def _open_at_mark(
    part: Path, journal: FileIO, origin: Origin, *, resume: bool, restart: bool
) -> tuple[FileIO, Mark, Origin]:
    """Open the part, truncated at its last mark; return it with the mark and the origin of the content."""
    before, marks, ends = _read_journal(journal)
    if before is None and not part.exists() and not _is_journal(journal):
        raise CommandError(
            f"{journal_path(part)} is not a journal; the journal of the output would replace it; move it, or choose "
            "another output"
        )
    start = Mark()
    if not restart:
        start = _find_start(part, origin, before, marks, resume=resume)
    if before is not None and start.records:
        os.ftruncate(journal.fileno(), ends[-1])
        file = part.open("r+b", buffering=0)
        file.truncate(start.bytes)
        file.seek(start.bytes)
        return file, start, before
    return part.open("r+b" if part.exists() else "xb", buffering=0), start, origin


def _start_over(part: Path, file: FileIO, journal: FileIO, origin: Origin) -> None:
    """Remove the content of the part and of its journal, and write the origin to the journal."""
    os.ftruncate(journal.fileno(), 0)
    _append_line(journal, {"format": _FORMAT, **asdict(origin)})
    os.fsync(journal.fileno())  # otherwise, after a power failure, old marks could make the new part seem changed
    file.truncate(0)
    keep_mode(part.with_suffix(""), file.fileno())


def _find_start(part: Path, origin: Origin, before: Origin | None, marks: list[Mark], *, resume: bool) -> Mark:
    """Return the last mark of a part; raises CommandError if the part must not be resumed or overwritten."""
    size = part.stat().st_size if part.exists() else 0
    if before is None and size:
        raise CommandError(
            f"{part} has no valid journal; it can only be resumed with {journal_path(part).name}; remove {part.name}, "
            "or use --restart to start over"
        )
    # A journal without its part: the command was killed between renaming the part and removing the journal.
    if before is None or not marks or not part.exists():
        return Mark()
    changed = CommandError(
        f"{part} was changed after an interrupted command wrote it; it must be unchanged to resume; save a copy if you "
        "need it, and use --restart to start over"
    )
    if size < marks[-1].bytes:  # a crash cannot shorten it: the text is on disk before its mark
        raise changed
    if not resume:
        raise CommandError(
            f"{part} has {counted(marks[-1].records, 'line')} from an interrupted command; it is not overwritten; use "
            "--resume to continue, or --restart to start over"
        )
    differences = origin.differences(before)
    if differences:
        raise CommandError(
            f"{part} was made with other settings: {'; '.join(differences)}; --resume needs the same settings; restore "
            "them, or use --restart to start over"
        )
    if marks[-1].output != _digest_of(part, marks[-1].bytes).hexdigest():
        raise changed
    return marks[-1]


def _digest_of(part: Path, size: int) -> _Hash:
    """Return the SHA-256 of the first `size` bytes of a part."""
    digest = hashlib.sha256()
    with part.open("rb") as file:
        while size and (block := file.read(min(size, 1 << 20))):
            digest.update(block)
            size -= len(block)
    return digest


# --- The journal ------------------------------------------------------------------------------------------------------


def journal_path(part: Path) -> Path:
    """Return the path of the journal of a partial output."""
    return part.with_name(f"{part.name}.jsonl")


def _append_line(journal: FileIO, value: Mapping[str, Any]) -> None:
    """Append a line to the journal, or restore it after an error; a full disk may first cause an incomplete write."""
    end = os.fstat(journal.fileno()).st_size
    rest = memoryview(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
    try:
        while rest:
            rest = rest[journal.write(rest) or 0 :]
    except OSError:
        os.ftruncate(journal.fileno(), end)
        raise


def _read_journal(file: FileIO) -> tuple[Origin | None, list[Mark], list[int]]:
    """Return the origin (None if the journal is invalid), the marks, and the byte offset of the end of each mark.

    An incomplete line and those after it are ignored.
    """
    file.seek(0)
    first, *others = file.readall().splitlines(keepends=True) or [b""]
    try:
        head = json.loads(first)
        if head.pop("format") != _FORMAT:
            return None, [], []
        origin = Origin(**head)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None, [], []
    marks, ends, end = [], [], len(first)
    with suppress(ValueError, TypeError):
        for line in others:
            end += len(line)
            if line.endswith(b"\n"):
                marks.append(Mark(**json.loads(line)))
                ends.append(end)
    return origin, marks, ends


def _is_journal(file: FileIO) -> bool:
    """Return whether a file is empty or starts as a journal does, valid or not."""
    file.seek(0)
    start = file.read(len(_START))
    return _START.startswith(start)


def _open_journal(part: Path) -> FileIO:
    """Open, or create, and lock the journal of a part; raises UserError if another process has locked it."""
    path = journal_path(part)
    while True:
        file = path.open("a+b", buffering=0)
        try:
            is_locked = lock(file)
        except BlockingIOError:
            file.close()
            raise UserError(
                f"{part} is being written by another process; only one process may write it; wait for that process, "
                "stop it, or choose another output"
            ) from None
        if not is_locked or (path.exists() and path.stat().st_ino == os.fstat(file.fileno()).st_ino):
            return file
        file.close()  # removed by its owner between opening and locking
