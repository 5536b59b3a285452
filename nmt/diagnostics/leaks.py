"""Leaks: test and validation sentences that occur in the training text.

An occurrence is exact if the lines are equal except for trailing white space. It is near if `normal_forms` are equal:
only case, punctuation, spacing or the Unicode form differ. Sentences that differ in a word do not match.

The search reads the unmodified training text, because cleaning drops and changes lines. Memory holds the searched
sentences and one chunk of training text. Preparation reads the training text anyway, so it feeds the search, and the
run records the leaks in `leaks.json`. If the prepared text is up to date but the record is not, the training text is
read only for the search.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from nmt.data.corpus import ReadOptions, pair_location, read_chunks, read_pairs
from nmt.data.fingerprint import text_identity
from nmt.data.store import Side
from nmt.data.test_sets import test_sets
from nmt.errors import UserError
from nmt.logs import counted, progress, say, warn
from nmt.recipe import DataRecipe, Recipe
from nmt.storage.run_folder import read_json_object
from nmt.storage.sealed import write_file
from nmt.text.clean import Pair
from nmt.text.normal_forms import normal_forms

Part = Literal["source", "reference", "both"]
Kind = Literal["exact", "near"]

LEAKS_FILE = "leaks.json"

# Increment when the same text gives different leaks.
_FORMAT = 2


@dataclass(frozen=True)
class SearchedSet:
    """A test set or validation corpus to search for, named by its option (`data.test.news`)."""

    name: str
    src: list[str]
    refs: list[list[str]]

    def text(self, leak: Leak) -> str:
        """Return the leaked sentence: its source, or the matching reference."""
        if leak.part != "reference":
            return self.src[leak.line - 1]
        refs = [stream[leak.line - 1] for stream in self.refs]
        if leak.kind == "exact":
            return next(ref for ref in refs if ref.rstrip() == leak.found.rstrip())
        *forms, leaked_form = normal_forms([*refs, leak.found])
        return refs[forms.index(leaked_form)]


@dataclass(frozen=True)
class Leak:
    """An occurrence of a test sentence in the training text.

    line:   number of the sentence in its set, from 1
    part:   side that occurs; both means in one training pair
    kind:   exact if there is any exact occurrence
    corpus: index in `data.train` of the first occurrence of this kind
    number: number of that training pair in its corpus, from 1
    times:  number of training pairs with an occurrence of any kind
    found:  the training line; if `part` is both, the source line
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
    """Numbers of sentences with an exact match, and with only a near match."""

    exact: int
    near: int


@dataclass(frozen=True)
class LeakCounts:
    """Numbers of sentences of a set that occur in the training text.

    both: both sides occur in one training pair
    any:  any of source, reference and both
    """

    sentences: int
    source: LeakCount
    reference: LeakCount
    both: LeakCount
    any: LeakCount

    @property
    def clean(self) -> int:
        """Number of sentences without an occurrence of either side."""
        return self.sentences - self.any.exact - self.any.near


@dataclass(frozen=True)
class SetLeaks:
    """The leaks of a set.

    sentences: number of sentences of the set
    leaks:     in the order of the sentences; a leak of one side is omitted if both sides leak with the same or a closer
               kind of match
    """

    name: str
    sentences: int
    leaks: tuple[Leak, ...]

    def counts(self) -> LeakCounts:
        """Count leaked sentences by part and kind."""
        source = self._count("source", "both")
        reference = self._count("reference", "both")
        any_part = self._count("source", "reference", "both")
        return LeakCounts(self.sentences, source, reference, both=self._count("both"), any=any_part)

    def clean(self) -> list[int]:
        """Return the indices, from 0, of the sentences without an occurrence of either side."""
        leaking = {leak.line for leak in self.leaks}
        return [index for index in range(self.sentences) if index + 1 not in leaking]

    def _count(self, *parts: Part) -> LeakCount:
        exact = {leak.line for leak in self.leaks if leak.part in parts and leak.kind == "exact"}
        near = {leak.line for leak in self.leaks if leak.part in parts} - exact
        return LeakCount(len(exact), len(near))


