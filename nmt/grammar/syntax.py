"""Abstract syntax trees, without word order or inflection.

`english.english` and `german.german` realize the same tree, so their outputs are translations of each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from nmt.grammar.entries import Adjective, Case, Fixed, Gender, Modal, Noun, Person, Verb

Tense = Literal["present", "progressive", "past", "perfect", "future"]
"""English tenses. German uses the present for the first two and the perfect for the next two; for `past`, some
verbs use the preterite."""
Slot = Literal["subject", "object", "place", "time"]
"""Constituents that can be fronted in a question, a relative clause, or (time) a statement."""
Word = Literal["I", "you", "he", "she", "we", "they", "who", "what"]
Conjunction = Literal["because", "although", "when", "if", "while", "before", "that", "whether"]

_PERSONS: dict[Word, Person] = {"I": "1s", "you": "2s", "we": "1p", "they": "3p"}


class Pronoun(NamedTuple):
    """A personal or interrogative pronoun."""

    word: Word
    noun: None = None

    @property
    def person(self) -> Person:
        """Return person and number for verb agreement."""
        return _PERSONS.get(self.word, "3s")


class Name(NamedTuple):
    """A first name."""

    name: str
    noun: None = None
    person: Person = "3s"


class Relative(NamedTuple):
    """A relative pronoun and the noun that it refers to."""

    noun: Noun
    plural: bool

    @property
    def gender(self) -> Gender:
        """Return the gender for German agreement."""
        return "p" if self.plural else self.noun.gender

    @property
    def person(self) -> Person:
        """Return person and number for verb agreement."""
        return "3p" if self.plural else "3s"


class It(NamedTuple):
    """The pronoun `it` and the noun of the previous sentence that it refers to."""

    noun: Noun
    person: Person = "3s"


class NounPhrase(NamedTuple):
    """A noun with its determiner and modifiers.

    determiner: English; empty for none, or if there is a number or an owner
    modifier:   first part of a compound
    """

    noun: Noun
    determiner: str = "the"
    plural: bool = False
    modifier: Fixed | None = None
    adjective: Adjective | None = None
    number: int = 0
    owner: NounPhrase | Name | None = None
    relative: Clause | None = None

    @property
    def gender(self) -> Gender:
        """Return the gender for German agreement."""
        return "p" if self.plural else self.noun.gender

    @property
    def person(self) -> Person:
        """Return person and number for verb agreement."""
        return "3p" if self.plural else "3s"


class Coordination(NamedTuple):
    """Two phrases coordinated by `and`."""

    first: NounPhrase | Name
    second: NounPhrase
    person: Person = "3p"

    @property
    def noun(self) -> Noun:
        """Return the noun that verbs select."""
        return self.second.noun


Phrase = NounPhrase | Pronoun | Name | Coordination | Relative | It


class Prepositional(NamedTuple):
    """A phrase with its preposition in both languages and its German case."""

    en: str
    de: str
    case: Case
    phrase: NounPhrase | Name


class Subordinate(NamedTuple):
    """A subordinate clause, or without a conjunction an infinitive with the subject of the main clause.

    first: whether it precedes the main clause
    """

    conjunction: Conjunction | None
    clause: Clause
    first: bool = False


@dataclass(slots=True)
class Clause:
    """A clause: a verb with its arguments and adjuncts.

    receiver:   indirect object
    company:    companion, or agent of a passive clause
    front:      fronted constituent
    complement: clause or infinitive that the verb governs
    adjunct:    adverbial clause
    """

    subject: Phrase
    verb: Verb
    tense: Tense = "present"
    modal: Modal | None = None
    negated: bool = False
    passive: bool = False
    object: Phrase | None = None
    receiver: Phrase | None = None
    predicate: Adjective | None = None
    frequency: Fixed | None = None
    manner: Fixed | None = None
    company: Prepositional | None = None
    place: Prepositional | Fixed | None = None
    time: Fixed | None = None
    front: Slot | None = None
    complement: Subordinate | None = None
    adjunct: Subordinate | None = None


class Sentence(NamedTuple):
    """One main clause, or two coordinated by `and` or `but`; a question has one."""

    clause: Clause
    question: bool = False
    coordinator: Literal["", "and", "but"] = ""
    second: Clause | None = None
