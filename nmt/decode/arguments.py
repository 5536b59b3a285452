"""Validation of the arguments of translators; a wrong type raises a TypeError that states the expected one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from numbers import Integral
from pathlib import Path
from typing import Generic, TypeVar, get_args

from nmt.decode.glossary import Glossary, Required
from nmt.decode.task import Previous, TranslatorInput
from nmt.errors import UserError
from nmt.logs import counted
from nmt.recipe import DecodeRecipe, SearchPrecision

Item = TypeVar("Item")


def translator_inputs(
    lines: Sequence[str],
    prefixes: Sequence[str] | None,
    required: Sequence[Sequence[Required]] | None,
    glossary: Glossary | Sequence[Glossary | None] | None,
    context: Sequence[Sequence[Previous]] | None,
) -> list[TranslatorInput]:
    """Combine the arguments of a translation into one input per line.

    Raises TypeError for an argument of the wrong type, and UserError unless each has one item per line.
    """
    _require_texts(lines, prefixes, required, glossary)
    if context is not None:
        require_context(context)
    glossaries = [glossary] * len(lines) if isinstance(glossary, Glossary) else glossary
    # Lists: a pandas Series would be indexed by its labels.
    prefixes, required = _as_list(prefixes), _as_list(required)
    glossaries, context = _as_list(glossaries), _as_list(context)
    for values, kind, default in (
        (prefixes, "prefixes", "empty ones"),
        (required, "lists of required phrases", "[]"),
        (context, "lists of previous sentences", "[]"),
        (glossaries, "glossaries", "None"),
    ):
        if values is not None and len(values) != len(lines):
            fix = f"add {default}" if len(values) < len(lines) else "remove the extra ones"
            raise UserError(f"got {len(values)} {kind} for {counted(len(lines), 'line')}; expected one per line; {fix}")
    return [
        TranslatorInput(
            line,
            prefix="" if prefixes is None else prefixes[i],
            # Tuples: an array has no truth value.
            required=() if required is None else tuple(required[i]),
            context=() if context is None else tuple(context[i]),
            glossary=None if glossaries is None else glossaries[i],
        )
        for i, line in enumerate(lines)
    ]


def _as_list(values: Iterable[Item] | None) -> list[Item] | None:
    return None if values is None else list(values)


def _require_texts(lines: object, prefixes: object, required: object, glossary: object) -> None:
    require_strings("lines", lines)
    if prefixes is not None:
        require_strings("prefixes", prefixes)
    if required is not None:
        for phrases in _require_collection("required", required, "lists of phrases"):
            for phrase in _require_collection("the phrases of a line", phrases):
                require_strings("the phrases of a line", [phrase] if isinstance(phrase, str) else phrase)
    if glossary is not None:
        is_single = isinstance(glossary, (Glossary, str, Path, dict))  # a file name or a dictionary is an error
        glossaries = [glossary] if is_single else _require_collection("glossary", glossary, "Glossary objects")
        for item in glossaries:
            if item is not None and not isinstance(item, Glossary):
                raise TypeError(f"glossary must be a Glossary, got {type(item).__name__}; use Glossary.load(FILE)")


def require_context(context: object) -> None:
    """Raise TypeError unless `context` has lists of previous sentences, each a string or a pair of strings."""
    for sentences in _require_collection("context", context, "lists of previous sentences"):
        for previous in _require_collection("the context of a line", sentences, "previous sentences"):
            texts = (previous, "") if isinstance(previous, str) else previous
            require_strings("a previous sentence and its translation", texts)
            if len(list(require_list("context", texts))) != 2:
                raise TypeError(f"context has {previous!r:.60}; expected a sentence, or a sentence and its translation")


def require_list(name: str, value: object, of: str = "strings") -> Iterable[object]:
    """Return an iterable; raise TypeError for anything else, and for a string, path, dict or set."""
    if isinstance(value, (str, bytes, Path, dict, set, frozenset)) or not isinstance(value, Iterable):
        advice = ""
        if isinstance(value, (str, bytes, Path)):
            advice = "; wrap it in a list"
        elif isinstance(value, (set, frozenset)):
            advice = "; use list(...)"
        raise TypeError(f"{name} must be a list of {of}, got {type(value).__name__}{advice}")
    return value


def _require_collection(name: str, value: object, of: str = "strings") -> Iterable[object]:
    """Return a collection; raise TypeError for other types, and for an iterator, which validation would exhaust."""
    values = require_list(name, value, of)
    if not isinstance(values, Collection):
        raise TypeError(f"{name} must be a list of {of}, got {type(value).__name__}; use list(...)")
    return values


class PerLine(Generic[Item]):
    """An optional argument of a stream with one item per line, read lazily."""

    def __init__(self, name: str, items: Iterable[Item] | None, of: str = "strings") -> None:
        """Raises TypeError unless `items` is an iterable. of: noun for the items in errors"""
        if items is not None:
            require_list(name, items, of)
        self._name = name
        self._items = None if items is None else iter(items)

    def take(self, count: int) -> list[Item] | None:
        """Return the items of the next `count` lines, fewer at the end."""
        return None if self._items is None else list(islice(self._items, count))

    def require_end(self) -> None:
        """Raise UserError if items are left after the last line."""
        if self.take(1):
            raise UserError(
                f"{self._name} has more items than there are lines; expected one per line; remove the extra ones"
            )


def require_count(name: str, value: object) -> None:
    """Raise TypeError unless `value` is an integer, and ValueError if it is below 1."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}; convert it")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")


def require_precision(precision: str) -> None:
    """Raise ValueError unless `precision` is a `SearchPrecision`."""
    if precision not in get_args(SearchPrecision):
        raise ValueError(f"precision must be one of {', '.join(get_args(SearchPrecision))}, got {precision!r}")


def require_options(decode: object) -> DecodeRecipe:
    """Return a DecodeRecipe; raise TypeError for anything else."""
    if not isinstance(decode, DecodeRecipe):
        raise TypeError(f"decode must be a DecodeRecipe, got {type(decode).__name__}; use DecodeRecipe(beam_size=8)")
    return decode


def require_strings(name: str, values: object) -> None:
    """Raise TypeError unless `values` is a collection of strings."""
    for index, value in enumerate(_require_collection(name, values)):
        if not isinstance(value, str):
            raise TypeError(f"{name} must be strings, got {type(value).__name__} at index {index}; convert it")
