"""Formats of `nmt translate`: parse the input into records, and format their translations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, assert_never

from nmt.alignment.words import format_links
from nmt.decode.glossary import Glossary, Term
from nmt.decode.task import Previous
from nmt.decode.translation import Translation, without_breaks
from nmt.errors import CommandError, UserError
from nmt.keep.documents import DocumentSegment, has_subtitles, html_segments, srt_segments, subtitle_problem
from nmt.logs import counted, warn
from nmt.recipe import NO_CONTEXT, Context
from nmt.streams.line_constraints import read_constraints
from nmt.text.format_warnings import describe_format, has_csv_name, is_header, warn_of_csv
from nmt.text.json_fields import json_values, parse_json, text_or_null
from nmt.text.lines import uncompressed_extension

_DECIMALS = 6  # about the precision of float32

# Records are lines, or the text segments of a document. moses (n-best lists): output only.
Format = Literal["text", "tsv", "jsonl", "moses", "html", "srt"]
DOCUMENT_FORMATS = ("html", "srt")
_FORMATS: Mapping[str, Format] = {
    ".txt": "text",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".srt": "srt",
}
_MARKUP = "as its markup would be translated"
_UNSUPPORTED = {
    ".ass .sbv .ssa .sub .ttml .vtt": "; subtitles must be .srt; convert them, or choose a format with --input-format",
    ".sgm .sgml .xml": (
        f", {_MARKUP}; use --input-format html to translate the text between tags, or data.test of a recipe to score it"
    ),
    ".po .pot .properties .tmx .xlf .xliff .yaml .yml": (
        f", {_MARKUP}; extract the segments, or choose a format with --input-format"
    ),
    ".adoc .markdown .md .rst .tex": f", {_MARKUP}; convert it to HTML, or choose a format with --input-format",
}
"""Why a file is not translated and what to do, by extensions."""
_OPTIONAL_FIELDS = ("n_best", "alignment")  # of JSON Lines
_JSON_LINE = re.compile(r'\{\s*"')
_HTML_START = re.compile(r"<(?:!doctype html|html)\b", re.IGNORECASE)


def format_of_file(path: Path, *, is_output: bool = False) -> Format | None:
    """Return the format for the extension of a file (`.tsv`, `.jsonl.gz`), None if it is unknown.

    Raises CommandError for unsupported formats: an input in one, such as a WMT test set, XLIFF, Markdown or subtitles
    other than SubRip, would be translated with its markup or time codes.
    """
    ending = uncompressed_extension(path)
    for endings, reason in _UNSUPPORTED.items():
        if ending in endings.split():
            if not is_output:
                raise CommandError(f"{path}: {ending} is not supported{reason}")
            raise CommandError(
                f"{path}: {ending} output is not supported; choose another name, or a format with --output-format"
            )
    return _FORMATS.get(ending)


def choose_format(path: Path, given: Format | None, default: Format, source: Path | None = None) -> Format:
    """Return the given format of a file, or else that of its extension, or else the default.

    source: for an output, the input; an unsupported extension is not an error if both have it

    Warns if an output with a CSV extension gets a default format other than text. Raises CommandError like
    `format_of_file`.
    """
    extension = uncompressed_extension(path)
    if source is not None and extension == uncompressed_extension(source) and extension not in _FORMATS:
        found = given or default
    else:
        found = given or format_of_file(path, is_output=source is not None) or default
    if given is None and found != "text" and has_csv_name(path):
        warn(f"{path} is written as {found}, not as CSV; rename it, or set --output-format {found}")
    return found


def warn_of_format(name: str, lines: Iterable[str]) -> None:
    """Warn of plain text whose file name (.csv) or first lines look like another format, such as JSON Lines."""
    filled = [line.strip("\r ") for line in lines if line.strip()]
    tabs = {line.count("\t") for line in filled}
    is_format = {
        "jsonl": all(_JSON_LINE.match(line) and line.endswith("}") for line in filled),
        "tsv": len(filled) > 1 and len(tabs) == 1 and 0 not in tabs,
        "html": _HTML_START.match("".join(filled[:1])) is not None,
        "srt": has_subtitles("\n".join(filled[:10])),
    }
    found = [key for key, looks_like_it in is_format.items() if filled and looks_like_it]
    for format_name in found:
        warn(f"{name} looks like {format_name} and is translated as plain text; set --input-format {format_name}")
    if not found and (kind := describe_format(filled)):
        warn(f"{name} looks like {kind} and is translated; extract the text first, or set --input-format text")
    elif not found:
        warn_of_csv(name, filled, "translated", "convert it to TSV, or set --input-format text")
        if len(filled) > 1 and is_header(filled[0], ()):
            warn(f"{name} begins with {filled[0]!r}, which looks like a column name and is translated; remove the line")


@dataclass(frozen=True)
class Record:
    """One line of the input, or one segment of a document.

    number:    from 1, not counting a header
    text:      the text to translate; None for a JSON null
    line:      the whole line, without its line feed
    prefix:    target prefix of the translation
    required:  phrases that the translation must contain, or tuples of alternatives
    forbidden: phrases that it must not contain
    tag:       tag of a training corpus; None: the tag of the search options
    terms:     glossary terms of this record
    segment:   segment of a document with its surrounding content; the last one has the rest of the document and no text
    context:   previous sentences of its document; None: the texts of the previous records
    replaced:  fields of the line that the output replaces
    """

    number: int
    text: str | None
    line: str
    prefix: str = ""
    required: tuple[str | tuple[str, ...], ...] = ()
    forbidden: tuple[str, ...] = ()
    tag: str | None = None
    terms: tuple[Term, ...] = ()
    segment: DocumentSegment | None = None
    context: tuple[Previous, ...] | None = None
    replaced: tuple[str, ...] = ()

    @property
    def is_line(self) -> bool:
        """Whether the record counts as a line, unlike the rest of a document."""
        return self.segment is None or bool(self.text)

    @property
    def has_translation(self) -> bool:
        """Whether there is a text to translate; it may be empty, because a language model continues empty lines."""
        return self.is_line and self.text is not None

    def glossary(self, other: Glossary | None) -> Glossary | None:
        """Return the terms of this record and, for the words that none of them matches, of another glossary."""
        return Glossary(self.terms, other) if self.terms else other


@dataclass(frozen=True)
class RecordReader:
    """Parses input lines.

    column:   TSV column of the text, from 0, or its name in the header
    field:    JSON Lines field of the text; a dot addresses a nested field, unless a field has the full name
    header:   whether the first TSV line names the columns
    names:    the column names; None until the header is read
    context:  document context that the model uses
    is_given: whether the user gave the format; otherwise, plain text that looks like another format gives a warning
    written:  see `RecordWriter.written`
    """

    format: Format
    column: int | str = 0
    field: str = "text"
    header: bool = False
    names: tuple[str, ...] | None = None
    context: Context = NO_CONTEXT
    is_given: bool = False
    written: tuple[str, ...] = ()

    @property
    def header_lines(self) -> int:
        """Number of lines before the first record, once the header is read."""
        return 0 if self.names is None else 1

    def place(self, record: Record) -> str:
        """Return the place of a record in the input, for messages: the number of its line, or of its text segment."""
        unit = "line" if record.segment is None else "text segment"
        return f"{unit} {record.number + self.header_lines:,}"

    def with_header(self, line: str | None, name: str) -> RecordReader:
        """Return the reader for the header `line` of the input `name`; None means that the input is empty.

        Raises UserError for an empty input, a repeated column name, or a missing column.
        """
        if line is None:
            raise UserError(f"{name} is empty; with --header, the first line must name the columns; check the file")
        names = tuple(line.removesuffix("\r").split("\t"))
        for column in names:
            if names.count(column) > 1:
                raise UserError(f"{name}, line 1 has two columns {column!r}; names must be unique; rename one of them")
        if isinstance(self.column, str) and self.column not in names:
            raise UserError(
                f"{name}, line 1 has no column {self.column!r}; it has {', '.join(map(repr, names))}; correct --column"
            )
        position = names.index(self.column) if isinstance(self.column, str) else self.column
        self._check_columns(names, position, f"{name}, line 1")
        return replace(self, column=position, names=names)

    def read(self, line: str, number: int, name: str) -> Record:
        """Parse the line of record `number` (from 1) of the input `name`; a blank JSON line is an empty text.

        Raises UserError if the line has no text in the expected column or field, or an invalid field.
        """
        where = f"{name}, line {number + self.header_lines}"
        match self.format:
            case "text":
                return Record(number, line, line)
            case "tsv":
                line = line.removesuffix("\r")  # output adds columns after it
                return Record(number, self._text_of_columns(line.split("\t"), where), line)
            case "jsonl":
                if not line.strip():
                    return Record(number, "", line)
                fields = parse_json(line, where)
                text = text_or_null(fields, self.field, where, "fix it, or correct --field")
                replaced = self._replaced_fields(fields, where)
                constraints = read_constraints(fields, where, self.field, self.context)
                return Record(number, text, line, replaced=replaced, **constraints)
            case _:
                raise AssertionError("not an input format of lines")

    def read_document(self, lines: Iterable[str], name: str) -> Iterator[Record]:
        """Parse the document `name` and yield its segments; a missing final line feed is added.

        Raises UserError for a subtitle file without subtitles.
        """
        document = "".join(f"{line}\n" for line in lines)
        if self.format == "srt" and (problem := subtitle_problem(document)):
            raise UserError(f"{name} {problem}; fix it, or use --input-format text")
        segments = html_segments(document) if self.format == "html" else srt_segments(document)
        for number, segment in enumerate(segments, start=1):
            yield Record(number, segment.text, segment.before + segment.text, segment=segment)

    def _replaced_fields(self, fields: Mapping[str, Any], where: str) -> tuple[str, ...]:
        """Return the fields that the output replaces.

        Raises UserError for results of an earlier translation that would be left next to the new one.
        """
        top, dot, _ = self.field.partition(".")
        if dot and top in self.written:
            fields = _object_of(fields, self.field)
        for name in _OPTIONAL_FIELDS:
            is_left = self.written and name in fields and name not in self.written
            if is_left and "translation" in fields:
                raise UserError(
                    f"{where} has the fields 'translation' and {name!r}, and only the first would be replaced; the "
                    f"other would not belong to the new translation; remove or rename {name!r}"
                )
        return tuple(name for name in self.written if name in fields)

    def _text_of_columns(self, columns: Sequence[str], where: str) -> str:
        assert isinstance(self.column, int), "`with_header` replaces a name with its index"
        if self.names is not None and len(columns) != len(self.names):
            raise UserError(
                f"{where} has {counted(len(columns), 'column')} and the header has {len(self.names)}; the numbers must "
                "be equal; fix the line"
            )
        self._check_columns(columns, self.column, where)
        return columns[self.column]

    @staticmethod
    def _check_columns(columns: Sequence[str], position: int, where: str) -> None:
        if position >= len(columns):
            raise UserError(
                f"{where} has {counted(len(columns), 'column')}; --column {position}, counted from 0, needs at least "
                f"{position + 1}; fix the line, or choose another --column"
            )


@dataclass(frozen=True)
class RecordWriter:
    """Formats translations; TSV and JSON Lines keep the columns or fields of the input.

    n_best:   at most this many translations per record
    distinct: whether to drop duplicate texts
    """

    reader: RecordReader
    format: Format
    n_best: int = 1
    with_scores: bool = False
    with_alignments: bool = False
    distinct: bool = False

    def __post_init__(self) -> None:
        """Raise CommandError if a field that the output adds to JSON Lines would replace the text."""
        if self.format != "jsonl" or self.reader.format not in ("text", "jsonl"):
            return
        path = self.reader.field.split(".")
        if path[0] in self.written and path[-1] in self.written:
            raise CommandError(
                f"--field {self.reader.field}: the output has a field {path[-1]!r}, which would replace the text; "
                "rename the field of the text, or use --output-format text"
            )

    @property
    def written(self) -> tuple[str, ...]:
        """The fields that the output adds to JSON Lines; () for other outputs."""
        if self.format != "jsonl":
            return ()
        is_written = {"n_best": self.n_best > 1, "alignment": self.with_alignments}
        optional = [name for name in _OPTIONAL_FIELDS if is_written[name]]
        return (*_fields(Translation("", 0.0, 0.0, [])), *optional)

    @property
    def is_numbered(self) -> bool:
        """Whether a record may have several lines, each starting with the number of the record."""
        return self.format == "moses" or (self.format == "text" and self.n_best > 1)

    @property
    def shows_scores(self) -> bool:
        """Whether the output depends on scores."""
        return self.with_scores or self.n_best > 1 or self.format in ("jsonl", "moses")

    @property
    def header(self) -> str:
        """The header line of TSV output, "" if the input has none.

        Raises UserError if the input already has a column with the name of an added one.
        """
        if self.format != "tsv" or self.reader.names is None:
            return ""
        is_written = {"score": self.with_scores, "translation": True, "alignment": self.with_alignments}
        names = [name for name in is_written if is_written[name]]
        added = names + [f"{name}_{rank}" for rank in range(2, self.n_best + 1) for name in names]
        for name in added:
            if name in self.reader.names:
                raise UserError(
                    f"the input has a column {name!r}, which the output adds; names must be unique; rename the column, "
                    "or use --output-format text"
                )
        return "\t".join([*self.reader.names, *added]) + "\n"

    def write(self, record: Record, translations: Sequence[Translation]) -> str:
        """Return the output lines of a record, each with a line feed.

        The added fields of a null text are null in JSON Lines and empty in TSV. In other formats, a null text is empty.
        """
        if self.distinct:
            first_of_text: dict[str, Translation] = {}
            for translation in translations:
                first_of_text.setdefault(translation.text, translation)
            translations = list(first_of_text.values())
        match self.format:
            case "text":
                return self._text(record, translations)
            case "tsv":
                return self._columns(record, translations)
            case "jsonl":
                return self._object(record, translations)
            case "html" | "srt":
                assert record.segment is not None, "documents are not converted"
                return record.segment.render(translations[0].text)
            case "moses":
                return "".join(self._moses(record.number - 1, shown) for shown in translations[: self.n_best])
            case _:
                assert_never(self.format)

    def _text(self, record: Record, translations: Sequence[Translation]) -> str:
        if not self.is_numbered:
            score = f"{translations[0].score:z.4f}\t" if self.with_scores else ""
            return f"{score}{self._with_alignment(translations[0])}\n"
        rows = [f"{shown.score:z.4f}\t{self._with_alignment(shown)}" for shown in translations[: self.n_best]]
        return "".join(f"{record.number}\t{row}\n" for row in rows)

    def _moses(self, index: int, translation: Translation) -> str:
        """Format a line of a Moses n-best list: index from 0, text, features, score, and optionally alignment.

        Three or more bars in the text would end the column; they are escaped as in Moses.
        """
        text = re.sub(r"\|{3,}", lambda bars: "&#124;" * len(bars[0]), translation.text)
        scores = f"LogProb= {translation.log_prob:z.4f} ||| {translation.score:z.4f}"
        links = f" ||| {format_links(translation.alignment or [])}" if self.with_alignments else ""
        return f"{index} ||| {text} ||| {scores}{links}\n"

    def _with_alignment(self, translation: Translation) -> str:
        """Return the translation, with a tab and its alignment if requested."""
        links = f"\t{format_links(translation.alignment or [])}" if self.with_alignments else ""
        return translation.text + links

    def _columns(self, record: Record, translations: Sequence[Translation]) -> str:
        """Return the input columns and those of `n_best` translations; missing translations have empty columns."""
        is_tsv = self.reader.format == "tsv"
        columns = [record.line if is_tsv else without_breaks((record.text or "").removesuffix("\r"))]
        shown = translations[: self.n_best] if record.text is not None else []
        for rank in range(self.n_best):
            translation = shown[rank] if rank < len(shown) else None
            if self.with_scores:
                columns.append(f"{translation.score:z.4f}" if translation else "")
            columns.append(translation.text if translation else "")
            if self.with_alignments:
                columns.append(format_links(translation.alignment or []) if translation else "")
        return "\t".join(columns) + "\n"

    def _object(self, record: Record, translations: Sequence[Translation]) -> str:
        if record.text is None:
            fields: dict[str, Any] = dict.fromkeys(self.written)
        else:
            fields = _fields(translations[0])
            if self.n_best > 1:
                fields["n_best"] = [_fields(translation) for translation in translations[: self.n_best]]
        match self.reader.format:
            case "text":
                line = _dump(_nested(self.reader.field, record.line.removesuffix("\r")))
                return _add_fields(line, self.reader.field, fields) + "\n"
            case "tsv":
                columns = record.line.split("\t")
                names = self.reader.names
                given = columns if names is None else dict(zip(names, columns, strict=True))
                return _dump({"columns": given} | fields) + "\n"
            case "jsonl":
                if not record.line.strip():
                    return "\n"
                return _add_fields(record.line, self.reader.field, fields) + "\n"
            case _:
                raise AssertionError("not an input format of lines")


def _fields(translation: Translation) -> dict[str, Any]:
    """Return the JSON fields of a translation."""
    fields: dict[str, Any] = {
        "translation": translation.text,
        "score": round(translation.score, _DECIMALS),
        "log_prob": round(translation.log_prob, _DECIMALS),
        "tokens": translation.pieces,
        "token_log_probs": [round(value, _DECIMALS) for value in translation.token_log_probs],
    }
    if translation.alignment is not None:
        fields["alignment"] = translation.alignment
    return fields


def _object_of(fields: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Return the object that contains the field at a dotted path."""
    name, dot, rest = path.partition(".")
    return _object_of(fields[name], rest) if dot and path not in fields else fields


