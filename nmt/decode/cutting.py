"""Splitting lines that are too long for a model."""

from __future__ import annotations

import re
from collections.abc import Callable

# Where a line may be cut, best first: behind a sentence, behind a clause, between words.
_CUTS = (
    re.compile(r"[.!?\u2026\u061f\u0964][^\w\s]*\s+|[\u3002\uff01\uff1f][^\w\s]*"),
    re.compile(r"[,;:\u2013\u2014\u060c]\s+|[\u3001\uff0c\uff1a\uff1b]"),
    re.compile(r"\s+"),
)


def cut_text(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Cut a line until every piece fits, each time as near to the middle as can be; nothing is left of an empty line.

    Cuts behind sentences are preferred to cuts behind clauses, these to cuts between words, and only a line that holds
    none of them is cut anywhere. A single character is a piece whether it fits or not.
    """
    text = text.strip()
    if len(text) <= 1 or fits(text):
        return [text] if text else []
    middle = len(text) // 2
    places: list[int] = []
    for pattern in _CUTS:
        places = places or [match.end() for match in pattern.finditer(text) if match.end() < len(text)]
    place = min(places, key=lambda place: abs(place - middle), default=middle)
    return cut_text(text[:place], fits) + cut_text(text[place:], fits)
