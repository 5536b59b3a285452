"""Splitting of lines that are too long for the model, and joining of the translated parts."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import NamedTuple

from nmt.text.clean import normalize
from nmt.text.sentences import GREEK_QUESTION, MARKS, WIDE_MARK
from nmt.text.words import JOINERS

# Split points, best first: after a sentence, after a clause, between words. A run of punctuation is matched from its
# start and as a whole, in linear time; only up to four opening marks before a word stay with that word.
_AFTER_WIDE = r"[^\w\s(\[{\u00ab\u2018\u201c\u2039\u3008\u300a\u300c\u300e\u3010\u3014\u3016\uff08\uff3b\uff5b\uff62]"
_SPLIT_POINTS = (
    re.compile(
        rf"(?<![^\w\s])(?:(?>[^\w\s]*?(?:[{MARKS}]|{GREEK_QUESTION}))[^\w\s]*+\s+"
        rf"|(?>[^\w\s]*?(?:{WIDE_MARK}|[\u104b\u17d4\u17d5]))(?:{_AFTER_WIDE}*+(?=[^\w\s]{{1,4}}+\w)|[^\w\s]*+))"
    ),
    re.compile(r"[,;:\u2013\u2014\u060c\u061b\u1363-\u1366]\s+|[\u3001\uff0c\uff1a\uff1b\uff64\u104a]"),
    re.compile(r"\s+"),
)

# Prefixes of the Unicode names of characters of scripts without spaces between words.
_UNSPACED = (
    *("CJK", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "HALFWIDTH KATAKANA", "FULLWIDTH"),
    *("THAI", "LAO", "KHMER", "MYANMAR"),
)
# These extend the character before them, like all marks: joiners, Thai and Lao am, half-width voiced sound marks, skin
# tones, and the tags of regional flags.
_EXTENDING = re.compile("[\u200c\u200d\u0e33\u0eb3\uff9e\uff9f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]")
# These belong to the character after them: the zero-width joiner, viramas, and vowels of Thai and Lao.
_EXTENDED = re.compile(
    "[\u200d\u094d\u09cd\u0a4d\u0acd\u0b4d\u0c4d\u0ccd\u0d4d\u0dca\u1039\u17d2\u0e40-\u0e44\u0ec0-\u0ec4]"
)
_FLAG_LETTERS = "".join(map(chr, range(0x1F1E6, 0x1F200)))
_MAX_SEQUENCE = 32  # code points; without a limit, long runs of marks would take much time

_CLOSING, _OPENING = "\"'\u2019\u201d)]", "\"'\u2018\u201c(["

Phrase = tuple[int, ...]
Alternatives = tuple[Phrase, ...]


class Part(NamedTuple):
    """A part of a line that is translated separately.

    start: index of its first character in the normalized line
    """

    text: str
    start: int
    tokens: list[int]


def split_line(text: str, encode: Callable[[str], list[int]], max_tokens: int) -> list[Part]:
    """Split a normalized line into parts of at most `max_tokens` tokens. An empty line has no parts."""
    parts: list[Part] = []
    end = 0
    for part in split_text(text, lambda text: len(encode(text)) <= max_tokens):
        start = text.index(part, end)
        end = start + len(part)
        # A single character, spelled in bytes, can exceed the limit of a very small model.
        if tokens := encode(part)[:max_tokens]:
            parts.append(Part(part, start, tokens))
    return parts


def split_text(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Split a line recursively near its middle until every part fits. An empty line has no parts.

    Prefers sentence ends, then clause ends, then spaces; splits elsewhere only if there are none, and within a
    character with marks or an emoji sequence only if nothing else is left.
    """
    text = text.strip()
    if len(text) <= 1 or fits(text):
        return [text] if text else []
    middle = len(text) // 2
    points: list[int] = []
    for pattern in _SPLIT_POINTS:
        points = points or [match.end() for match in pattern.finditer(text) if match.end() < len(text)]
    point = min(points, key=lambda point: abs(point - middle)) if points else _character_boundary(text)
    return split_text(text[:point], fits) + split_text(text[point:], fits)


def _character_boundary(text: str) -> int:
    """Return the position between two user-perceived characters near the middle; the middle if there is none.

    A simplification of Unicode Standard Annex 29, section 3.
    """
    middle = len(text) // 2
    for distance in range(min(len(text) - middle, _MAX_SEQUENCE)):
        for point in (middle - distance, middle + distance):
            if point > 0 and not _is_within_character(text, point):
                return point
    return middle


def _is_within_character(text: str, point: int) -> bool:
    before, after = text[point - 1], text[point]
    if before in _FLAG_LETTERS and after in _FLAG_LETTERS:  # two letters are a flag
        start = text[:point]
        return (point - len(start.rstrip(_FLAG_LETTERS))) % 2 == 1
    return (
        unicodedata.category(after).startswith("M")
        or _EXTENDING.match(after) is not None
        or _EXTENDED.match(before) is not None
    )


