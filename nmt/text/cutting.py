"""Lines that are too long for a model: where they are cut, which part gets what, and how the parts are joined."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import NamedTuple

# Where a line may be cut, best first: behind a sentence, behind a clause, between words.
_CUTS = (
    re.compile(r"[.!?\u2026\u061f\u06d4\u0964][^\w\s]*\s+|[\u3002\uff01\uff1f\u104b\u17d4][^\w\s]*"),
    re.compile(r"[,;:\u2013\u2014\u060c]\s+|[\u3001\uff0c\uff1a\uff1b\u104a]"),
    re.compile(r"\s+"),
)

# How the Unicode names of characters begin that are written without spaces between words.
_UNSPACED = (
    *("CJK", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "HALFWIDTH KATAKANA", "FULLWIDTH"),
    *("THAI", "LAO", "KHMER", "MYANMAR"),
)
# Quotes and brackets that stand beside text of any script.
_CLOSING, _OPENING = "\"'\u2019\u201d)]", "\"'\u2018\u201c(["

Phrase = tuple[int, ...]


class Part(NamedTuple):
    """A part of a line that is translated by itself.

    text:   of the line in normal form
    start:  the place in the line of its first character
    tokens: of the text
    """

    text: str
    start: int
    tokens: list[int]


def cut_line(text: str, encode: Callable[[str], list[int]], limit: int) -> list[Part]:
    """The parts of a line in normal form, of at most `limit` tokens each; one for most lines, none for an empty one."""
    parts: list[Part] = []
    end = 0
    for part in cut_text(text, lambda text: len(encode(text)) <= limit):
        start = text.index(part, end)
        end = start + len(part)
        # A single character, spelled in bytes, can exceed the limit of a very small model.
        if tokens := encode(part)[:limit]:
            parts.append(Part(part, start, tokens))
    return parts


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


def join_texts(texts: Sequence[str]) -> tuple[str, list[int]]:
    """The texts of parts as one text, and the number of the word in it with which each begins.

    Texts are joined by a space, except where a script without spaces between words meets such a script.
    """
    joined, first_words = "", []
    for text in texts:
        if joined and text and _needs_space(joined, text):
            joined += " "
        # Without a space the first word continues the last one.
        first_words.append(max(0, len((joined + "x").split()) - 1) if text else len(joined.split()))
        joined += text
    return joined, first_words


def _needs_space(left: str, right: str) -> bool:
    last, first = left.rstrip(_CLOSING)[-1:], right.lstrip(_OPENING)[:1]
    if _is_wide_mark(last) or _is_wide_mark(first):
        return False
    return not (_is_unspaced(last) and _is_unspaced(first))


def _is_wide_mark(character: str) -> bool:
    """Whether a character is a punctuation mark of Chinese or Japanese, which has its space in itself."""
    is_mark = character != "" and unicodedata.category(character).startswith("P")
    return is_mark and unicodedata.east_asian_width(character) in "WF"


def _is_unspaced(character: str) -> bool:
    return character != "" and unicodedata.name(character, "").startswith(_UNSPACED)


def assign_phrases(
    phrases: Sequence[Phrase],
    outputs: Sequence[Phrase],
    log_probs: Sequence[float],
    search: Callable[[list[tuple[int, Phrase]]], list[float]],
) -> list[list[Phrase]]:
    """Which part of a line must hold which of the phrases that the translation of the line must hold.

    A part whose translation holds the phrase anyway; else the one whose translation becomes least improbable by it.

    outputs, log_probs: the translation of each part without any phrase
    search: gives the log-probability of the best translation of a part that must hold a phrase, -inf where there is
    none, for pairs of part and phrase
    """
    assigned: list[list[Phrase]] = [[] for _ in outputs]
    missing = []
    for phrase in dict.fromkeys(phrases):
        holder = next((place for place, output in enumerate(outputs) if _holds(output, phrase)), None)
        if holder is None:
            missing.append(phrase)
        else:
            assigned[holder].append(phrase)
    pairs = [(place, phrase) for phrase in missing for place in range(len(outputs))]
    losses = iter([log_probs[place] - found for (place, _), found in zip(pairs, search(pairs), strict=True)])
    for phrase in missing:
        of_parts = [next(losses) for _ in outputs]
        finite = [math.inf if math.isnan(loss) else loss for loss in of_parts]
        assigned[finite.index(min(finite))].append(phrase)
    return assigned


def _holds(output: Phrase, phrase: Phrase) -> bool:
    return any(output[start : start + len(phrase)] == phrase for start in range(len(output) - len(phrase) + 1))
