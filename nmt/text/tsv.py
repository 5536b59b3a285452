"""Checks of TSV files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from nmt.logs import counted, warn
from nmt.text.format_warnings import is_csv_quoted


class TsvCheck:
    """Checks a TSV file for varying numbers of columns and for columns quoted as in CSV, and warns of both."""

    def __init__(self, path: Path, header: int) -> None:
        """header: number of columns of the header; 0 without one"""
        self._path = path
        self._first_quoted = 0  # line number
        self._widths = {header: 1}  # first line with each number of columns

    def add(self, number: int, columns: Sequence[str]) -> None:
        """Check a line, which must not be empty."""
        self._widths.setdefault(len(columns), number)
        if not self._first_quoted and any(map(is_csv_quoted, columns)):
            self._first_quoted = number

    def warn(self) -> None:
        """Warn, once per process."""
        widths = tuple((width, number) for width, number in self._widths.items() if width)
        _warn_of_columns(self._path, widths, self._first_quoted)


@lru_cache
def _warn_of_columns(path: Path, widths: tuple[tuple[int, int], ...], first_quoted: int) -> None:
    """Warn of lines of a TSV file with different numbers of columns, and of quotes as in CSV.

    widths: each number of columns, and the first line that has it; first_quoted: 0 for none
    """
    if len(widths) > 1:
        found = ", ".join(f"{counted(width, 'column')} in line {number:,}" for width, number in widths[:3])
        warn(f"{path} has different numbers of columns ({found}); an extra tab shifts columns; check these lines")
    if first_quoted:
        warn(
            f'{path} has columns in quotes with "" inside, as in CSV (first: line {first_quoted:,}); quotes in TSV are '
            "text; write the file without quoting"
        )