class LeakFinder:
    """Searches training text for the sentences of `sets`; `add` receives the text in chunks."""

    def __init__(self, sets: Sequence[SearchedSet]) -> None:
        self.sets = tuple(sets)
        self.num_read: Counter[int] = Counter()
        """Training pairs searched so far, by corpus index."""
        # Equal sentences, such as short replies, are searched once: index by source and references.
        indices: dict[tuple[str, ...], int] = {}
        self._sentences: list[list[int]] = []  # of each set
        for searched in self.sets:
            rows = zip(searched.src, *searched.refs, strict=True)
            self._sentences.append([indices.setdefault(row, len(indices)) for row in rows])
        self._src = _Side([[src] for src, *_ in indices])
        self._ref = _Side([refs for _, *refs in indices])
        self._occurrences: dict[Part, defaultdict[int, _Occurrences]] = {
            part: defaultdict(_Occurrences) for part in ("source", "reference", "both")
        }

    def add(self, corpus: int, pairs: Sequence[Pair]) -> None:
        """Search the next pairs of the training corpus with index `corpus`."""
        first = self.num_read[corpus] + 1
        self.num_read[corpus] += len(pairs)
        src_lines = [src for src, _ in pairs]
        tgt_lines = [tgt for _, tgt in pairs]
        src, ref = self._src.matches(src_lines), self._ref.matches(tgt_lines)
        both = {match: exact and ref[match] for match, exact in src.items() if match in ref}
        matches: dict[Part, dict[tuple[int, int], bool]] = {"source": src, "reference": ref, "both": both}
        for part, part_matches in matches.items():
            lines = tgt_lines if part == "reference" else src_lines
            for (offset, sentence), exact in part_matches.items():
                kind: Kind = "exact" if exact else "near"
                self._occurrences[part][sentence].add(kind, (corpus, first + offset, lines[offset]))

    def leaks(self) -> list[SetLeaks]:
        """Return the leaks of each set."""
        result = []
        for searched, sentences in zip(self.sets, self._sentences, strict=True):
            leaks: list[Leak] = []
            for line, sentence in enumerate(sentences, start=1):
                leaks += self._sentence_leaks(sentence, line)
            result.append(SetLeaks(searched.name, len(sentences), tuple(leaks)))
        return result

    def _sentence_leaks(self, sentence: int, line: int) -> Iterator[Leak]:
        both = self._occurrences["both"].get(sentence)
        for part, by_sentence in self._occurrences.items():
            occurrences = by_sentence.get(sentence)
            if occurrences is None:
                continue
            kind = occurrences.kind
            if part != "both" and both is not None and both.kind in ("exact", kind):
                continue
            corpus, number, text = occurrences.first[kind]
            yield Leak(line, part, kind, corpus, number, occurrences.times, text)


@dataclass
class _Occurrences:
    """Occurrences of a sentence: the first of each kind, as corpus, number and training line, and their count."""

    first: dict[Kind, tuple[int, int, str]] = field(default_factory=dict)
    times: int = 0

    @property
    def kind(self) -> Kind:
        return "exact" if "exact" in self.first else "near"

    def add(self, kind: Kind, location: tuple[int, int, str]) -> None:
        self.first.setdefault(kind, location)
        self.times += 1


class _Side:
    """The searched sentences of one side, indexed by normal form."""

    def __init__(self, variants: Sequence[Sequence[str]]) -> None:
        """variants: the texts of each sentence, one per reference"""
        self._lines = [{line.rstrip() for line in lines} - {""} for lines in variants]  # empty lines never match
        self._sentences_of: dict[bytes, list[int]] = {}
        numbered = [(sentence, line) for sentence, lines in enumerate(self._lines) for line in lines]
        for (sentence, _), form in zip(numbered, normal_forms([line for _, line in numbered]), strict=True):
            sentences = self._sentences_of.setdefault(form, [])
            if not sentences or sentences[-1] != sentence:
                sentences.append(sentence)

    def matches(self, lines: Sequence[str]) -> dict[tuple[int, int], bool]:
        """Return the matches, (index in `lines`, sentence) -> whether the match is exact."""
        matches = {}
        for index, form in enumerate(normal_forms(lines)):
            for sentence in self._sentences_of.get(form, ()):
                exact = lines[index].rstrip() in self._lines[sentence]
                if exact or form:  # "?" and "!" both have an empty form, but do not match
                    matches[index, sentence] = exact
        return matches


