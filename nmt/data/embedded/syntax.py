"""The abstract syntax: a sentence before it is English or German.

Nothing here knows a word order or an ending. A `Sentence` is realised twice, by `english.english` and `german.german`,
and the two results are translations of each other because they come from one tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from nmt.data.embedded.entries import (
    Adjective,
    Adverbial,
    Column,
    Modal,
    Noun,
    Person,
    Preposition,
    Unit,
    Verb,
)

Degree = Literal["positive", "comparative", "superlative"]
Tense = Literal["present", "progressive", "past", "perfect", "pluperfect", "future"]
"""The English tenses; German has one present for the first two and uses its perfect for the next two."""
Slot = Literal["subject", "direct", "indirect", "oblique", "place", "time"]
"""The places of a clause that may stand in front: of a question, of a relative clause, or (time) of a statement."""
PronounWord = Literal["I", "you", "he", "she", "it", "we", "they"]
Conjunction = Literal[
    "because", "although", "when", "if", "while", "before", "after", "until", "as soon as", "that", "whether"
]
Coordinator = Literal["and", "but"]


_PERSONS: dict[PronounWord, Person] = {
    "I": "1s",
    "you": "2s",
    "he": "3s",
    "she": "3s",
    "it": "3s",
    "we": "1p",
    "they": "3p",
}


class Pronoun(NamedTuple):
    """A personal pronoun; `it` is the it of the weather alone."""

    word: PronounWord

    @property
    def person(self) -> Person:
        """Person and number that a verb must agree with."""
        return _PERSONS[self.word]


class Name(NamedTuple):
    """A first name."""

    name: str

    @property
    def person(self) -> Person:
        """Person and number that a verb must agree with."""
        return "3s"


class RelativePronoun(NamedTuple):
    """who, whom, that, which: agrees with the noun that its clause describes."""

    column: Column
    human: bool

    @property
    def person(self) -> Person:
        """Person and number that a verb must agree with."""
        return "3p" if self.column == "p" else "3s"


class Interrogative(NamedTuple):
    """who or what."""

    human: bool

    @property
    def person(self) -> Person:
        """Person and number that a verb must agree with."""
        return "3s"


class NounPhrase(NamedTuple):
    """A noun with all that belongs to it.

    The determiner is English (`""` for none). With a `number` there is no determiner; a `possessor` takes its place.
    """

    noun: Noun
    determiner: str = "the"
    plural: bool = False
    adjective: Adjective | None = None
    degree: Degree = "positive"
    number: int = 0
    possessor: NounPhrase | Name | RelativePronoun | None = None
    relative: Clause | None = None

    @property
    def column(self) -> Column:
        """The column of the German tables."""
        return "p" if self.plural else self.noun.gender

    @property
    def person(self) -> Person:
        """Person and number that a verb must agree with."""
        return "3p" if self.plural else "3s"


class Coordination(NamedTuple):
    """Two phrases joined by and."""

    first: NounPhrase | Name
    second: NounPhrase | Name

    @property
    def person(self) -> Person:
        """Person and number that a verb must agree with."""
        return "3p"


Phrase = NounPhrase | Pronoun | Name | Coordination | RelativePronoun | Interrogative


class PrepositionalPhrase(NamedTuple):
    """A preposition with its phrase; `direction` puts the accusative after a two-way preposition."""

    preposition: Preposition
    phrase: NounPhrase | Name
    direction: bool = False


class AdjectivePredicate(NamedTuple):
    """is (very) big; with a `standard`: is bigger than, or as big as, the standard."""

    adjective: Adjective
    degree: Literal["positive", "comparative"] = "positive"
    very: bool = False
    standard: NounPhrase | Name | None = None


class Measure(NamedTuple):
    """A number of units; an `adjective` pair follows where the language says one: twelve years old."""

    number: int
    unit: Unit
    adjective: tuple[str, str] | None = None


Predicate = AdjectivePredicate | Measure


class Adjunct(NamedTuple):
    """A subordinate clause that says when, why or under what condition; `first` puts it in front."""

    conjunction: Conjunction
    clause: Clause
    first: bool = False


class Complement(NamedTuple):
    """What is said, asked or tried.

    With a conjunction: that or whether; without one: an indirect question, if the clause has something in front, or
    else an infinitive, whose clause repeats the subject of its governor so that reflexive pronouns agree. `purpose`
    makes the infinitive say what for.
    """

    clause: Clause
    conjunction: Conjunction | None = None
    purpose: bool = False


@dataclass(slots=True)
class Clause:
    """A clause: who does what to whom, and all the circumstances.

    `direct` stands in the accusative, `indirect` in the dative, `oblique` after the verb's own preposition. `front` is
    the slot that is put before everything else. In a passive clause `subject` is who suffers it, `agent` who does it.
    """

    subject: Phrase
    verb: Verb
    tense: Tense = "present"
    modal: Modal | None = None
    negated: bool = False
    passive: bool = False
    agent: NounPhrase | Name | None = None
    direct: Phrase | None = None
    indirect: Phrase | None = None
    oblique: Phrase | None = None
    double_object: bool = False
    predicate: Predicate | None = None
    frequency: Adverbial | None = None
    manner: Adverbial | None = None
    companion: PrepositionalPhrase | Adverbial | None = None
    place: PrepositionalPhrase | Adverbial | None = None
    time: Adverbial | None = None
    front: Slot | None = None
    complement: Complement | None = None
    adjunct: Adjunct | None = None


class Sentence(NamedTuple):
    """One or two main clauses.

    A command has `you` as its subject, which is not said; `please` softens it.
    """

    kind: Literal["statement", "question", "command"]
    clause: Clause
    coordinator: Coordinator | None = None
    second: Clause | None = None
    please: bool = False
