"""The abstract syntax: a sentence before it is English or German.

It knows neither word order nor endings. `english.english` and `german.german` realize the same tree, therefore their
sentences are translations of each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from nmt.grammar.entries import Adjective, Case, Column, Fixed, Modal, Noun, Person, Verb

Tense = Literal["present", "progressive", "past", "perfect", "future"]
"""The English tenses. German has one present for the first two and uses its perfect for the next two."""
Slot = Literal["subject", "object", "place", "time"]
"""What may stand in front of a question, a relative clause, or (time) a statement."""
Word = Literal["I", "you", "he", "she", "we", "they", "who", "what"]
Conjunction = Literal["because", "although", "when", "if", "while", "before", "that", "whether"]

_PERSONS: dict[Word, Person] = {"I": "1s", "you": "2s", "we": "1p", "they": "3p"}


class Pronoun(NamedTuple):
    """A personal pronoun, or who or what of a question."""

    word: Word
    noun: None = None

    @property
    def person(self) -> Person:
        """Person and number that the verb agrees with."""
        return _PERSONS.get(self.word, "3s")


class Name(NamedTuple):
    """A first name."""

    name: str
    noun: None = None
    person: Person = "3s"


class Relative(NamedTuple):
    """A relative pronoun, which stands for a noun: who, whom, that, which."""

    noun: Noun
    plural: bool

    @property
    def column(self) -> Column:
        """The column of the German tables."""
        return "p" if self.plural else self.noun.column

    @property
    def person(self) -> Person:
        """Person and number that the verb agrees with."""
        return "3p" if self.plural else "3s"


class NounPhrase(NamedTuple):
    """A noun with all that belongs to it.

    The determiner is English: empty for none, and if a number or an owner takes its place. `modifier` is the first part
    of a compound.
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
    def column(self) -> Column:
        """The column of the German tables."""
        return "p" if self.plural else self.noun.column

    @property
    def person(self) -> Person:
        """Person and number that the verb agrees with."""
        return "3p" if self.plural else "3s"


class Coordination(NamedTuple):
    """Two phrases joined by and; `noun` is that of the second."""

    first: NounPhrase | Name
    second: NounPhrase
    person: Person = "3p"

    @property
    def noun(self) -> Noun:
        """The noun that decides what may be said of both."""
        return self.second.noun


Phrase = NounPhrase | Pronoun | Name | Coordination | Relative


class Prepositional(NamedTuple):
    """A phrase with its preposition in both languages, and the case after the German one."""

    en: str
    de: str
    case: Case
    phrase: NounPhrase | Name


class Subordinate(NamedTuple):
    """A subordinate clause; `first` puts it in front.

    Without a conjunction, it is an infinitive, whose clause has the subject of its governor.
    """

    conjunction: Conjunction | None
    clause: Clause
    first: bool = False


@dataclass(slots=True)
class Clause:
    """A clause: who does what to whom, and all the circumstances.

    receiver: who is given the object
    company: with whom, or by whom in a passive clause
    front: the slot that precedes everything else
    complement: what is said, asked or tried
    adjunct: when, why or under what condition
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
    """One main clause or two, joined by and or but; a question has one."""

    clause: Clause
    question: bool = False
    coordinator: Literal["", "and", "but"] = ""
    second: Clause | None = None
