"""Words of a text: runs of letters, digits and marks; single characters of scripts without spaces; and symbols."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from itertools import accumulate, groupby, takewhile
from typing import NamedTuple

from nmt.text.languages import HAN
from nmt.text.unicode_form import unicode_form

UNSPACED = f"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff{HAN}"
"""Ranges of Thai, Lao, Burmese, Khmer, Japanese and Chinese characters."""
_TIBETAN = "\u0f00-\u0fff"  # words have several syllables, which a mark separates

JOINERS = "\u200c\u200d"
"""The zero-width non-joiner and joiner, which Persian and Indic words contain."""

_END_OF_MARKS = 0x20000  # later marks only select variants of Chinese characters

_MIN_STEM = 3
_MIN_RUN = 6  # characters; few Chinese or Japanese words are this long

FRACTIONS = "\u00bc-\u00be\u2150-\u215e\u2189"
"""Ranges of single-character fractions, such as \u00bd."""
_DIGIT = re.compile(rf"[\d{FRACTIONS}]")


class Word(NamedTuple):
    """A word in NFKC, and its character span in the original text."""

    text: str
    start: int
    end: int


def has_digits(text: str) -> bool:
    """Return whether a text contains decimal digits, in any script, or single-character fractions."""
    return _DIGIT.search(text) is not None


def split_words(text: str) -> list[str]:
    """Split a text into words and punctuation marks, normalized to NFKC."""
    return _word_pattern().findall(text if text.isascii() else unicode_form(text, "NFKC"))


def find_words(text: str) -> list[Word]:
    """Return the words of `split_words` with their positions; all words from one character have its position."""
    if text.isascii() or unicodedata.is_normalized("NFKC", text):
        return [Word(match[0], *match.span()) for match in _word_pattern().finditer(text)]
    groups = _composable_pattern().findall(text)
    starts = [0, *accumulate(map(len, groups))]
    normalized = [unicode_form(group, "NFKC") for group in groups]
    origin = [number for number, group in enumerate(normalized) for _ in group]
    return [
        Word(match[0], starts[origin[match.start()]], starts[origin[match.end() - 1] + 1])
        for match in _word_pattern().finditer("".join(normalized))
    ]


def has_spaces(lines: Sequence[str]) -> bool:
    """Return whether a text has spaces between its words: False if most lines have long runs of an unspaced script."""
    runs = re.compile(f"[{UNSPACED}{_TIBETAN}]{{{_MIN_RUN},}}")
    return 2 * sum(runs.search(line) is not None for line in lines) <= len(lines)


def share_stem(first: str, second: str) -> bool:
    """Return whether two words share a prefix of at least three letters and at least half of the longer word.

    Ignores case and diacritics, so Mann and Männer share a stem. Approximates a lemmatizer: it also accepts derived
    words and compounds, such as Strand and Strandbad, and misses irregular forms.
    """
    folded = _without_marks(first.casefold()), _without_marks(second.casefold())
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*folded, strict=False)))
    return common >= _MIN_STEM and 2 * common >= max(map(len, folded))


def _without_marks(word: str) -> str:
    return "".join(
        character for character in unicodedata.normalize("NFD", word) if not unicodedata.combining(character)
    )


@cache
def _marks() -> str:
    """Return the ranges of combining marks, for a character class."""
    ranges = ""
    for major_category, run in groupby(map(chr, range(_END_OF_MARKS)), lambda c: unicodedata.category(c)[0]):
        if major_category == "M":
            characters = list(run)
            ranges += f"{characters[0]}-{characters[-1]}"
    return ranges


@cache
def _word_pattern() -> re.Pattern[str]:
    r"""Return the pattern of a word; `\w` lacks the marks of many scripts, such as the vowels of Devanagari.

    A joiner between two letters is part of their word (Unicode Standard Annex 29).
    """
    marks = _marks()
    run = rf"(?:(?![{UNSPACED}])[\w{marks}])+"
    return re.compile(rf"[{UNSPACED}][{marks}]*|{run}(?:[{JOINERS}]+{run})*|[^\s\w]")


@cache
def _composable_pattern() -> re.Pattern[str]:
    """Return the pattern of characters that normalization may compose: one with its marks, or Hangul letters."""
    hangul = "\u1100-\u11ff\u3131-\u318e\ua960-\ua97c\uac00-\ud7a3\ud7b0-\ud7fb\uffa0-\uffdc"
    return re.compile(rf"(?s:[{hangul}]+|.)[{_marks()}\uff9e\uff9f]*")
