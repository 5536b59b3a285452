"""Inline HTML and XML: separate tags from text, and insert them around the aligned words of a translation.

The tags of a line become a tree of elements. The words of an element are aligned with words of the translation, and the
element is placed around the interval that has the most aligned words and the fewest others. Siblings get disjoint
intervals within the interval of their parent, so the result is well nested.
"""

from __future__ import annotations

import html
import math
import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from html.entities import html5
from itertools import pairwise
from typing import NamedTuple

from nmt.decode.translation import without_breaks
from nmt.keep.items import NO_FIXED_TEXT, FixedText, whole_words
from nmt.keep.tags import BLOCKS, SUBTITLE_TAG, TOKEN, Element, Parser

Links = Sequence[tuple[int, int]]
_MAX_DEPTH = 100
# Punctuation that only the translation has. A period within a sentence may be that of an abbreviation or an ordinal.
_ADDED_BEFORE = "\u00bf\u00a1"
_ADDED_WITHIN = ",;:!?\u2026"
_FINAL_PUNCTUATION = re.compile(r"[^\w\s]{1,9}(?!\S)")
_ADDED_AFTER = f".{_ADDED_WITHIN}"


class Interval(NamedTuple):
    """A range of words, or of characters."""

    start: int
    end: int


@dataclass(frozen=True)
class MarkedText:
    """A line, parsed into text and tags.

    text:     without line breaks or tabs; entities are decoded
    elements: top-level elements, in order
    fixed:    content of inline elements with code, or with a tag that `forbids_translation`
    escaped:  pattern of the characters of a translation that become entities; "" for none
    too_deep: whether the line has too many open elements; `text` is then empty, and the whole line is one element
    """

    text: str
    elements: list[Element] = field(default_factory=list)
    escaped: str = ""
    too_deep: bool = False
    fixed: FixedText = NO_FIXED_TEXT

    @classmethod
    def parse(cls, line: str, *, is_subtitle: bool = False) -> MarkedText:
        """Parse a line; any text is valid, because an element may start or end on another line.

        A line with more than 100 open elements is not translated.

        is_subtitle: whether & is a character instead of the beginning of an entity, and {\\an8} is a tag
        """
        parser = Parser(line, is_subtitle=is_subtitle)
        end = 0
        for token in (SUBTITLE_TAG if is_subtitle else TOKEN).finditer(line):
            if token.groupdict().get("entity") and token[0][1:] in html5:
                continue
            parser.add_text(line[end : token.start()])
            parser.add_tag(token)
            end = token.end()
            if parser.depth > _MAX_DEPTH:
                return cls("", [Element(without_breaks(line), "", 0, 0)], too_deep=True)
        parser.add_text(line[end:])
        elements = parser.finish()
        return cls(parser.text, elements, parser.escaped, fixed=FixedText(parser.text, tuple(parser.fixed)))

    def insert(self, translation: str, links: Links, edits: Sequence[tuple[int, int, str]] = ()) -> str:
        """Insert the tags into the translation.

        links: pairs of indices, from 0, of words of `text` and of the translation; white space separates words
        edits: (start, end, replacement) of parts of the translation, in order and disjoint
        """
        placement = _Placement(self.text, translation, links)
        inserted = placement.place(self.elements)
        starts = [*(start for start, _ in placement.copied), len(translation)]
        ends = [end for _, end in placement.copied]
        others = [edit for edit in edits if starts[bisect_right(ends, edit[0])] >= edit[1]]  # outside these ranges
        removed = [(start, end, "") for start, end in placement.copied]
        edited, shifted = apply_edits(translation, sorted([*others, *removed]), [offset for offset, _ in inserted])
        points = [0, *shifted, len(edited)]
        pieces = [self._escape(edited[start:end]) for start, end in pairwise(points)]
        tags = [*(tag for _, tag in inserted), ""]
        return "".join(piece + tag for piece, tag in zip(pieces, tags, strict=True))

    def _escape(self, text: str) -> str:
        return re.sub(self.escaped, lambda found: html.escape(found[0], quote=False), text) if self.escaped else text


