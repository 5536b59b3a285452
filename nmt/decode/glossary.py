"""Glossaries: source terms and their translations.

A term matches where its words occur in a line. Words are runs of letters, digits and marks, single punctuation marks,
and in scripts without spaces, single characters (`nmt.text.words`). The longest matches are selected first, and matches
do not overlap. With glossary mode `constrain`, search requires one of the forms of each matching term
(`nmt.search.required`) and chooses the most probable one. With `annotate`, the first form is written into the source.

A glossary is a dictionary from sequences of words to terms. Its cost per line does not depend on the number of terms.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self

from nmt.errors import UserError
from nmt.logs import counted, warn
from nmt.text.clean import normalize
from nmt.text.lines import read_lines
from nmt.text.words import Word, find_words, split_words

_CASE = {"": False, "no": False, "yes": True}
_COLUMNS = "source term, translation, and optionally yes (case-sensitive) or no, and a note"

# Column names, and language codes such as "en" and "de".
_COLUMN_NAMES = {"source", "source term", "source_term", "src", "term", "target", "target term", "target_term", "tgt"}
_COLUMN_NAMES |= {"translation", "english", "german", "french", "spanish", "italian", "russian", "chinese", "japanese"}
_CODE = re.compile("[a-z]{2}")

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")

Span = tuple[int, int]

Required = str | Sequence[str]
"""A phrase that a translation must contain, or alternatives; any one of them suffices."""


@dataclass(frozen=True)
class Term:
    """A source term and its translations.

    forms:    alternative translations, such as inflected forms; one is required
    is_cased: whether matching the source term is case-sensitive
    """

    source: str
    forms: tuple[str, ...]
    is_cased: bool = False

    def __post_init__(self) -> None:
        """Raise TypeError if `forms` is a string, whose items are characters, and ValueError if any text is empty."""
        if isinstance(self.forms, str):
            raise TypeError("forms must be a tuple of strings, got str; wrap it in a tuple")
        if not self.forms or not all(map(split_words, (self.source, *self.forms))):
            raise ValueError(f"source and forms of a term must have text, got {self.source!r} and {self.forms!r}")

    @classmethod
    def parse(cls, source: str, target: str | Sequence[str], where: str, *, is_cased: bool = False) -> Self:
        """Return the term for a source term and its translations, separated by `|` if they are one string.

        Raises UserError, which names `where`, if one of them is empty or has a control character.
        """
        forms = target.split("|") if isinstance(target, str) else target
        for text in (source, *forms):
            shown = " ".join(text.split())
            if _CONTROL.search(shown):
                raise UserError(
                    f"{where}: {shown!r} has a control character; terms must have none; remove the character"
                )
        source = normalize(source, "none")
        forms = [normalize(form, "none") for form in forms]
        if not split_words(source):
            raise UserError(f"{where}: the source term is empty; it must have text; fix the term, or remove it")
        if not forms or not all(map(split_words, forms)):
            raise UserError(
                f"{where}: {source!r} has an empty translation; expected text, alternatives separated by |; "
                "fix the term, or remove it"
            )
        return cls(source, tuple(dict.fromkeys(forms)), is_cased)

    @property
    def required(self) -> tuple[str, ...]:
        """The forms that an output may contain.

        Lowercase forms of a case-insensitive term also count if capitalized, as at the beginning of a sentence.
        """
        capitalized = [form[0].upper() + form[1:] for form in self.forms if not self.is_cased and form.islower()]
        return (*self.forms, *capitalized)


class TermUse(NamedTuple):
    """A term of a line, and the form that the translation contains; "" if it contains none."""

    term: Term
    form: str


class Glossary:
    """Terms, and optionally a fallback glossary for the words that none of these terms match."""

    def __init__(self, terms: Iterable[Term], fallback: Glossary | None = None) -> None:
        """Terms with the same source are merged: their forms are alternatives."""
        self._terms: dict[tuple[str, ...], Term] = {}
        self._cased_terms: dict[tuple[str, ...], Term] = {}
        # Numbers of words of the terms with this first word.
        self._lengths: dict[str, set[int]] = defaultdict(set)
        for term in terms:
            if not isinstance(term, Term):
                raise TypeError(f"a glossary needs Term objects, got {type(term).__name__}; use Term(source, (form,))")
            words = tuple(split_words(term.source))
            folded = tuple(map(_folded, words))
            same_case, key = (self._cased_terms, words) if term.is_cased else (self._terms, folded)
            forms = (*same_case[key].forms, *term.forms) if key in same_case else term.forms
            same_case[key] = replace(term, forms=tuple(dict.fromkeys(forms)))
            self._lengths[folded[0]].add(len(words))
        self._fallback = fallback
        self._find_items: Callable[[str], Sequence[Span]] = _no_items

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a TSV file without a header: source term, translations separated by `|`, case (yes or no), note.

        Warns if the first line looks like a header or a term is quoted. Raises UserError, with the line number, for
        a line with missing, extra or invalid columns, or an empty term.
        """
        terms: list[Term] = []
        quoted = ""
        for number, line in enumerate(read_lines(Path(path)), start=1):
            where = f"{path}, line {number}"
            columns = line.removesuffix("\r").split("\t")
            if not line.strip():
                continue
            if not 2 <= len(columns) <= 4:
                has = counted(len(columns), "column")
                raise UserError(f"{where} has {has}; expected {_COLUMNS}; separate them with tabs")
            source, target, *optional = columns
            case = optional[0] if optional else ""
            if case.strip().lower() not in _CASE:
                raise UserError(f"{where}: the third column is {case!r}; expected {_COLUMNS}; fix the line")
            terms.append(Term.parse(source, target, where, is_cased=_CASE[case.strip().lower()]))
            if not quoted and _is_quoted(source) and _is_quoted(target):
                quoted = where
            if len(terms) == 1 and _are_column_names(source, target):
                warn(f"{where} looks like a header, and counts as a term; a glossary has no header; remove the line")
        if not terms:
            raise UserError(f"{path} has no terms; expected {_COLUMNS}, one term per line; add terms")
        if quoted:
            warn(f"{quoted} has quotes, which count as part of the term; only quoted text matches; remove the quotes")
        return cls(terms)

    def outside(self, find_items: Callable[[str], Sequence[Span]]) -> Self:
        """Return a glossary whose terms and forms do not match within the items of a text, such as URLs."""
        other = copy(self)
        other._find_items = find_items
        return other

    def find(self, text: str) -> list[Term]:
        """Return the distinct terms in a line, in order of their first occurrence."""
        return list(dict.fromkeys(term for _, term in self.locate(normalize(text, "none"))))

    def required(self, text: str) -> list[tuple[str, ...]]:
        """Return the alternative forms of each term in a line; a translation must contain one form of each."""
        return [term.required for term in self.find(text)]

    def locate(self, text: str) -> list[tuple[Span, Term]]:
        """Return the terms in a line with their character spans, in order."""
        words = find_words(text)
        matches = sorted(self._matches([word.text for word in words]), key=lambda match: match[0])
        return self._outside_items(text, words, matches)

    def overlapping(self, text: str) -> list[tuple[Span, Term]]:
        """Return the matches in a line that `locate` leaves out, because they overlap others, best first.

        They may be terms of a part of the line.
        """
        words = find_words(text)
        texts = [word.text for word in words]
        selected = set(self._matches(texts))
        return self._outside_items(text, words, [match for match in self._ranked(texts) if match not in selected])

    def _outside_items(
        self, text: str, words: Sequence[Word], matches: Iterable[tuple[Span, Term]]
    ) -> list[tuple[Span, Term]]:
        """Return the matches that are not within an item, with character spans instead of spans of word indices."""
        items = self._find_items(text)  # disjoint, in order
        starts = [item_start for item_start, _ in items]
        located: list[tuple[Span, Term]] = []
        for (first, after), term in matches:
            start, end = words[first].start, words[after - 1].end
            index = bisect_right(starts, start) - 1  # the last item that begins at or before the term
            if index < 0 or items[index][1] < end:
                located.append(((start, end), term))
        return located

    def check(self, text: str, translation: str) -> list[TermUse]:
        """Return the terms of a line and the forms that its translation uses, ignoring case."""
        terms = self.find(text)
        if not terms:
            return []
        without_items = translation
        for start, end in reversed(self._find_items(translation)):
            without_items = f"{without_items[:start]}\ue000{without_items[end:]}"
        all_words, words_outside_items = _delimited(translation), _delimited(without_items)

        def is_used(form: str) -> bool:
            return _delimited(form) in (all_words if self._find_items(form) else words_outside_items)

        return [TermUse(term, next(filter(is_used, term.forms), "")) for term in terms]

    def _matches(self, words: Sequence[str]) -> list[tuple[Span, Term]]:
        """Return the selected matches: the span of word indices, and the term."""
        selected: list[tuple[Span, Term]] = []
        covered = [False] * len(words)
        for (start, end), term in self._ranked(words):
            if not any(covered[start:end]):
                covered[start:end] = [True] * (end - start)
                selected.append(((start, end), term))
        return selected

    def _ranked(self, words: Sequence[str]) -> list[tuple[Span, Term]]:
        """Return all matches, the longest first, then those of the fallback."""
        matches = sorted(self._candidates(words), key=lambda match: match[0][0] - match[0][1])
        return matches if self._fallback is None else matches + self._fallback._ranked(words)

    def _candidates(self, words: Sequence[str]) -> Iterator[tuple[Span, Term]]:
        """Yield all matches, from left to right; a case-sensitive term replaces another with the same words."""
        words = tuple(words)
        folded = tuple(map(_folded, words))
        for start, first_word in enumerate(folded):
            for length in self._lengths.get(first_word, ()):
                end = start + length
                if end > len(words):
                    continue
                term = self._cased_terms.get(words[start:end]) or self._terms.get(folded[start:end])
                if term is not None:
                    yield (start, end), term


