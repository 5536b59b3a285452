"""Texts in fields of JSON and other records."""

from __future__ import annotations

import json
from typing import Any

from nmt.data.clean import valid_unicode
from nmt.recipe import UserError


def parse_json(line: str, where: str) -> Any:
    """What a line of JSON says; raises UserError, with `where` it stands, for anything else."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:  # a number of too many digits is no JSONDecodeError
        reason = " ".join(str(error).split())
        raise UserError(f"{where} is not JSON ({reason}); each line must be one JSON object; mend it") from error


def text_field(record: Any, name: str, where: str, remedy: str = "correct src_field or tgt_field") -> str:
    """The text of a field on one line, which a dotted name finds in nested records; a null is an empty text.

    Raises UserError, with `where` the record stands and what to do, when there is no such field or no text in it.
    """
    value = record
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            names = ", ".join(map(repr, value)) if isinstance(value, dict) else f"no fields but {value!r:.60}"
            raise UserError(f"{where} has no field {name!r}; there are {names}; {remedy}")
        value = value[part]
    if value is not None and not isinstance(value, str):
        kind = type(value).__name__
        raise UserError(f"{where}: field {name!r} is of type {kind}; it must be text; {remedy}")
    return one_line(valid_unicode(value or ""))


def one_line(text: str) -> str:
    """The text with spaces for its line feeds."""
    return text.replace("\n", " ")