def join_texts(texts: Sequence[str]) -> tuple[str, list[int]]:
    """Join the texts of parts; return the joined text and the index of the first word of each part.

    Inserts a space, except next to Chinese or Japanese punctuation and between two characters of scripts without
    spaces.
    """
    joined: list[str] = []
    first_words: list[int] = []
    end, num_words = "", 0  # end of the joined text, from its last character that is not closing punctuation
    for text in texts:
        if end and text and _needs_space(end, text):
            end = " "
            joined.append(end)
        # Without a space the first word continues the last one.
        continues = end != "" and text != "" and not end[-1].isspace()
        first_words.append(num_words - 1 if continues else num_words)
        num_words += len(text.split())
        if continues and not text[0].isspace():
            num_words -= 1
        joined.append(text)
        end = text if text.rstrip(_CLOSING) else end + text
    return "".join(joined), first_words


def _needs_space(left: str, right: str) -> bool:
    last, first = left.rstrip(_CLOSING)[-1:], right.lstrip(_OPENING)[:1]
    if _is_wide_punctuation(last) or _is_wide_punctuation(first):
        return False
    return not (is_unspaced(last) and is_unspaced(first))


def _is_wide_punctuation(character: str) -> bool:
    """Return whether this is Chinese or Japanese punctuation, whose glyph includes its space."""
    is_punctuation = character != "" and unicodedata.category(character).startswith("P")
    return is_punctuation and unicodedata.east_asian_width(character) in "WF"


def is_unspaced(character: str) -> bool:
    """Return whether a character belongs to a script without spaces between words."""
    return character != "" and unicodedata.name(character, "").startswith(_UNSPACED)


def contains_phrase(text: str, phrase: str, *, ignores_case: bool = False) -> bool:
    """Return whether a text contains a phrase; in scripts with spaces, it must not be part of a longer word.

    A character of a script without spaces does not extend an adjacent word: 狗dog contains dog, hotdog does not. Runs
    of white space count as one space; Unicode form and invisible characters are ignored, as in the model's input.
    """
    text, phrase = (normalize(part, "NFC") for part in (text, phrase))
    if ignores_case:
        text, phrase = text.lower(), phrase.lower()
    is_start, is_end = is_unspaced(phrase[:1]), is_unspaced(phrase[-1:])  # word boundaries next to any character
    start = text.find(phrase)
    while start >= 0:
        end = start + len(phrase)
        before = text[max(start - _MAX_SEQUENCE, 0) : start].rstrip(JOINERS)[-1:]
        after = text[end : end + _MAX_SEQUENCE].lstrip(JOINERS)[:1]
        if (is_start or not _is_joined(before)) and (is_end or not _is_joined(after)):
            return True
        start = text.find(phrase, start + 1)
    return False


def _is_joined(character: str) -> bool:
    """Return whether a character extends the word next to it; "" stands for the start or end of the text."""
    is_mark = character != "" and unicodedata.category(character).startswith("M")  # such as a vowel of Devanagari
    return (is_mark or re.match(r"\w", character) is not None) and not is_unspaced(character)


def assign_phrases(
    required: Sequence[Alternatives],
    outputs: Sequence[Phrase],
    log_probs: Sequence[float],
    search: Callable[[list[tuple[int, Alternatives]]], list[float]],
) -> list[list[Alternatives]]:
    """Assign each required phrase of a line, with its alternatives, to one part of the line.

    A phrase is assigned to a part whose unconstrained translation contains it, or else to the part whose
    log-probability it reduces least.

    outputs, log_probs: unconstrained translation of each part
    search: returns the log-probability of the best translation for each (part index, required phrase), -inf if none
    """
    assigned: list[list[Alternatives]] = [[] for _ in outputs]
    missing = []
    for phrases in dict.fromkeys(required):
        part = next((index for index, output in enumerate(outputs) if _contains_any(output, phrases)), None)
        if part is None:
            missing.append(phrases)
        else:
            assigned[part].append(phrases)
    candidates = [(part, phrases) for phrases in missing for part in range(len(outputs))]
    constrained = search(candidates)
    losses = iter([log_probs[part] - new for (part, _), new in zip(candidates, constrained, strict=True)])
    for phrases in missing:
        part_losses = [next(losses) for _ in outputs]
        comparable = [math.inf if math.isnan(loss) else loss for loss in part_losses]
        assigned[comparable.index(min(comparable))].append(phrases)
    return assigned


def as_lists(required: Sequence[Alternatives]) -> list[list[list[int]]]:
    """Return required phrases and their alternatives as lists."""
    return [[[*phrase] for phrase in phrases] for phrases in required]


def _contains_any(output: Phrase, phrases: Alternatives) -> bool:
    return any(output[i : i + len(phrase)] == phrase for phrase in phrases for i in range(len(output)))
