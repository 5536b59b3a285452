"""Splitting of a line at its items."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from nmt.decode.translation import Translation
from nmt.keep.items import Item

_STOPS = ".!?\u2026\u3002\uff01\uff1f\u061f\u06d4\u0964\u104b\u17d4"
_MAX_UNIT = 4


@dataclass(frozen=True)
class Segment:
    """A part of a line: an item, copied text, or text to translate. start: position in the line"""

    start: int
    text: str
    item: Item | None = None
    is_translated: bool = False


def split_at_items(text: str, items: Sequence[Item]) -> list[Segment]:
    """Split a line at its items.

    Next to an item, punctuation and white space are copied; next to a number, also up to four letters with case, as in
    10km, 4th and A4.
    """
    segments: list[Segment] = []
    before: Item | None = None
    end = 0
    for item in (*items, None):
        gap = text[end : item.start if item else len(text)]
        first = 0 if before is None else _length_of_copied(gap, before)
        last = len(gap.rstrip()) if item is None else len(gap) - _length_of_copied(gap[::-1], item)
        if any(map(str.isalpha, gap[first:last])):
            segments.append(Segment(end, gap[:first]))
            segments.append(Segment(end + first, gap[first:last], is_translated=True))
            segments.append(Segment(end + last, gap[last:]))
        else:
            segments.append(Segment(end, gap))
        if item:
            segments.append(Segment(item.start, item.text, item))
            before = item
            end = item.end
    return [segment for segment in segments if segment.text]


def without_added_stop(translation: Translation, source: str) -> Translation:
    """Remove final punctuation from a translation whose source does not end a sentence."""
    if source[-1] in _STOPS:
        return translation
    return replace(translation, text=translation.text.rstrip(_STOPS).rstrip())


def _length_of_copied(text: str, item: Item) -> int:
    """Return the number of characters from an item to the first one to translate."""
    num_letters = sum(1 for _ in takewhile(lambda character: character.lower() != character.upper(), text))
    length = num_letters if item.kind == "numbers" and num_letters <= _MAX_UNIT else 0
    while length < len(text) and re.match(r"\W", text[length]):
        length += 1
    return length
