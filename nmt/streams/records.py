"""What a line of the input means to `nmt translate`, and what is written for it: text, TSV or JSON Lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, assert_never

from nmt.alignment.words import format_links
from nmt.decode.translation import Translation
from nmt.recipe import UserError
from nmt.text.json_fields import parse_json, text_or_null

# More digits than float32 has say nothing.
_DECIMALS = 6


class Format(StrEnum):
    """How text lies in a file, one sentence a line each time; n-best lists of Moses are only written."""

    text = "text"
    tsv = "tsv"
    jsonl = "jsonl"
    moses = "moses"

    @classmethod
    def of_file(cls, path: Path) -> Format | None:
        """The format that the end of a file's name tells, such as `.tsv` or `.jsonl.gz`; None where it tells none."""
        endings = [ending for ending in path.suffixes[-2:] if ending not in (".gz", ".xz", ".zst")]
        formats = {".txt": cls.text, ".tsv": cls.tsv, ".jsonl": cls.jsonl, ".json": cls.jsonl}
        return formats.get(endings[-1]) if endings else None


@dataclass(frozen=True)
class Record:
    """One line of the input.

    number:   of the record, from 1: that of its line, where no header stands before it
    text:     what is to be translated, None for a null of JSON Lines
    line:     all that stands on the line, without its line feed
    prefix:   what the translation must begin with
    required: phrases that it must hold
    """

    number: int
    text: str | None
    line: str
    prefix: str = ""
    required: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layout:
    """Where the text stands in each line.

    column: of TSV, counted from 0, or its name in the header
    field:  of JSON Lines; a dot steps into an object, unless a field has the whole name
    header: whether the first line of TSV names the columns
    names:  what it names them; None until it is read
    """

    format: Format
    column: int | str = 0
    field: str = "text"
    header: bool = False
    names: tuple[str, ...] | None = None

    def with_header(self, line: str | None, name: str) -> Layout:
        """The layout of an input `name` whose header is `line`; None where it has no line.

        Raises UserError where two columns have one name, and where there is no such column.
        """
        if line is None:
            raise UserError(
                f"{name} is empty; --header needs a first line with the names of the columns; check the file"
            )
        names = tuple(line.removesuffix("\r").split("\t"))
        for column in names:
            if names.count(column) > 1:
                raise UserError(
                    f"{name}, line 1 names two columns {column!r}; each needs a name of its own; rename one of them"
                )
        if isinstance(self.column, str) and self.column not in names:
            raise UserError(
                f"{name}, line 1 has no column {self.column!r}; there are {', '.join(map(repr, names))}; "
                "correct --column"
            )
        position = names.index(self.column) if isinstance(self.column, str) else self.column
        self._check_columns(names, position, f"{name}, line 1")
        return replace(self, column=position, names=names)

    def read(self, line: str, number: int, name: str) -> Record:
        """The record of a line of the input `name`; raises UserError when it holds no text in that place.

        number: of the record, from 1. A line of JSON Lines that holds nothing but space is a record without text.
        """
        where = f"{name}, line {number + (self.names is not None)}"
        match self.format:
            case Format.moses:
                raise AssertionError("the command line refuses it")
            case Format.text:
                return Record(number, line, line)
            case Format.tsv:
                line = line.removesuffix("\r")  # which would end up before the last column
                return Record(number, self._text_of_columns(line.split("\t"), where), line)
            case Format.jsonl:
                if not line.strip():
                    return Record(number, "", line)
                if number == 1 and line.lstrip().startswith("["):
                    raise UserError(
                        f"{where} begins an array; JSON Lines have one object a line; "
                        f"convert it: jq -c '.[]' {name} > {Path(name).stem}.jsonl"
                    )
                text = text_or_null(parse_json(line, where), self.field, where, "mend it, or correct --field")
                return Record(number, text, line)
            case _:
                assert_never(self.format)

    def _text_of_columns(self, columns: Sequence[str], where: str) -> str:
        assert isinstance(self.column, int), "the header has told where a named column is"
        self._check_columns(columns, self.column, where)
        if self.names is not None and len(columns) != len(self.names):
            raise UserError(
                f"{where} has {len(columns)} columns and the header {len(self.names)}; they must be as many; "
                "correct the line"
            )
        return columns[self.column]

    @staticmethod
    def _check_columns(columns: Sequence[str], position: int, where: str) -> None:
        if position >= len(columns):
            raise UserError(
                f"{where} has {len(columns)} columns; --column {position}, counted from 0, needs "
                f"{position + 1} or more; correct the line, or name another column"
            )


