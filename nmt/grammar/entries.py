"""The kinds of dictionary entries, and the grammatical categories that they and the grammar share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Column = Literal["m", "f", "n", "p"]
"""A column of the German tables of endings: the three genders, and the plural, which has none."""
Case = Literal["nom", "acc", "dat", "gen"]
Person = Literal["1s", "2s", "3s", "1p", "3p"]
"""Person and number of a subject; English `you` is always one friend, German `du`."""
Frame = Literal[
    "bare",  # no object
    "object",  # an object: accusative, dative or with a fixed preposition, as the verb demands
    "give",  # an object and, in the dative, a receiver
    "motion",  # a place to go to
    "position",  # a place to be at
    "placement",  # an object and a place to put it
    "amount",  # a number of euros
    "be",  # an adjective
    "that",  # a clause with that
    "whether",  # a clause with whether
    "to",  # an infinitive
]
Trait = Literal[
    "stative",  # a state: no progressive, modal or passive
    "passive",  # may be passive
    "manner",  # may be done slowly, quietly, ...
    "far",  # leads to towns and countries
    "no-pronoun",  # English puts a pronoun before the particle: pick him up
]


@dataclass(frozen=True, slots=True, eq=False)
class Noun:
    """A noun; its plurals are empty if it cannot be counted.

    column: its gender
    weak: whether its German ends in (e)n in every case but the nominative
    kind: what it names; verbs and adjectives choose their nouns by kind
    """

    en: str
    en_plural: str
    column: Column
    weak: bool
    de: str
    de_plural: str
    kind: str

    @property
    def human(self) -> bool:
        """Whether the noun names a person: who rather than that, and she rather than it."""
        return self.kind in ("kin", "folk")

    @property
    def alive(self) -> bool:
        """Whether the noun names a person or an animal."""
        return self.kind in ("kin", "folk", "pet", "wild")

    @property
    def owned(self) -> bool:
        """Whether one may call it mine."""
        return self.kind not in ("folk", "wild", "building", "shore", "ground")


@dataclass(frozen=True, slots=True, eq=False)
class Verb:
    """A verb with its principal parts in both languages, and what it may be said of.

    en_preposition, de_preposition: those of its object, whose case is `de_case`
    de: the infinitive without its separable `prefix`
    changed_stem: the stem of du and er (lies in liest) if it differs
    """

    en: str
    en_past: str
    en_participle: str
    en_ing: str
    en_preposition: str
    de: str
    prefix: str
    changed_stem: str
    participle: str
    auxiliary: str
    reflexive: bool
    de_preposition: str
    de_case: Case
    frames: tuple[Frame, ...]
    traits: frozenset[Trait]
    subjects: tuple[Noun, ...]
    objects: tuple[Noun, ...]

    @property
    def infinitive(self) -> str:
        """The German infinitive with its prefix."""
        return self.prefix + self.de


class Modal(NamedTuple):
    """A modal verb; `do` marks those that need do in English: does not want to."""

    en: str
    en_third: str
    en_past: str
    do: bool
    de: tuple[str, str, str, str]
    """er kann, du kannst, sie können, er konnte"""


@dataclass(frozen=True, slots=True, eq=False)
class Adjective:
    """An adjective, and the nouns that it may describe."""

    en: str
    de: str
    nouns: frozenset[Noun]


class Fixed(NamedTuple):
    """Words that never inflect, such as an adverb or the first part of a compound; `label` says what is difficult."""

    en: str
    de: str
    label: str = ""