def _is_quoted(column: str) -> bool:
    return len(column) > 1 and column[0] == column[-1] == '"'


def forms_of(required: Required) -> Sequence[str]:
    """Return the alternatives of a required phrase."""
    return [required] if isinstance(required, str) else required


def split_forms(phrase: str) -> str | tuple[str, ...]:
    """Return the alternatives of a required phrase that `|` separates; blank ones are ignored."""
    if "|" not in phrase:
        return phrase
    return tuple(form for form in map(str.strip, phrase.split("|")) if form) or phrase


def _are_column_names(*columns: str) -> bool:
    """Return whether the columns of a line are different column names, or language codes with `en` among them."""
    names = {column.strip().lower() for column in columns}
    are_codes = "en" in names and all(map(_CODE.fullmatch, names))
    return len(names) == len(columns) and (are_codes or names <= _COLUMN_NAMES)


def _no_items(_: str) -> Sequence[Span]:
    """Return no items. Not a lambda, because lambdas cannot be pickled."""
    return ()


def _folded(text: str) -> str:
    """Casefold a text. The Turkish capital I with a dot becomes i, although Unicode case folding keeps the dot."""
    return text.casefold().replace("i\u0307", "i")


def _delimited(text: str) -> str:
    """Return the casefolded words of a text, separated by line feeds; `in` then matches whole words."""
    words = split_words(normalize(_folded(text), "none"))  # as the model reads it, for example without soft hyphens
    return "\n" + "\n".join(words) + "\n"