def searched_sets(recipe: Recipe) -> list[SearchedSet]:
    """Read the test sets and validation corpora of a recipe; raise UserError if one is unreadable."""
    sets = [SearchedSet(f"data.test.{name}", test.src, test.refs) for name, test in test_sets(recipe).items()]
    for index, corpus in enumerate(recipe.data.valid):
        pairs = list(read_pairs(corpus, ReadOptions.from_recipe(recipe)))
        sets.append(SearchedSet(f"data.valid.{index}", [src for src, _ in pairs], [[ref for _, ref in pairs]]))
    return sets


def search_training_text(recipe: Recipe, finder: LeakFinder) -> None:
    """Search all training text of a recipe; raise UserError if it is unreadable or empty."""
    with progress("searching the training text", None, "pairs") as bar:
        for _, chunk in read_chunks(recipe.data.train, ReadOptions.from_recipe(recipe), finder.add):
            bar.advance(len(chunk))
    if not finder.num_read:
        raise UserError("data.train has no sentences; it must have at least one; correct data.train")


def describe_location(leak: Leak, data: DataRecipe) -> str:
    """Return the location of a leak in the training text, such as file and line."""
    side: Side = "tgt" if leak.part == "reference" else "src"
    return pair_location(data.train[leak.corpus], data.root, leak.number, side)


# --- Record of a run --------------------------------------------------------------------------------------------------


def begin_search(recipe: Recipe) -> LeakFinder | UserError:
    """Return a finder for the test and validation sentences, or the error if they are unreadable."""
    try:
        return LeakFinder(searched_sets(recipe))
    except UserError as error:
        return error


def record_leaks(recipe: Recipe, prepare_report: dict[str, Any], finder: LeakFinder | UserError) -> None:
    """Write the leaks to the run directory, unless the record is up to date.

    Searches the training text if the finder has not read it. If text is unreadable, warns and removes the record.
    """
    path = recipe.directory / LEAKS_FILE
    if isinstance(finder, UserError):
        _warn(f"{finder}; `nmt run` needs all test sets", path)
        return
    key = _digest([_FORMAT, text_identity(prepare_report, recipe), *map(asdict, finder.sets)])
    if not finder.num_read:
        known = read_json_object(path)
        digest = _digest(known.get("sets"))
        if known.get("key") == key and known.get("sha256", digest) == digest:  # an early version recorded no digest
            return
        try:
            search_training_text(recipe, finder)
        except UserError as error:
            _warn(str(error), path)
            return
    leaks = finder.leaks()
    for set_leaks in leaks:
        if set_leaks.leaks:
            count = set_leaks.counts().any
            say(
                f"{set_leaks.name}: exact matches in the training text for {count.exact:,} of "
                f"{counted(set_leaks.sentences, 'sentence')}, near matches for {count.near:,}; `nmt leaks` lists them"
            )
    sets = [asdict(set_leaks) for set_leaks in leaks]
    record = {"key": key, "sha256": _digest(sets), "sets": sets}
    write_file(path, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())


def read_leaks(run_dir: Path) -> dict[str, SetLeaks]:
    """Return the recorded leaks of a run by set name; empty if there is no record."""
    sets = read_json_object(run_dir / LEAKS_FILE).get("sets", [])
    return {
        entry["name"]: SetLeaks(entry["name"], entry["sentences"], tuple(Leak(**leak) for leak in entry["leaks"]))
        for entry in sets
    }


def _digest(tree: object) -> str:
    """Return the SHA-256 of a JSON value."""
    return hashlib.sha256(json.dumps(tree).encode()).hexdigest()


def _warn(error: str, record: Path) -> None:
    """Warn that the search is skipped, and remove the record of an earlier search, whose text may differ."""
    removed = f"; removing {record}, the result of an earlier search" if record.exists() else ""
    warn(f"skipping the search for test sentences in the training text: {error}{removed}")
    record.unlink(missing_ok=True)