def apply_edits(text: str, edits: Sequence[tuple[int, int, str]], offsets: Sequence[int] = ()) -> tuple[str, list[int]]:
    """Replace parts of a text; return the text and the shifted offsets, which must be ascending.

    An offset inside a replaced part moves to its end.
    """
    pieces: list[str] = []
    shifted: list[int] = []
    done = length = 0  # characters of the text and of the result so far
    waiting = list(offsets)[::-1]
    for start, end, replacement in [*edits, (len(text), len(text), "")]:
        while waiting and waiting[-1] <= start:
            shifted.append(length + waiting.pop() - done)
        pieces += [text[done:start], replacement]
        length += start - done + len(replacement)
        while waiting and waiting[-1] < end:
            waiting.pop()
            shifted.append(length)
        done = end
    return "".join(pieces), shifted


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return the start and end of each word."""
    return [match.span() for match in re.finditer(r"\S+", text)]


class _Placement:
    """Finds the positions of elements in a translation.

    Intervals are ranges of words, unless a docstring names offsets, which are in characters.

    copied: offsets of the parts of the translation that fixed elements replace; their content is inserted with their
            tags
    """

    def __init__(self, text: str, translation: str, links: Links) -> None:
        self._text = text
        self._translation = translation
        self._length = len(text.strip())
        self._src = word_spans(text)
        self._tgt = word_spans(translation)
        self._src_starts = [start for start, _ in self._src]
        self._src_ends = [end for _, end in self._src]
        self._targets: defaultdict[int, list[int]] = defaultdict(list)  # by source word
        for source, target in links:
            self._targets[source].append(target)
        self._num_links = Counter(target for _, target in links)
        self.copied: list[Interval] = []
        self._inserted: list[tuple[int, str]] = []
        self._offset = 0

    def place(self, elements: Sequence[Element]) -> list[tuple[int, str]]:
        """Return the tags and their ascending offsets."""
        src, tgt = Interval(0, len(self._src)), Interval(0, len(self._tgt))
        self._place(elements, src, tgt, len(self._translation))
        return self._inserted

    def _place(self, elements: Sequence[Element], src: Interval, tgt: Interval, limit: int) -> None:
        """Insert elements into the target words of their parent. limit: offset of the parent's closing tag"""
        source_words = [self._words(element) for element in elements]
        intervals: dict[int, Interval] = {}
        taken: list[Interval] = []  # those with words
        used: set[int] = set()
        for index, words in enumerate(source_words):
            if words.start < words.end:
                intervals[index] = self._interval(words, src, tgt, taken, used)
                if intervals[index].start < intervals[index].end:
                    taken.append(intervals[index])
                    used.update(range(*intervals[index]))
        nonempty = sorted((*interval, index) for index, interval in intervals.items() if interval.start < interval.end)
        starts = [start for start, _, _ in nonempty]
        for index, words in enumerate(source_words):
            if index not in intervals:  # a mark
                point = self._point(words.start, src, tgt, is_after=self._is_after_word(elements[index]))
                before = bisect_left(starts, point)
                if before > 0:
                    start, end, other = nonempty[before - 1]
                    if point < end:  # keep marks outside their siblings
                        point = end if other < index else start
                intervals[index] = Interval(point, point)
        for index in sorted(intervals, key=lambda index: (*intervals[index], index)):
            interval, element = intervals[index], elements[index]
            if interval.start < interval.end:
                self._insert_around(element, source_words[index], interval, limit)
            else:
                self._insert_mark(element, interval.start, limit)

    def _words(self, element: Element) -> Interval:
        """Return the source words of an element; for a mark, an empty range before the next word."""
        if not element.closing and not element.children and element.start == element.end:
            start = bisect_right(self._src_ends, element.start)
            if start < len(self._src) and self._src[start][0] < element.start:  # inside a word
                start += 1
            return Interval(start, start)
        return Interval(bisect_right(self._src_ends, element.start), bisect_left(self._src_starts, element.end))

    def _interval(
        self, words: Interval, src: Interval, tgt: Interval, taken: Collection[Interval], used: set[int]
    ) -> Interval:
        """Return the interval of free target words with the best links to these source words.

        taken: intervals of other elements; used: their words
        """
        if words == src and not taken:
            return tgt
        inside = Counter(target for source in range(*words) for target in self._targets.get(source, ()))
        linked = [target for target in inside if target in range(*tgt) and target not in used]
        best, best_weight = Interval(0, 0), 0
        start, weight = 0, 0  # of the best interval that ends at the previous word
        # The best interval starts and ends with words that have a link.
        for word in range(min(linked, default=0), max(linked, default=-1) + 1):
            if weight <= 0:
                start, weight = word, 0
            outside = self._num_links[word] - inside[word]
            weight = 0 if word in used else weight + max(-1, min(1, inside[word] - outside))
            if weight > best_weight:
                best, best_weight = Interval(start, word + 1), weight
        if best_weight:
            return best
        middle = self._project((words.start + words.end) / 2, src, tgt) - 0.5
        if len(used) == tgt.end - tgt.start:
            point = self._point(words.start, src, tgt)
            point = next((end for start, end in taken if start < point < end), point)
            return Interval(point, point)
        nearest = self._nearest_free(middle, tgt, used)
        return Interval(nearest, nearest + 1)

    @staticmethod
    def _nearest_free(middle: float, tgt: Interval, used: set[int]) -> int:
        """Return the free target word nearest to a position; there must be one."""
        after = math.ceil(middle)
        before = after - 1
        while True:
            free = [word for word in (before, after) if word in range(*tgt) and word not in used]
            if free:
                return min(free, key=lambda word: abs(word - middle))
            before, after = before - 1, after + 1

    def _is_after_word(self, mark: Element) -> bool:
        """Return whether a mark within the text belongs to the word before it, such as a reference mark."""
        before, after = self._text[: mark.start][-1:], self._text[mark.start :][:1]
        return bool(before) and not before.isspace() and bool(after) and not after.isalnum()

    def _point(self, word: int, src: Interval, tgt: Interval, *, is_after: bool = False) -> int:
        """Return the target word before which to place a mark that precedes source word `word`.

        is_after: whether it belongs to the word before it
        """
        if word <= src.start:
            return tgt.start
        if word >= src.end and not is_after:
            return tgt.end
        after, before = self._linked(word, tgt), self._linked(word - 1, tgt)
        if before and (is_after or not after):
            return max(before) + 1
        if after:
            return min(after)
        if word >= src.end:
            return tgt.end
        return round(self._project(word, src, tgt))

    def _linked(self, word: int, tgt: Interval) -> list[int]:
        return [target for target in self._targets.get(word, ()) if target in range(*tgt)]

    @staticmethod
    def _project(word: float, src: Interval, tgt: Interval) -> float:
        """Project a source position to the target along the diagonal."""
        fraction = (word - src.start) / max(1, src.end - src.start)
        return tgt.start + fraction * (tgt.end - tgt.start)

    def _insert_around(self, element: Element, words: Interval, interval: Interval, limit: int) -> None:
        first, last = self._tgt[interval.start], self._tgt[interval.end - 1]
        source_first, source_last = self._src[words.start], self._src[words.end - 1]
        start, end = first[0], last[1]
        if element.is_fixed and self._copy_fixed(element, Interval(start, end), limit):
            return
        if found := self._find_content(element, Interval(source_first[0], source_last[1]), Interval(start, end)):
            start, end = found
        else:
            content = self._text[element.start : element.end].strip()
            is_part = len(content) < self._length and element.name not in BLOCKS
            if _is_punctuation(self._text[source_first[0] : element.start]):
                start += _leading_punctuation(self._translation[slice(*first)])
            elif is_part and content[:1].isalnum():
                start += _num_leading(_ADDED_BEFORE, self._translation[start:end])
            if _is_punctuation(self._text[element.end : source_last[1]]):
                end -= _leading_punctuation(self._translation[slice(*last)][::-1])
            elif is_part and content[-1:].isalnum():
                added = _ADDED_AFTER if interval.end == len(self._tgt) else _ADDED_WITHIN
                end -= _num_leading(added, self._translation[start:end][::-1])
        start = self._insert(start, element.opening, limit)
        limit = min(max(start, end), limit)
        self._place(element.children, words, interval, limit)
        self._insert(limit, element.closing, limit)

    def _copy_fixed(self, element: Element, translated: Interval, limit: int) -> bool:
        """Insert a fixed element in place of its content; return whether the translated words contain it.

        The content may be part of a compound, as in max-Funktion.

        translated: offsets of the translated words
        """
        content = self._text[element.start : element.end].strip()
        found = re.compile(whole_words(content), re.IGNORECASE).search(
            self._translation, max(translated.start, self._offset), min(translated.end, limit)
        )
        if found is None:
            return False
        self._insert(found.start(), element.source, limit)
        self._offset = found.end()
        self.copied.append(Interval(*found.span()))
        return True

    def _find_content(self, element: Element, words: Interval, translated: Interval) -> Interval | None:
        """Return where the translated words repeat the content of an element, e.g. the 2 of H<sub>2</sub>O in H2O.

        The letters around the content must be the same as in the source; punctuation may differ. Digits that occur once
        may have any letters around them.

        words, translated: offsets of source and target words
        """
        content = self._text[element.start : element.end].strip()
        before, after = self._text[words.start : element.start], self._text[element.end : words.end]
        before = before[_leading_punctuation(before) :] if any(map(str.isalnum, before)) else ""
        after = after[: len(after) - _leading_punctuation(after[::-1])] if any(map(str.isalnum, after)) else ""
        whole = before + content + after
        if any(map(str.isdigit, content)):
            found = list(re.compile(rf"(?<!\d){re.escape(content)}(?!\d)").finditer(self._translation, *translated))
            if len(found) == 1:
                return Interval(*found[0].span())
        begin = self._translation.find(whole, *translated) if content else -1
        if begin < 0:
            return None
        others = self._translation[translated.start : begin] + self._translation[begin + len(whole) : translated.end]
        if any(map(str.isalnum, others)):
            return None
        begin += len(before)
        return Interval(begin, begin + len(content))

    def _insert_mark(self, element: Element, point: int, limit: int) -> None:
        """Insert a mark before target word `point`, with white space on the same sides as in the source."""
        before = self._text[: element.start][-1:]
        after = self._text[element.start :][:1]
        has_before, has_after = before.isspace(), after.isspace()
        is_last = point >= len(self._tgt)
        offset = self._tgt[point][0] if not is_last else len(self._translation)
        tag = element.source
        if before and not has_before and point > 0:
            word = slice(*self._tgt[point - 1])
            offset = word.stop
            if _FINAL_PUNCTUATION.match(self._text, element.start):
                offset -= _leading_punctuation(self._translation[word][::-1])
            elif element.name == "sup" and before.isalnum():
                offset -= _num_leading(_ADDED_AFTER if is_last else _ADDED_WITHIN, self._translation[word][::-1])
        elif has_before and is_last and point > 0:
            tag = f" {tag}"
        elif has_after and (has_before or (not before and not is_last)):
            tag = f"{tag} "
        self._insert(offset, tag, limit)

    def _insert(self, offset: int, tag: str, limit: int) -> int:
        self._offset = max(self._offset, min(offset, limit))
        if tag:
            self._inserted.append((self._offset, tag))
        return self._offset


def _num_leading(characters: str, text: str) -> int:
    """Return the number of these characters at the beginning of a text, 0 if there are no others."""
    return len(text) - len(text.lstrip(characters) or text)


def _is_punctuation(text: str) -> bool:
    return bool(text) and not any(map(str.isalnum, text))


def _leading_punctuation(word: str) -> int:
    """Return the number of characters before the first letter or digit, 0 if there is none."""
    return next((i for i, character in enumerate(word) if character.isalnum()), 0)
