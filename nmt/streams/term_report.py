"""Report of the glossary terms that each translation uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from nmt.decode.glossary import TermUse
from nmt.errors import CommandError, UserError
from nmt.logs import counted, say
from nmt.streams.sink import Sink, lock, write_errors
from nmt.text.lines import COMPRESSED_EXTENSIONS, read_lines

_HEADER = "line\tterm\ttranslation\tresult\n"
_SHOWN_TERMS = 5


def format_use(number: int, use: TermUse) -> str:
    """Format a row: line number, source term, the used form (else all forms), and `used` or `missed`."""
    form, result = (use.form, "used") if use.form else ("|".join(use.term.forms), "missed")
    return f"{number}\t{use.term.source}\t{form}\t{result}\n"


class TermReport:
    """Counts the uses of terms, and writes them to a TSV file."""

    def __init__(self, path: Path | None = None, mode: str = "constrain", *, has_glossary: bool = False) -> None:
        """Check the path; raises UserError if it exists and is not a report, or names a compressed file.

        mode:         `decode.glossary_mode`, for the summary
        has_glossary: whether to log a summary even if no term occurs
        """
        if path is not None and path.suffix.lower() in COMPRESSED_EXTENSIONS:
            raise UserError(f"cannot write {path}: a glossary report cannot be compressed; leave out {path.suffix}")
        self.path = path
        self._mode = mode
        self._has_glossary = has_glossary
        self._file: FileIO | None = None
        self._kept: str | None = None  # rows of an earlier command, until they are written again
        self._used = 0
        self._missed: Counter[str] = Counter()
        if path is not None and path.is_file() and next(read_lines(path), _HEADER.strip("\n")) != _HEADER.strip("\n"):
            raise UserError(f"{path} is not a glossary report; only reports are overwritten; choose another file")

    @contextmanager
    def open(self, done: int) -> Iterator[None]:
        """Open the file for a `with` block; keep the rows of the first `done` lines from an earlier command.

        The rest of an earlier report is removed when the first lines are translated.
        """
        if self.path is None:
            yield
            return
        self._kept = "".join(f"{row}\n" for row in self._rows_until(done))
        with write_errors(str(self.path)):
            file = self.path.open("ab", buffering=0)
        with file as self._file:
            try:
                if self.path.is_file():  # a device such as /dev/null has no lock
                    lock(file)
            except BlockingIOError as error:
                problem = "is being written by another process; each report needs its own file; choose another one"
                raise UserError(f"--glossary-report {self.path} {problem}") from error
            yield
            self.add("")

    def add(self, rows: str) -> None:
        """Add rows. Call this before the translations of their lines are written."""
        if self._kept is not None and self._file is not None:
            self._start_with(_HEADER + self._kept)
            self._count(self._kept)
            self._kept = None
        self._count(rows)
        self._write(rows)

    def log(self) -> None:
        """Print a summary to stderr if there is a glossary or there were terms."""
        missed = self._missed.total()
        total = self._used + missed
        if not total:
            if self._has_glossary:
                say(f"glossary ({self._mode}): none of its terms occur in the translated lines")
            return
        most = ", ".join(f"{term} ({count:,})" for term, count in self._missed.most_common(_SHOWN_TERMS))
        details = f"; missed most often: {most}" if missed else ""
        used = f"{self._used:,} of {counted(total, 'term')} used ({self._used / total:.1%})"
        say(f"glossary ({self._mode}): {used}{details}")

    def _start_with(self, text: str) -> None:
        """Make `text` the content of the file.

        If the file already starts with `text`, only the rest is removed. Rewriting it would lose rows if the process
        were killed.
        """
        if self._file is None or self.path is None:
            return
        if self.path.is_file():  # not a device or a pipe
            content = text.encode()
            with self.path.open("rb") as file:
                is_kept = file.read(len(content)) == content
            self._file.truncate(len(content) if is_kept else 0)
            if is_kept:
                return
        self._write(text)

    def _count(self, rows: str) -> None:
        for row in rows.split("\n")[:-1]:
            _, term, _, result = row.split("\t")
            if result == "used":
                self._used += 1
            else:
                self._missed[term] += 1

    def _write(self, text: str) -> None:
        if self._file is not None:
            Sink(self._file, str(self.path), is_compressed=False).write(text)

    def _rows_until(self, done: int) -> Iterator[str]:
        """Yield the complete rows of the first `done` lines."""
        if self.path is None or not done:
            return
        if not self.path.exists():
            raise CommandError(
                f"{self.path} is missing; it must have the terms of the first {counted(done, 'line')}; restore it, or "
                "use --restart to start over"
            )
        if not self.path.is_file():  # a pipe has no rows, and opening it would wait for a writer
            return
        for row in read_lines(self.path):
            columns = row.split("\t")
            if len(columns) == 4 and columns[0].isdecimal() and int(columns[0]) <= done:
                yield row
