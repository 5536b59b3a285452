"""Constraint fields of JSON Lines: `prefix`, `required`, `forbidden`, `tag`, `glossary` and `context`."""

from __future__ import annotations

from typing import Any, TypedDict

from nmt.decode.glossary import Term
from nmt.decode.task import Previous
from nmt.recipe import NO_CONTEXT, Context, UserError
from nmt.text.clean import valid_unicode
from nmt.text.json_fields import one_line

_LISTS = "a list of phrases"
_FORMS = "a list of phrases, or of lists of alternatives"
_SENTENCES = "a list of sentences"
_TRANSLATED = "a list of pairs [sentence, translation], because this model needs previous translations"
_PAIRS = "a list of pairs [term, translation], the translation as text or as a list of alternatives"


class LineConstraints(TypedDict, total=False):
    """Fields of a `Record`."""

    prefix: str
    required: tuple[str | tuple[str, ...], ...]
    forbidden: tuple[str, ...]
    tag: str
    terms: tuple[Term, ...]
    context: tuple[Previous, ...]


def read_constraints(fields: Any, where: str, text_field: str, *, context: Context = NO_CONTEXT) -> LineConstraints:
    """Return the constraints among the fields of a JSON object; null counts as absent.

    text_field: the field of the text, which is not a constraint
    context:    context that the model uses; without it, the field `context` is ignored

    Raises UserError, which names `where` and the field, for a field of another type.
    """
    given = {name: value for name, value in fields.items() if value is not None and name != text_field}
    constraints = LineConstraints()
    if "prefix" in given:
        constraints["prefix"] = _text(given["prefix"], "prefix", "text", where)
    if "tag" in given:
        constraints["tag"] = _text(given["tag"], "tag", "text", where)
    if "required" in given:
        required = _list(given["required"], "required", _FORMS, where)
        constraints["required"] = tuple(_alternatives(item, "required", _FORMS, where) for item in required)
    if "forbidden" in given:
        forbidden = _list(given["forbidden"], "forbidden", _LISTS, where)
        constraints["forbidden"] = tuple(_phrase(item, "forbidden", _LISTS, where) for item in forbidden)
    if "glossary" in given:
        pairs = _list(given["glossary"], "glossary", _PAIRS, where)
        constraints["terms"] = tuple(_term(pair, number, where) for number, pair in enumerate(pairs, start=1))
    if "context" in given and context.size:
        expected = _TRANSLATED if context.has_target else _SENTENCES
        previous = _list(given["context"], "context", expected, where)
        constraints["context"] = tuple(_previous(item, context, expected, where) for item in previous)
    return constraints


def _previous(value: Any, context: Context, expected: str, where: str) -> Previous:
    if not context.has_target:
        return _text(value, "context", expected, where)
    if not isinstance(value, list) or len(value) != 2:
        raise _wrong("context", expected, where, value)
    source, target = (_text(item, "context", expected, where) for item in value)
    return source, target


def _term(pair: Any, number: int, where: str) -> Term:
    if not isinstance(pair, list) or len(pair) != 2:
        raise _wrong("glossary", _PAIRS, where, pair)
    source, target = pair
    source = _text(source, "glossary", _PAIRS, where)
    forms = _alternatives(target, "glossary", _PAIRS, where)
    return Term.parse(source, forms, f"{where}: field 'glossary', pair {number}")


def _alternatives(value: Any, field: str, expected: str, where: str) -> str | tuple[str, ...]:
    if isinstance(value, list) and value:
        return tuple(_phrase(item, field, expected, where) for item in value)
    return _phrase(value, field, expected, where)


def _phrase(value: Any, field: str, expected: str, where: str) -> str:
    """Return a nonblank text; raise UserError for any other value."""
    if not isinstance(value, str) or not value.strip():
        raise _wrong(field, expected, where, value)
    return _text(value, field, expected, where)


def _text(value: Any, field: str, expected: str, where: str) -> str:
    if not isinstance(value, str):
        raise _wrong(field, expected, where, value)
    return one_line(valid_unicode(value))


def _list(value: Any, field: str, expected: str, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(field, expected, where, value)
    return value


def _wrong(field: str, expected: str, where: str, value: Any) -> UserError:
    shown = f"{value!r:.60}"
    return UserError(f"{where}: field {field!r} must be {expected}; got {shown}; fix it, or rename the field")