def _nested(path: str, value: Any) -> dict[str, Any]:
    """Return an object with a value at a dotted path."""
    name, dot, rest = path.partition(".")
    return {name: _nested(rest, value) if dot else value}


def _add_fields(line: str, path: str, fields: dict[str, Any]) -> str:
    """Add or replace fields of a line of JSON whose text is at `path`.

    Fields that would replace the object that contains the text, as for `translation.en`, are added next to the text.
    The rest of the line is copied, which preserves numbers and escapes exactly.
    """
    name, dot, _ = path.partition(".")
    is_inside = dot and path not in json_values(line) and name in fields
    return _add_next_to(line, path if is_inside else "", fields)


def _add_next_to(line: str, path: str, fields: dict[str, Any]) -> str:
    """Add fields to the object in `line` that contains the field at a dotted path."""
    values = json_values(line)
    name, dot, rest = path.partition(".")
    if dot and path not in values:
        start, end = values[name]
        return f"{line[:start]}{_add_next_to(line[start:end], rest, fields)}{line[end:]}"
    added = {name: value for name, value in fields.items() if name not in values}
    for name in sorted(fields.keys() & values.keys(), key=values.__getitem__, reverse=True):
        start, end = values[name]
        line = f"{line[:start]}{_dump(fields[name])}{line[end:]}"
    if not added:
        return line
    body = line.strip()[:-1].rstrip()
    return f"{body}{', ' if values else ''}{_dump(added)[1:]}"


def _dump(value: Any) -> str:
    """Return one line of JSON, escaped to ASCII if it contains a lone surrogate, which UTF-8 cannot encode."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text
