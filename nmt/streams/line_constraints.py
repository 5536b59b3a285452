"""Constraint fields of JSON Lines: `prefix`, `required`, `forbidden`, `tag`, `glossary` and `context`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

from nmt.decode.glossary import Term, split_forms
from nmt.decode.task import Previous
from nmt.errors import UserError
from nmt.recipe import NO_CONTEXT, Context
from nmt.text.clean import valid_unicode
from nmt.text.json_fields import one_line

_TERMS = "a list of pairs [term, translation], the translation as text or as a list of alternatives"
_TRANSLATED_SENTENCES = "a list of pairs [sentence, translation], because this model needs previous translations"


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
        constraints["prefix"] = _Field("prefix", "text", where).text(given["prefix"])
    if "tag" in given:
        constraints["tag"] = _Field("tag", "text", where).text(given["tag"])
    if "required" in given:
        field = _Field("required", "a list of phrases, or of lists of alternatives", where)
        phrases = map(field.alternatives, field.elements(given["required"]))
        constraints["required"] = tuple(split_forms(one) if isinstance(one, str) else one for one in phrases)
    if "forbidden" in given:
        field = _Field("forbidden", "a list of phrases", where)
        constraints["forbidden"] = tuple(map(field.phrase, field.elements(given["forbidden"])))
    if "glossary" in given:
        field = _Field("glossary", _TERMS, where)
        pairs = map(field.pair, field.elements(given["glossary"]))
        constraints["terms"] = tuple(_term(field, *pair, number) for number, pair in enumerate(pairs, start=1))
    if "context" in given and context.has_target:
        field = _Field("context", _TRANSLATED_SENTENCES, where)
        pairs = map(field.pair, field.elements(given["context"]))
        constraints["context"] = tuple((field.text(source), field.text(target)) for source, target in pairs)
    elif "context" in given and context.size:
        field = _Field("context", "a list of sentences", where)
        constraints["context"] = tuple(map(field.text, field.elements(given["context"])))
    return constraints


def _term(field: _Field, source: Any, target: Any, number: int) -> Term:
    where = f"{field.where}: field {field.name!r}, pair {number}"
    return Term.parse(field.text(source), field.alternatives(target), where)


@dataclass(frozen=True)
class _Field:
    """Checks the values of a field; its methods raise UserError for values of another type.

    expected: description of valid values
    where:    input and line number
    """

    name: str
    expected: str
    where: str

    def text(self, value: Any) -> str:
        """Return a text without line breaks."""
        if not isinstance(value, str):
            raise self._error(value)
        return one_line(valid_unicode(value))

    def phrase(self, value: Any) -> str:
        """Return a nonblank text."""
        if not isinstance(value, str) or not value.strip():
            raise self._error(value)
        return self.text(value)

    def alternatives(self, value: Any) -> str | tuple[str, ...]:
        """Return a phrase or a nonempty list of phrases."""
        if isinstance(value, list) and value:
            return tuple(map(self.phrase, value))
        return self.phrase(value)

    def elements(self, value: Any) -> list[Any]:
        """Return the elements of a list."""
        if not isinstance(value, list):
            raise self._error(value)
        return value

    def pair(self, value: Any) -> tuple[Any, Any]:
        """Return the elements of a list of two."""
        if not isinstance(value, list) or len(value) != 2:
            raise self._error(value)
        return value[0], value[1]

    def _error(self, value: Any) -> UserError:
        shown = f"{value!r:.60}"
        return UserError(
            f"{self.where}: field {self.name!r} must be {self.expected}; got {shown}; fix it, or rename the field"
        )
