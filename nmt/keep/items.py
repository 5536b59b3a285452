"""Items to preserve in a translation: numbers, URLs, e-mail addresses and placeholders."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, islice
from typing import Literal, NamedTuple, TypeAlias

from nmt.text.clean import normalize
from nmt.text.languages import SHORT_CODES
from nmt.text.words import FRACTIONS, UNSPACED

Kind = Literal["markup", "numbers", "urls", "emails", "placeholders"]
FIXED = "fixed"
"""Kind of the items that markup excludes from translation, such as names of products."""
_Key: TypeAlias = "Callable[[Item], str]"

_SPACES = " \u00a0\u202f"
_SIGNS = "+\u00b1\u2013\u2212-"
_EXPONENTS = "\u00b9\u00b2\u00b3\u2070\u2074-\u207b"
_SEPARATORS_OF_LANGUAGES = {
    "cy en ga he hi ja ko ms th zh": (".", ","),
    "ca da de el es gl hr id is it nl pt ro sl sr srp tr vi": (",", "."),
    "be bg cs et fi fr hu lt lv nb nn no pl ru sk sv uk": (",", _SPACES),
}
_SEPARATORS = {
    language: separators for languages, separators in _SEPARATORS_OF_LANGUAGES.items() for language in languages.split()
}
_SEPARATORS |= {code: _SEPARATORS[short] for code, short in SHORT_CODES.items() if short in _SEPARATORS}
"""Decimal separator and thousands separators, by ISO 639 code; numbers in other languages stay as they are."""
_WRITTEN_SPACE = dict.fromkeys(("fr", "fra", "fre"), "\u202f")

# Chinese, Japanese, Thai, Korean and similar letters, which stand next to items without a space.
_ATTACHED = UNSPACED + "\uac00-\ud7a3"
_WORD = rf"[^\W{_ATTACHED}]"
_REST_OF_WORD = re.compile(rf"[^\s{_ATTACHED}]*")
_MAX_REST = 100  # characters
_MAX_FIXED = 100
# Characters that may stand next to a fixed text of symbols, such as && or +. Next to others, as in x+y, it is part of a
# longer text.
_AROUND_SYMBOLS = (
    rf"\s{_ATTACHED}/()\[\]{{}}\"'\u00ab\u00bb\u2018-\u201f\u2039\u203a"
    r"\u3001-\u3011\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f"
)
_FULL_WIDTH_DIGITS = {ord("\uff10") + digit: str(digit) for digit in range(10)}

_NOT_IN_URL = r"\s<>\"\u201c\u201d\u3001-\u3003\u3008-\u3011\u3014-\u301f\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f"
_AFTER_URL = r".,;:!?'\u2019()\[\]{}"
_MAX_REPEATED = 32  # without a limit, some lines of length n would take time of the order of n^2
# An attached letter ends the host of a URL. A final closing parenthesis belongs to a URL that has an opening one, as in
# https://example.org/Mercury_(planet).
_URL = (
    rf"(?:(?i:https?|s?ftps?|ssh|git|file|wss?)://|(?<!{_WORD})[Ww]{{3}}\.)"
    rf"(?:[^{_NOT_IN_URL}{_ATTACHED}/?#]*{_WORD}(?=[{_ATTACHED}])|[^{_NOT_IN_URL}]*\([^{_NOT_IN_URL}()]*\)"
    rf"(?=[{_AFTER_URL}]{{0,{_MAX_REPEATED}}}+(?:[{_NOT_IN_URL}]|\Z))|[^{_NOT_IN_URL}]*[^{_NOT_IN_URL}{_AFTER_URL}]/?)"
)
_LOCAL = rf"(?:{_WORD}|[.+-])"  # a character of the local part of an e-mail address
_EMAIL = rf"(?<!{_WORD})(?<![.+-]){_LOCAL}++(?:'{_LOCAL}++){{0,3}}@(?:{_WORD}|-)+(?:\.(?:{_WORD}|-)+)+"
_BRACES = r"\{[^{}\n]{0,80}\}"
for _ in range(2):  # nested, as in {count, plural, one {# dog} other {# dogs}}
    _BRACES = rf"(?:{_BRACES}|\{{[^{{}}\n]{{0,80}}+(?:{_BRACES}[^{{}}\n]{{0,80}}+){{1,20}}+\}})"
_PLACEHOLDER = (
    rf"[$%#]?{_BRACES}"
    rf"|%(?:\(\w+\))?(?:\d+\$)?[-+0#]*\d*(?:\.\d+)?(?:hh?|ll?)?[sdifuxXeEgGcr@](?!{_WORD})"
)
# A sign or a decimal point at the beginning, as in -5 and .5, unlike the signs of 5-10, A-5, C++11 and 3.-5. May.
_SIGN = rf"(?:(?<![\w)\]}}.%\u00b0\u20ac'\u2019\"{_SIGNS}])[{_SIGNS}](?=\.?[\d{FRACTIONS}]))?"
_POINT_BEFORE = r"(?:(?<![\w)\]}.,:/%\u00b0'\u2019\"])\.)?"
_NUMBER = (
    rf"(?:{_POINT_BEFORE}(?<!\d)\d++(?:[.,:/\u2044]\d++){{0,{_MAX_REPEATED}}}+[{FRACTIONS}{_EXPONENTS}]*|[{FRACTIONS}])"
    rf"(?!{_LOCAL}{{0,64}}@)"  # not the beginning of an e-mail address
)
_VERSION = rf"(?<!{_WORD})[vV]\d++(?:\.\d++)++(?!{_LOCAL}{{0,64}}@)"  # its points are not decimal points
_SPACED_NUMBER = rf"\d{{1,3}}(?:[{_SPACES}]\d{{3}})+(?!\d)(?:,\d+)?"
_PHONE_NUMBER = rf"\+\d+(?:[{_SPACES}]\d+){{3,}}"  # with a country code, such as +420 123 456 789


class Item(NamedTuple):
    """An item and its position in a text. text: as in the text, but with ASCII digits in place of full-width ones"""

    kind: str
    text: str
    start: int
    end: int


class Pairing(NamedTuple):
    """Items of a source and its translation: pairs of equal items, and items on only one side."""

    pairs: list[tuple[Item, Item]]
    missing: list[Item]
    extra: list[Item]

    def extended(self, rest: Pairing) -> Pairing:
        """Add the pairing of `missing` and `extra`."""
        return Pairing([*self.pairs, *rest.pairs], rest.missing, rest.extra)


class FixedText(NamedTuple):
    """Parts of a line that are not translated. spans: disjoint, in order"""

    line: str
    spans: tuple[tuple[int, int], ...]

    def items(self) -> list[Item]:
        """Return the parts as items, with at most 100 different texts, because each is searched for in translations."""
        items = [Item(FIXED, " ".join(self.line[start:end].split()), start, end) for start, end in self.spans]
        texts = set(islice(dict.fromkeys(item.text for item in items), _MAX_FIXED))
        return [item for item in items if item.text in texts]


NO_FIXED_TEXT = FixedText("", ())


@dataclass(frozen=True)
class ItemGrammar:
    """Finds and compares the items of a text and its translation.

    kinds:    the kinds to find
    src_lang: ISO 639 code, which determines the number format
    fixed:    parts of the text that are also items; other occurrences of the same words are not
    """

    kinds: Collection[str]
    src_lang: str
    tgt_lang: str
    fixed: FixedText = NO_FIXED_TEXT

    def with_fixed(self, fixed: FixedText) -> ItemGrammar:
        """Return a grammar for a line with these fixed parts."""
        return replace(self, fixed=fixed) if fixed.spans else self

    def find_source(self, text: str) -> list[Item]:
        """Return the items of a line, or of a part of it, in order.

        In a part, every occurrence of a fixed text is an item.
        """
        fixed = self.fixed.items()
        found = fixed if text == self.fixed.line else _occurrences(fixed, text)
        return _with_fixed(found, _find(text, self.kinds, self.src_lang))

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return the start and end of each item of a text."""
        return [(item.start, item.end) for item in self.find_source(text)]

    def find_target(self, text: str) -> list[Item]:
        """Return the items of a translation, in order.

        The case of a fixed text may differ. If it occurs more often than in the line, the occurrences with the most
        similar case and position count.
        """
        fixed = self.fixed.items()
        found = _most_similar(fixed, len(self.fixed.line), _occurrences(fixed, text, re.IGNORECASE), len(text))
        return _with_fixed(found, _find(text, self.kinds, self.tgt_lang))

    def written(self, item: Item) -> str:
        """Return the target form of a source item: 1,234.5 becomes 1.234,5 in German."""
        number = _parse(item.text, self.src_lang) if item.kind == "numbers" else None
        if number is None or self.tgt_lang not in _SEPARATORS:
            return item.text
        decimal, group = _SEPARATORS[self.tgt_lang]
        separator = _WRITTEN_SPACE.get(self.tgt_lang, "\u00a0") if group == _SPACES else group
        sign, whole, fraction = number
        whole = re.sub("[^0-9]", separator, whole)
        return f"{sign}{whole}{decimal}{fraction}" if fraction else sign + whole

    def pair(self, sources: Sequence[Item], targets: Sequence[Item]) -> Pairing:
        """Pair equal items: first those in their target form, then those of equal value, then copied ones.

        Then pair numbers separated only by spaces, which may look like one number of the target language.
        """
        result = _pair_equal(sources, targets, self.written, lambda target: target.text)
        source_value = partial(_value, language=self.src_lang)
        for target_value in (partial(_value, language=self.tgt_lang), source_value):
            result = result.extended(_pair_equal(result.missing, result.extra, source_value, target_value))
        groups = [group for item in result.extra for group in _groups(item)]
        if not result.missing or groups == result.extra:
            return result
        return result.extended(self.pair(result.missing, groups))

    def holds(self, sources: Sequence[Item], text: str, requested: Sequence[Item] = ()) -> bool:
        """Return whether a translation has each item of its source as often as the source, and no others.

        requested: additional items that it may have
        """
        expected = Counter((item.kind, self.written(item)) for item in sources)
        allowed = expected + Counter((item.kind, item.text) for item in requested)
        counts = Counter[tuple[str, str]]()
        for item in self.find_target(text):
            parts = [item] if (item.kind, item.text) in allowed else _groups(item)
            counts.update((part.kind, part.text) for part in parts)
        return expected <= counts <= allowed


