"""Links between the words of a text and of its translation, which determine where tags are placed."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence

from nmt.keep.items import Item
from nmt.keep.markup import Links, word_spans

_PUNCTUATION = ".,;:!?\u2026\"'()[]\u00ab\u00bb\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u2039\u203a"


def statistical_links(pairs: Sequence[tuple[str, str]]) -> list[set[tuple[int, int]]]:
    """Return the word links of each pair of a text and its translation, by an aligner trained on these pairs."""
    from nmt.alignment.lexical import agreed_links  # noqa: PLC0415 - imports numpy, which only markup needs

    words: dict[str, int] = {}

    def ids(text: str) -> list[int]:
        return [words.setdefault(word, len(words)) for word in _bare_words(text.casefold())]

    return agreed_links([(ids(text), ids(translation)) for text, translation in pairs])


def _bare_words(text: str) -> list[str]:
    """Return the words of a text without punctuation at their ends."""
    return [word.strip(_PUNCTUATION) for word in text.split()]


def link_equal_words(text: str, translation: str, links: Links, pairs: Sequence[tuple[Item, Item]]) -> Links:
    """Replace the links of items, and of names and the like that occur once on both sides.

    Other words that are equal may be false friends, such as German "hat": they are linked only if they have no link.
    """
    src_words, tgt_words = _bare_words(text), _bare_words(translation)
    src_counts, tgt_counts = Counter(src_words), Counter(tgt_words)
    position = {word: index for index, word in enumerate(tgt_words)}
    given = {source for source, _ in links}
    equal = {
        position[word]: index
        for index, word in enumerate(src_words)
        if src_counts[word] == 1 and tgt_counts[word] == 1 and any(map(str.isalnum, word))
        if index not in given or _is_copied(word, is_first=index == 0)
    }
    linked = set(equal.values())
    src_starts, tgt_starts = ([start for start, _ in word_spans(side)] for side in (text, translation))
    for source, target in pairs:
        first, end = bisect_right(src_starts, source.start) - 1, bisect_left(src_starts, source.end)
        linked.update(range(first, end))
        words = range(bisect_right(tgt_starts, target.start) - 1, bisect_left(tgt_starts, target.end))
        for offset, word in enumerate(words):
            equal[word] = min(first + offset, end - 1)
    others = (link for link in links if link[1] not in equal and link[0] not in linked)
    return [*others, *((source, target) for target, source in equal.items())]


def _is_copied(word: str, *, is_first: bool) -> bool:
    """Return whether a word on both sides is probably a copy: it has a digit, or is capitalized inside a sentence."""
    return any(map(str.isdigit, word)) or (not is_first and word[:1].isupper())
