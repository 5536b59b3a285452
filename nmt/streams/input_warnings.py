"""Warnings, during translation, of text that is probably misread and of constraints without effect."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nmt.logs import counted, warn
from nmt.streams.records import Record, warn_of_format
from nmt.streams.source import Source
from nmt.text.clean import normalize
from nmt.text.format_warnings import is_csv_quoted, is_header
from nmt.text.splitting import contains_phrase

_ENCODING = re.compile(r"""<(?:meta|\?xml)\b[^<>]*\b(?:charset|encoding)\s*=\s*["']?([\w-]+)""", re.IGNORECASE)

Windows = Iterator[list[Record]]


@dataclass
class _AffectedLines:
    """Number of lines with a problem, and the place of the first, see `RecordReader.place`."""

    count: int = 0
    first: str = ""

    def add(self, place: str) -> None:
        self.count += 1
        self.first = self.first or place

    @property
    def have(self) -> str:
        return "has" if self.count == 1 else "have"

    def describe(self, name: str) -> str:
        return f"{counted(self.count, 'line')} of {name} (first: {self.first}) {self.have}"


def with_warnings(windows: Windows, source: Source, settings: Mapping[str, Any], *, is_language_model: bool) -> Windows:
    """Yield the windows of a source; warn at the first line with a problem, or at the end with the number of lines.

    settings: see `Origin`
    """
    reader = source.reader
    if reader.format == "text" and not reader.is_given:
        windows = _with_format_warning(windows, source.name)
    if reader.format == "html":
        windows = _with_encoding_warning(windows, source.name)
    if reader.format == "tsv":
        windows = _with_quote_warning(windows, source)
    if reader.format == "tsv" and reader.names is None:
        windows = _with_column_warnings(windows, source)
    if reader.format == "jsonl":
        windows = _with_field_warnings(windows, source)
    windows = _with_forbidden_warnings(windows, source, settings)
    if is_language_model:  # it also continues blank lines
        return windows
    return _with_blank_line_warning(windows, source)


def _with_format_warning(windows: Windows, name: str) -> Windows:
    """Warn if the first lines look like a format other than plain text, unless an earlier command translated them."""
    for window in windows:
        if window[0].number == 1:
            warn_of_format(name, (record.line for record in window))
        yield window


def _with_encoding_warning(windows: Windows, name: str) -> Windows:
    """Warn if a page declares an encoding other than UTF-8, the encoding of the output."""
    has_warned = False
    for window in windows:
        for record in window:
            declared = _ENCODING.search(record.line)
            if not has_warned and declared and declared[1].lower() not in ("utf-8", "utf8"):
                has_warned = True
                warn(
                    f"{name} declares the encoding {declared[1]}, but the translation is UTF-8, so browsers may show "
                    "wrong letters; declare utf-8 in the page"
                )
        yield window


def _with_quote_warning(windows: Windows, source: Source) -> Windows:
    """Warn, at the end, of TSV texts that are quoted as in CSV, with doubled quotes inside."""
    quoted = _AffectedLines()
    for window in windows:
        for record in window:
            if record.text and is_csv_quoted(record.text):
                quoted.add(source.reader.place(record))
        yield window
    if quoted.count:
        lines = quoted.describe(source.name)
        advice = "TSV has no quoting: quotes are text; write the file without quoting"
        warn(f'{lines} a quoted text with "" inside, as in CSV; {advice}')


def _with_column_warnings(windows: Windows, source: Source) -> Windows:
    """Warn if the first line of TSV looks like a header and, at the end, if numbers of columns differ.

    For TSV that is read without a header. Blank lines have no columns.
    """
    unequal = _AffectedLines()
    expected = compared = 0  # columns of the first line that is not empty, and its number
    for window in windows:
        for record in window:
            columns = record.line.split("\t")
            if record.number == 1 and is_header(record.text or "", columns):
                warn(f"{source.name}, line 1 looks like a header and is translated; set --header, or remove the line")
            if record.line:
                if not compared:
                    expected, compared = len(columns), record.number
                if len(columns) != expected:
                    unequal.add(source.reader.place(record))
        yield window
    if unequal.count:
        warn(
            f"{unequal.describe(source.name)} a different number of columns than line {compared:,} ({expected}), so "
            "the translations are in different columns; fix these lines"
        )


def _with_field_warnings(windows: Windows, source: Source) -> Windows:
    """Warn, at the end, of fields of JSON Lines that the output replaces."""
    replaced = _AffectedLines()
    fields: dict[str, None] = {}
    for window in windows:
        for record in window:
            if record.replaced:
                replaced.add(source.reader.place(record))
                fields |= dict.fromkeys(record.replaced)
        yield window
    if replaced.count:
        names = ", ".join(map(repr, fields))
        warn(
            f"{replaced.describe(source.name)} fields that the output replaces: {names}; to keep them, rename them, or "
            "use --output-format text"
        )


def _with_blank_line_warning(windows: Windows, source: Source) -> Windows:
    """Warn at the end if lines without text have prefixes or required phrases."""
    ignored = _AffectedLines()
    for window in windows:
        for record in window:
            if (record.prefix.strip() or record.required) and not _has_text(record):
                ignored.add(source.reader.place(record))
        yield window
    if ignored.count:
        warn(
            f"{counted(ignored.count, 'line')} without text (first: {ignored.first}) {ignored.have} a prefix or "
            "required phrases, which are ignored; remove them, or add the text"
        )


def _has_text(record: Record) -> bool:
    return bool(record.text and normalize(record.text, "NFC"))  # without white space and invisible characters


def _with_forbidden_warnings(windows: Windows, source: Source, settings: Mapping[str, Any]) -> Windows:
    """Warn, at the end, of prefixes with forbidden phrases."""
    affected = _AffectedLines()
    for window in windows:
        for record in window:
            forbidden = (*settings.get("decode.forbid", ()), *record.forbidden)
            if not record.prefix or not _has_text(record):
                continue
            contained = [phrase for phrase in forbidden if contains_phrase(record.prefix, phrase, ignores_case=True)]
            if contained:
                affected.add(f"{contained[0]!r} in {source.reader.place(record)}")
        yield window
    if affected.count:
        warn(
            f"{counted(affected.count, 'line')} {affected.have} a prefix with a forbidden phrase "
            f"(first: {affected.first}; case is ignored); the prefix takes precedence; change one of them"
        )