def is_newly_joined(source: Item, line: str, target: Item, translation: str) -> bool:
    """Return whether an item that stands alone in a line is joined to letters in its translation.

    A number or placeholder is joined if a letter is next to it. A fixed text is joined if it is part of a word, even
    after a hyphen. In the translation, only letters with case count, because Korean and Arabic attach words to numbers
    without a space.
    """
    if source.kind not in ("numbers", "placeholders", FIXED):
        return False
    neighbors = _rest_of_word if source.kind == FIXED else _neighbors
    before, after = neighbors(source, line), neighbors(target, translation)
    return after.lower() != after.upper() and not any(map(str.isalpha, before))


def _neighbors(item: Item, text: str) -> str:
    """Return the characters next to an item of a text."""
    return text[max(item.start - 1, 0) : item.start] + text[item.end : item.end + 1]


def _rest_of_word(item: Item, text: str) -> str:
    """Return the characters around an item up to the next space, or letter of a script without spaces."""
    before = _REST_OF_WORD.match(text[max(item.start - _MAX_REST, 0) : item.start][::-1])
    after = _REST_OF_WORD.match(text[item.end : item.end + _MAX_REST])
    return "".join(found[0] for found in (before, after) if found)


def _pair_equal(sources: Sequence[Item], targets: Sequence[Item], source_key: _Key, target_key: _Key) -> Pairing:
    """Pair items of the same kind with equal keys, in order."""
    unpaired: defaultdict[tuple[str, str], deque[Item]] = defaultdict(deque)
    for target in targets:
        unpaired[target.kind, target_key(target)].append(target)
    pairs: list[tuple[Item, Item]] = []
    missing: list[Item] = []
    for source in sources:
        equal = unpaired[source.kind, source_key(source)]
        if equal:
            pairs.append((source, equal.popleft()))
        else:
            missing.append(source)
    return Pairing(pairs, missing, sorted(chain(*unpaired.values()), key=lambda item: item.start))


