"""Leaks: which test and validation sentences occur in the training text, exactly or nearly, and where.

A sentence occurs exactly where a training line is the same, white space at the end aside. It occurs nearly where only
case, punctuation, spacing or the Unicode form differ, that is, where `normal_forms` gives the same bytes. A changed,
added or missing word makes another sentence.

The training text is read once, as it is in its files: before cleaning, which drops and changes lines. In memory are
the sentences that are looked for and a chunk of the training text.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from re import Pattern
from typing import Literal, assert_never

from nmt.data.corpus import ReadOptions, input_files, read_chunks, read_pairs
from nmt.data.test_sets import test_sets
from nmt.logs import progress
from nmt.recipe import (
    DataRecipe,
    HuggingFaceCorpus,
    JsonLinesCorpus,
    ParquetCorpus,
    Recipe,
    SacrebleuCorpus,
    SgmCorpus,
    TextCorpus,
    ToyCorpus,
    TreesCorpus,
    TsvCorpus,
    UserError,
)
from nmt.text.clean import Pair

Part = Literal["source", "reference", "both"]
Kind = Literal["exact", "near"]

_ASIDE_CATEGORIES = ("P", "Z", "Cc", "Cf", "Sk")


@dataclass(frozen=True)
class SearchedSet:
    """Sentences to look for: a test set or validation text, under the name of its option (`data.test.news`)."""

    name: str
    src: list[str]
    refs: list[list[str]]

    def text(self, leak: Leak) -> str:
        """The sentence that a leak is of: its source, or the reference that occurs."""
        if leak.part != "reference":
            return self.src[leak.line - 1]
        refs = [of_one[leak.line - 1] for of_one in self.refs]
        *forms, found = normal_forms([*refs, leak.found])
        return refs[forms.index(found)]


@dataclass(frozen=True)
class Leak:
    """An occurrence of a test sentence in the training text.

    line:   number of the sentence in its set, from 1
    part:   what occurs: its source, its reference, or both in one training pair
    kind:   the best kind of occurrence that there is
    corpus: place in `data.train` of the first training pair of this kind
    number: number of that pair in its corpus, from 1
    times:  training pairs in which it occurs, exactly or nearly
    found:  the training line; for both, the one of the source side
    """

    line: int
    part: Part
    kind: Kind
    corpus: int
    number: int
    times: int
    found: str


@dataclass(frozen=True)
class LeakCount:
    """Sentences that occur exactly, and those that occur nearly and not exactly."""

    exact: int
    near: int


@dataclass(frozen=True)
class LeakCounts:
    """How many of the sentences of a set occur in the training text.

    source, reference: each side by itself; both: the two sides in one training pair; any: one of these
    """

    sentences: int
    source: LeakCount
    reference: LeakCount
    both: LeakCount
    any: LeakCount

    @property
    def clean(self) -> int:
        """Sentences of which neither side occurs."""
        return self.sentences - self.any.exact - self.any.near


@dataclass(frozen=True)
class SetLeaks:
    """What was found of a set: its name, its number of sentences, and the leaks in their order.

    A leak of one side is left out where the leak of both sides is of the same or a better kind.
    """

    name: str
    sentences: int
    leaks: tuple[Leak, ...]

    def counts(self) -> LeakCounts:
        """The number of sentences for each part and kind."""
        both = self._count("both")
        source, reference = self._count("source", "both"), self._count("reference", "both")
        return LeakCounts(self.sentences, source, reference, both, self._count("source", "reference", "both"))

    def clean(self) -> list[int]:
        """The places, from 0, of the sentences of which neither side occurs."""
        leaking = {leak.line for leak in self.leaks}
        return [place for place in range(self.sentences) if place + 1 not in leaking]

    def _count(self, *parts: Part) -> LeakCount:
        exact = {leak.line for leak in self.leaks if leak.part in parts and leak.kind == "exact"}
        near = {leak.line for leak in self.leaks if leak.part in parts} - exact
        return LeakCount(len(exact), len(near))


class LeakFinder:
    """Looks for the sentences of some sets in the training text, which it is shown chunk by chunk."""

    def __init__(self, sets: Sequence[SearchedSet]) -> None:
        self.sets = tuple(sets)
        self.num_read: Counter[int] = Counter()
        """Training pairs seen so far, by the place of their corpus."""
        self._sides = (
            _Side([[line] for one in self.sets for line in one.src]),
            _Side([lines for one in self.sets for lines in zip(*one.refs, strict=True)]),
        )
        self._found: dict[Part, defaultdict[int, _Occurrences]] = {
            part: defaultdict(_Occurrences) for part in ("source", "reference", "both")
        }

    def add(self, corpus: int, pairs: Sequence[Pair]) -> None:
        """Look at the next pairs of the training corpus at that place of the recipe."""
        first = self.num_read[corpus] + 1
        self.num_read[corpus] += len(pairs)
        lines = [src for src, _ in pairs], [tgt for _, tgt in pairs]
        src, ref = (side.hits(of_side) for side, of_side in zip(self._sides, lines, strict=True))
        both = {hit: exact and ref[hit] for hit, exact in src.items() if hit in ref}
        hits: tuple[tuple[Part, dict[tuple[int, int], bool], list[str]], ...]
        hits = ("source", src, lines[0]), ("reference", ref, lines[1]), ("both", both, lines[0])
        for part, of_part, text in hits:
            for (offset, sentence), exact in of_part.items():
                kind: Kind = "exact" if exact else "near"
                self._found[part][sentence].add(kind, (corpus, first + offset, text[offset]))

    def leaks(self) -> list[SetLeaks]:
        """What was found of each set."""
        result, first = [], 0
        for one in self.sets:
            size = len(one.src)
            found = [leak for place in range(size) for leak in self._of_sentence(first + place, line=place + 1)]
            result.append(SetLeaks(one.name, size, tuple(found)))
            first += size
        return result

    def _of_sentence(self, sentence: int, line: int) -> Iterator[Leak]:
        both = self._found["both"].get(sentence)
        for part, found in self._found.items():
            of_part = found.get(sentence)
            if of_part is None or (part != "both" and both is not None and both.kind in ("exact", of_part.kind)):
                continue
            corpus, number, text = of_part.first[of_part.kind]
            yield Leak(line, part, of_part.kind, corpus, number, of_part.times, text)


@dataclass
class _Occurrences:
    """Where a sentence occurs: the first place of each kind, as corpus, number and training line; how many in all."""

    first: dict[Kind, tuple[int, int, str]] = field(default_factory=dict)
    times: int = 0

    @property
    def kind(self) -> Kind:
        return "exact" if "exact" in self.first else "near"

    def add(self, kind: Kind, place: tuple[int, int, str]) -> None:
        self.first.setdefault(kind, place)
        self.times += 1


class _Side:
    """The sentences of one side, by normal form."""

    def __init__(self, variants: Sequence[Sequence[str]]) -> None:
        """variants: of each sentence, of which a reference may have several."""
        self._lines = [{line.rstrip() for line in lines} - {""} for lines in variants]  # An empty line is no sentence.
        self._sentences_of: dict[bytes, list[int]] = {}
        numbered = [(sentence, line) for sentence, lines in enumerate(self._lines) for line in lines]
        for (sentence, _), form in zip(numbered, normal_forms([line for _, line in numbered]), strict=True):
            sentences = self._sentences_of.setdefault(form, [])
            if sentence not in sentences[-1:]:
                sentences.append(sentence)

    def hits(self, lines: Sequence[str]) -> dict[tuple[int, int], bool]:
        """Whether the occurrence is exact, by place in `lines` and number of the sentence."""
        hits = {}
        sentences_of = self._sentences_of
        for place, form in enumerate(normal_forms(lines)):
            if form in sentences_of:
                line = lines[place].rstrip()
                for sentence in sentences_of[form]:
                    exact = line in self._lines[sentence]
                    if exact or form:  # Nothing is left of "?" nor of "!", and they are not alike.
                        hits[place, sentence] = exact
        return hits


def normal_forms(lines: Sequence[str]) -> list[bytes]:
    """What is left of each line without case, punctuation, spacing and differences of Unicode form.

    That is NFKC and full case folding, without characters of the categories punctuation, separator, control, format
    and modifier symbol. Letters, marks, digits and other symbols (`+`, `€`) stay. No line may hold a line feed.
    """
    if not lines:
        return []
    text = "\n".join(lines).casefold()
    ascii_aside, aside = _aside()
    if not text.isascii():
        # First, since NFKC makes a combining mark of an accent that stands for an apostrophe.
        text = aside.sub("", text)
        text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
        text = aside.sub("", text)
    return text.encode().translate(None, ascii_aside).split(b"\n")


@cache
def _aside() -> tuple[bytes, Pattern[str]]:
    """The characters that normal forms leave out, line feeds excepted: those of ASCII, and a pattern of the others.

    Those beyond U+FFFF, nearly all of historic scripts, stay: they would make the pattern 20 times as slow.
    """
    characters = (character for character in map(chr, range(0x10000)) if character != "\n")
    aside = "".join(one for one in characters if unicodedata.category(one).startswith(_ASIDE_CATEGORIES))
    ascii_aside = "".join(character for character in aside if character.isascii())
    return ascii_aside.encode(), re.compile(f"[{re.escape(aside.removeprefix(ascii_aside))}]+")


def searched_sets(recipe: Recipe) -> list[SearchedSet]:
    """The test sets and validation corpora of a recipe; raises UserError when one cannot be read."""
    sets = [SearchedSet(f"data.test.{name}", test.src, test.refs) for name, test in test_sets(recipe).items()]
    for place, corpus in enumerate(recipe.data.valid):
        pairs = list(read_pairs(corpus, ReadOptions.from_recipe(recipe)))
        sets.append(SearchedSet(f"data.valid.{place}", [src for src, _ in pairs], [[ref for _, ref in pairs]]))
    return sets


def search_training_text(recipe: Recipe, finder: LeakFinder) -> None:
    """Show the finder all training text of a recipe; raises UserError for what cannot be read, or where it is empty."""
    is_empty = True
    with progress("searching the training text", None, "pairs") as bar:
        for _, chunk in read_chunks(recipe.data.train, ReadOptions.from_recipe(recipe), finder.add):
            is_empty = is_empty and not chunk
            bar.advance(len(chunk))
    if is_empty:
        raise UserError("data.train has no sentences; it must have some to search; correct data.train")


def describe_place(leak: Leak, data: DataRecipe) -> str:
    """Where a leak is in the training text: the file of its side and the line, as far as a corpus has such."""
    corpus, number = data.train[leak.corpus], leak.number
    files = input_files(corpus, data.root)
    match corpus:
        case TextCorpus():
            return f"{files[leak.part == 'reference']}:{number}"
        case TsvCorpus():
            return f"{files[0]}:{number + corpus.has_header}"
        case SgmCorpus():
            return f"{files[leak.part == 'reference' and len(files) > 1]}, segment {number}"
        case TreesCorpus():
            return f"{files[0]}, tree {number}"
        case ParquetCorpus() | JsonLinesCorpus():
            return f"{files[0]}, record {number}"
        case HuggingFaceCorpus():
            return f"{corpus.dataset} {corpus.split}, record {number}"
        case SacrebleuCorpus():
            return f"{corpus.test_set}:{number}"
        case ToyCorpus():
            return f"toy {corpus.split}, pair {number}"
        case _:
            assert_never(corpus)