@dataclass(frozen=True)
class RecordWriter:
    """What is written for each record.

    layout:   of the input, all of which stays where the output format has room for it
    n_best:   how many translations are written of each, where there are as many
    distinct: whether a translation is left out whose text a better one has, in other tokens
    """

    layout: Layout
    format: Format
    n_best: int = 1
    with_scores: bool = False
    with_alignments: bool = False
    distinct: bool = False

    @property
    def is_numbered(self) -> bool:
        """Whether a record may be several lines, each of which begins with its number."""
        return self.format is Format.moses or (self.format is Format.text and self.n_best > 1)

    @property
    def shows_scores(self) -> bool:
        """Whether scores are written, or decide which translations are."""
        return self.with_scores or self.n_best > 1 or self.format in (Format.jsonl, Format.moses)

    @property
    def header(self) -> str:
        """The line that names the columns of the output, closed by a line feed; nothing where the input has none.

        Raises UserError where the input has a column of a name that is added.
        """
        if self.format is not Format.tsv or self.layout.names is None:
            return ""
        kinds = [*(["score"] if self.with_scores else []), "translation"]
        kinds += ["alignment"] if self.with_alignments else []
        added = [kind if rank == 1 else f"{kind}_{rank}" for rank in range(1, self.n_best + 1) for kind in kinds]
        if same := [name for name in added if name in self.layout.names]:
            raise UserError(
                f"the input has a column {same[0]!r}, which the output adds; its columns need different names; rename "
                "that one, or write --output-format text"
            )
        return "\t".join([*self.layout.names, *added]) + "\n"

    def write(self, record: Record, translations: Sequence[Translation]) -> str:
        """The lines of a record, each closed by a line feed.

        A null text gives null in each field that is added, and empty columns; plain text does not tell it from an
        empty one.
        """
        if self.distinct:
            first_of_text: dict[str, Translation] = {}
            for one in translations:
                first_of_text.setdefault(one.text, one)
            translations = list(first_of_text.values())
        match self.format:
            case Format.text:
                return self._text(record, translations)
            case Format.tsv:
                return self._columns(record, translations)
            case Format.jsonl:
                return self._object(record, translations)
            case Format.moses:
                return "".join(self._moses(record.number - 1, one) for one in translations[: self.n_best])
            case _:
                assert_never(self.format)

    def _text(self, record: Record, translations: Sequence[Translation]) -> str:
        if self.is_numbered:
            shown = translations[: self.n_best]
            return "".join(f"{record.number}\t{one.score:.4f}\t{self._linked(one)}\n" for one in shown)
        best = translations[0]
        return f"{best.score:.4f}\t{self._linked(best)}\n" if self.with_scores else f"{self._linked(best)}\n"

    def _moses(self, index: int, one: Translation) -> str:
        """A line of an n-best list as Moses writes it: index from 0, text, features, score, and perhaps alignment."""
        links = [format_links(one.alignment or [])] if self.with_alignments else []
        fields = [str(index), one.text, f"LogProb= {one.log_prob:.4f}", f"{one.score:.4f}", *links]
        return " ||| ".join(fields) + "\n"

    def _linked(self, one: Translation) -> str:
        """The translation, and behind a tab its alignment where that is asked for."""
        return f"{one.text}\t{format_links(one.alignment or [])}" if self.with_alignments else one.text

    def _columns(self, record: Record, translations: Sequence[Translation]) -> str:
        """The columns of the input, then those of each translation, empty where there are fewer than `n_best`."""
        is_tsv = self.layout.format is Format.tsv
        columns = [record.line if is_tsv else (record.text or "").removesuffix("\r").replace("\t", " ")]
        shown = translations[: self.n_best] if record.text is not None else []
        for rank in range(self.n_best):
            one = shown[rank] if rank < len(shown) else None
            if self.with_scores:
                columns.append(f"{one.score:.4f}" if one else "")
            columns.append(one.text if one else "")
            if self.with_alignments:
                columns.append(format_links(one.alignment or []) if one else "")
        return "\t".join(columns) + "\n"

    def _object(self, record: Record, translations: Sequence[Translation]) -> str:
        fields = _fields(translations[0])
        if self.n_best > 1:
            fields["n_best"] = [_fields(one) for one in translations[: self.n_best]]
        if record.text is None:
            fields = dict.fromkeys(fields)
        match self.layout.format:
            case Format.moses:
                raise AssertionError("the command line refuses it")
            case Format.text:
                return _dump(_with_results(_nested(self.layout.field, record.line), self.layout.field, fields)) + "\n"
            case Format.tsv:
                columns = record.line.split("\t")
                names = self.layout.names
                return (
                    _dump({"columns": columns if names is None else dict(zip(names, columns, strict=True))} | fields)
                    + "\n"
                )
            case Format.jsonl:
                return (_extended(record.line, self.layout.field, fields) if record.line.strip() else "") + "\n"
            case _:
                assert_never(self.layout.format)


def _fields(translation: Translation) -> dict[str, Any]:
    """What is told of a translation."""
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


def _nested(path: str, value: Any) -> dict[str, Any]:
    """An object with a value at a dotted path."""
    name, dot, rest = path.partition(".")
    return {name: _nested(rest, value) if dot else value}


def _extended(line: str, path: str, fields: dict[str, Any]) -> str:
    """The object on a line of JSON, whose text is at `path`, with the fields of its translation.

    Where there are none of the same name the line stays as it is, so that no number is rounded and no escape lost.
    """
    given = json.loads(line)
    if not given.keys().isdisjoint(fields):
        return _dump(_with_results(given, path, fields))
    body = line.strip()[:-1].rstrip()
    return f"{body}{', ' if given else ''}{_dump(fields)[1:]}"


def _with_results(given: dict[str, Any], path: str, fields: dict[str, Any]) -> dict[str, Any]:
    """An object with further fields, which replace those of the same names.

    They must not replace the object that holds the text, as with `translation.en`: then they go beside the text.
    """
    name, dot, _ = path.partition(".")
    is_inside = dot and path not in given and name in fields
    return _beside(given, path, fields) if is_inside else given | fields


def _beside(given: dict[str, Any], path: str, fields: dict[str, Any]) -> dict[str, Any]:
    """An object with further fields beside the one at the dotted path, in the same inner object."""
    name, dot, rest = path.partition(".")
    is_inside = dot and path not in given
    return given | ({name: _beside(given[name], rest, fields)} if is_inside else fields)


def _dump(value: dict[str, Any]) -> str:
    """JSON on one line; where a lone surrogate stands in it, which JSON can spell and UTF-8 cannot, all in ASCII."""
    text = json.dumps(value, ensure_ascii=False)
    return text if _is_utf8(text) else json.dumps(value)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
