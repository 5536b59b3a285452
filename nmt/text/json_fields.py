"""Text fields of JSON and other records."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from nmt.errors import UserError, message_of
from nmt.text.clean import valid_unicode

_SPACES = re.compile(r"[ \t\n\r]*")


def parse_json(line: str, where: str) -> Any:
    """Parse a line of JSON; raise UserError naming `where` if it is invalid, an array, or repeats a field."""
    if line.lstrip().startswith("["):
        raise UserError(
            f"{where} starts an array; JSON Lines has one object per line; convert it: jq -c '.[]' FILE > NEW.jsonl"
        )
    try:
        return json.loads(line, object_pairs_hook=unique_fields, parse_int=short_integer)
    except RecursionError as error:
        raise UserError(
            f"{where} has objects or arrays nested too deeply; flatten them, or remove the field"
        ) from error
    except ValueError as error:
        problem = "is not JSON" if isinstance(error, json.JSONDecodeError) else "is not usable JSON"
        raise UserError(
            f"{where} {problem} ({message_of(error)}); each line must be one JSON object with unique fields; fix it"
        ) from error


def unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object; raise ValueError for repeated fields, of which the json module would keep the last."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        ((repeated, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"field {valid_unicode(repeated)!r:.60} is repeated")
    return fields


def short_integer(digits: str) -> int:
    """Parse an integer; raise ValueError for one with thousands of digits, whose conversion takes quadratic time."""
    try:
        return int(digits)
    except ValueError:  # Python's message suggests a function call, which does not help users
        raise ValueError(f"it has an integer of {len(digits.lstrip('-')):,} digits") from None


def json_values(text: str) -> dict[str, tuple[int, int]]:
    """Return the start and end of the value of each field in the text of a JSON object with unique names."""
    values: dict[str, tuple[int, int]] = {}
    decoder, position = json.JSONDecoder(), text.index("{") + 1
    while (start := _after_spaces(text, position)) < len(text) and text[start] == '"':
        name, position = decoder.raw_decode(text, start)
        start = _after_spaces(text, text.index(":", position) + 1)
        _, position = decoder.raw_decode(text, start)
        values[name] = start, position
        position = _after_spaces(text, position) + 1  # after the comma or the brace
    return values


def _after_spaces(text: str, position: int) -> int:
    match = _SPACES.match(text, position)
    return position if match is None else match.end()


def text_field(record: Any, name: str, where: str, *, accept_integers: bool) -> str:
    """Return the text of a field that a recipe names, "" for null; see `text_or_null`."""
    remedy = "correct the fields of the corpus (nmt new: --fields)"
    return text_or_null(record, name, where, remedy, accept_integers=accept_integers) or ""


def text_or_null(record: Any, name: str, where: str, remedy: str, *, accept_integers: bool = False) -> str | None:
    """Return the text of a field as one line, None for null.

    A dotted name selects a field of a nested record, unless a field has the whole name. Raises UserError, which names
    `where` and ends with `remedy`, if the field is missing or not text.

    accept_integers: whether an integer counts as text
    """
    value = _field(record, name, name, where, remedy)
    if accept_integers and type(value) is int:
        value = str(value)
    if value is not None and not isinstance(value, str):
        raise UserError(f"{where}: field {name!r} is of type {type(value).__name__}; it must be text; {remedy}")
    return None if value is None else without_line_feeds(value)


def _field(record: Any, name: str, rest: str, where: str, remedy: str) -> Any:
    """Return the value of a field of a nested record. name: full name of the field; rest: its part within the record"""
    if not isinstance(record, dict):
        parent, shown = _parent(name, rest), "null" if record is None else f"{record!r:.60}"
        what = f"field {parent!r} is" if parent else "it is"
        raise UserError(f"{where} has no field {name!r}, because {what} {shown}, which is not an object; {remedy}")
    if rest in record:
        return record[rest]
    first, dot, others = rest.partition(".")
    if not dot or first not in record:
        parent, listed = _parent(name, rest), ", ".join(map(repr, record)) or "missing"
        fields = f"the fields of {parent!r}" if parent else "its fields"
        raise UserError(f"{where} has no field {name!r}; {fields} are {listed}; {remedy}")
    return _field(record[first], name, others, where, remedy)


def _parent(name: str, rest: str) -> str:
    """Return the part of a dotted name before `rest`; "" if there is none."""
    return name.removesuffix(rest).rstrip(".")


def without_line_feeds(text: str) -> str:
    """Return a text as valid Unicode (see `valid_unicode`) without line feeds, which become spaces."""
    return valid_unicode(text).replace("\n", " ")