@cache
def _pattern(language: str) -> re.Pattern[str]:
    spaced = f"{_SPACED_NUMBER}|" if _SEPARATORS.get(language, _SEPARATORS["en"])[1] == _SPACES else ""
    return re.compile(
        f"(?P<urls>{_URL})|(?P<emails>{_EMAIL})|(?P<placeholders>{_PLACEHOLDER})"
        f"|(?P<numbers>{_VERSION}|{_SIGN}(?:{spaced}{_NUMBER}))"
    )


def _find(text: str, kinds: Collection[str], language: str) -> list[Item]:
    if not kinds:
        return []
    items: list[Item] = []
    for match in _pattern(language).finditer(text):
        kind = str(match.lastgroup)
        if kind in kinds:
            content = match[0].translate(_FULL_WIDTH_DIGITS) if kind == "numbers" else match[0]
            item = Item(kind, content, *match.span())
            items += [item] if _parse(content, language) else _groups(item)
    return items


def _occurrences(fixed: Sequence[Item], text: str, flags: int = 0) -> list[Item]:
    """Return the whole words of a text that equal a fixed text."""
    if not fixed:
        return []
    texts = sorted({item.text for item in fixed}, key=lambda text: (-len(text), text))  # the longest first
    found = re.finditer("|".join(map(whole_words, texts)), text, flags)
    return [Item(FIXED, " ".join(match[0].split()), *match.span()) for match in found]


