"""Constraint fields of JSON Lines: `prefix`, `required`, `forbidden`, `tag`, `glossary` and `context`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nmt.decode.glossary import Term, split_forms
from nmt.errors import UserError
from nmt.recipe import Context
from nmt.text.json_fields import without_line_feeds


class _WrongValueError(Exception):
    """A value of a type that a field does not support; the only argument is the value."""


def read_constraints(fields: Mapping[str, Any], where: str, text_field: str, context: Context) -> dict[str, Any]:
    """Return the constraints among the fields of a JSON object as fields of a `Record`; null counts as absent.

    text_field: the field of the text, which is not a constraint
    context:    context that the model uses; without it, the field `context` is ignored

    Raises UserError, which names `where` and the field, for a field of another type.
    """
    parsers = _PARSERS
    if context.size:
        parsers = parsers | {"context": _TRANSLATED_SENTENCES if context.has_target else _SENTENCES}
    constraints: dict[str, Any] = {}
    for name, (parse, expected) in parsers.items():
        value = fields.get(name)
        if value is None or name == text_field:
            continue
        try:
            constraints[name] = parse(value)
        except _WrongValueError as error:
            shown = f"{error.args[0]!r:.60}"
            raise UserError(
                f"{where}: field {name!r} must be {expected}; got {shown}; fix it, or rename the field"
            ) from error
    if pairs := constraints.pop("glossary", ()):
        constraints["terms"] = tuple(
            Term.parse(source, target, f"{where}: field 'glossary', pair {number}")
            for number, (source, target) in enumerate(pairs, start=1)
        )
    return constraints


def _text(value: Any) -> str:
    """Return a text with line feeds replaced by spaces."""
    if not isinstance(value, str):
        raise _WrongValueError(value)
    return without_line_feeds(value)


def _phrase(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _WrongValueError(value)
    return _text(value)


def _alternatives(value: Any) -> str | tuple[str, ...]:
    return tuple(map(_phrase, value)) if isinstance(value, list) and value else _phrase(value)


def _required(value: Any) -> str | tuple[str, ...]:
    phrase = _alternatives(value)
    return split_forms(phrase) if isinstance(phrase, str) else phrase


def _list_of(parse: Callable[[Any], object]) -> Callable[[Any], object]:
    def parse_list(value: Any) -> tuple[object, ...]:
        if not isinstance(value, list):
            raise _WrongValueError(value)
        return tuple(map(parse, value))

    return parse_list


def _pair_of(parse_first: Callable[[Any], object], parse_second: Callable[[Any], object]) -> Callable[[Any], object]:
    def parse_pair(value: Any) -> tuple[object, object]:
        if not isinstance(value, list) or len(value) != 2:
            raise _WrongValueError(value)
        return parse_first(value[0]), parse_second(value[1])

    return parse_pair


_PARSERS = {
    "prefix": (_text, "text"),
    "tag": (_text, "text"),
    "required": (_list_of(_required), "a list of phrases, or of lists of alternatives"),
    "forbidden": (_list_of(_phrase), "a list of phrases"),
    "glossary": (
        _list_of(_pair_of(_text, _alternatives)),
        "a list of pairs [term, translation], the translation as text or as a list of alternatives",
    ),
}
"""The parser of each field, and what it expects."""
_SENTENCES = (_list_of(_text), "a list of sentences")
_TRANSLATED_SENTENCES = (
    _list_of(_pair_of(_text, _text)),
    "a list of pairs [sentence, translation], because this model needs previous translations",
)
