"""Texts in fields of JSON and other records."""

from __future__ import annotations

import json
from typing import Any

from nmt.recipe import UserError
from nmt.text.clean import valid_unicode


def parse_json(line: str, where: str) -> Any:
    """What a line of JSON says; raises UserError, with `where` it stands, for anything else."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:  # a number of too many digits is no JSONDecodeError
        reason = " ".join(str(error).split())
        raise UserError(f"{where} is not JSON ({reason}); each line must be one JSON object; mend it") from error


def text_field(record: Any, name: str, where: str, remedy: str = "correct the fields in the recipe") -> str:
    """As `text_or_null`, with an empty text for a null."""
    return text_or_null(record, name, where, remedy) or ""


def text_or_null(record: Any, name: str, where: str, remedy: str) -> str | None:
    """The text of a field on one line, None for a null.

    A dotted name steps into nested records, unless a field has the whole name. Raises UserError, with `where` the
    record stands and what to do, when there is no such field or no text in it.
    """
    value: Any = record
    rest: str | None = name
    while rest is not None:
        part, dot, after = rest.partition(".")
        if isinstance(value, dict) and rest in value:
            part, dot = rest, ""
        if not isinstance(value, dict) or part not in value:
            names = ", ".join(map(repr, value)) if isinstance(value, dict) else f"no fields but {value!r:.60}"
            raise UserError(f"{where} has no field {name!r}; there are {names}; {remedy}")
        value, rest = value[part], after if dot else None
    if value is not None and not isinstance(value, str):
        kind = type(value).__name__
        raise UserError(f"{where}: field {name!r} is of type {kind}; it must be text; {remedy}")
    return None if value is None else one_line(valid_unicode(value))


def one_line(text: str) -> str:
    """The text with spaces for its line feeds."""
    return text.replace("\n", " ")