def _most_similar(sources: Sequence[Item], src_length: int, targets: Sequence[Item], tgt_length: int) -> list[Item]:
    """Return as many targets of each text as there are sources: those of equal case, then of similar position.

    Positions are relative to the length of each side.
    """
    groups: defaultdict[str, list[Item]] = defaultdict(list)
    for target in targets:
        groups[target.text.casefold()].append(target)
    selected: list[Item] = []
    # Not every group has a source: unlike `casefold`, re.IGNORECASE matches i with Turkish dotted and dotless i.
    for text in dict.fromkeys(source.text.casefold() for source in sources):
        equal = [source for source in sources if source.text.casefold() == text]
        texts = {source.text for source in equal}
        positions = [source.start / src_length for source in equal]
        key = partial(_dissimilarity, texts=texts, positions=positions, tgt_length=tgt_length)
        selected += sorted(groups[text], key=key)[: len(equal)]
    return sorted(selected, key=lambda item: item.start)


def _dissimilarity(
    target: Item, texts: Collection[str], positions: Sequence[float], tgt_length: int
) -> tuple[bool, float]:
    """Return whether a target equals none of these texts, and its distance to the nearest of ascending positions."""
    position = target.start / tgt_length
    index = bisect_right(positions, position)
    near = positions[max(index - 1, 0) : index + 1]
    return target.text not in texts, min(abs(position - other) for other in near)


def _with_fixed(fixed: Sequence[Item], items: list[Item]) -> list[Item]:
    """Add fixed texts; drop other items that overlap them."""
    if not fixed:
        return items
    ends = [item.end for item in fixed]
    starts = [*(item.start for item in fixed), math.inf]
    others = [item for item in items if starts[bisect_right(ends, item.start)] >= item.end]
    return sorted([*fixed, *others], key=lambda item: item.start)


def whole_words(text: str) -> str:
    """Return a pattern of a text that is not part of a longer word or, without letters and digits, of other symbols."""
    if any(map(str.isalnum, text)):
        before, after = (
            rf"(?{look}{_WORD})" if re.match(_WORD, end) else "" for look, end in (("<!", text), ("!", text[-1]))
        )
    else:
        before, after = rf"(?<![^{_AROUND_SYMBOLS}])", rf"(?![^{_AROUND_SYMBOLS}.,;:!?\u2026])"
    return before + r"\s+".join(map(re.escape, text.split())) + after


def _groups(item: Item) -> list[Item]:
    """Split a number at its spaces."""
    if item.kind != "numbers":
        return [item]
    groups = re.finditer(f"[^{_SPACES}]+", item.text)
    return [Item(item.kind, group[0], item.start + group.start(), item.start + group.end()) for group in groups]


def _parse(text: str, language: str) -> tuple[str, str, str] | None:
    """Return sign, whole part with its separators, and fraction.

    None for notations such as 10:30 and 0 800 123 456, and for languages whose number format is unknown.
    """
    if language not in _SEPARATORS:
        return None
    decimal, group = _SEPARATORS[language]
    whole = rf"[1-9][0-9]{{0,2}}(?:[{group}][0-9]{{3}})+|[0-9]+"
    found = re.fullmatch(rf"([{_SIGNS}]?)({whole})(?:[{decimal}]([0-9]+))?", text)
    if found is None or re.fullmatch(_PHONE_NUMBER, text):
        return None
    return found[1], found[2], found[3] or ""


def _value(item: Item, language: str) -> str:
    """Return the normalized value of an item, which ignores case because models may change it."""
    text = item.text
    if item.kind == "numbers":
        decimal, _ = _SEPARATORS.get(language, _SEPARATORS["en"])
        text = re.sub("^[\u2013\u2212]", "-", text)
        text = re.sub(r"^(\W?)\.", rf"\g<1>0{decimal}", text)
        number = _parse(text, language)
        if number is not None:
            sign, whole, fraction = number
            return f"{sign}{re.sub('[^0-9]', '', whole)}.{fraction}"
    return normalize(text, "NFKC").casefold()
