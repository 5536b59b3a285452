"""Lexicon entries and grammatical categories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Gender = Literal["m", "f", "n", "p"]
"""German gender; p is the plural, which does not distinguish genders."""
Case = Literal["nom", "acc", "dat", "gen"]
Person = Literal["1s", "2s", "3s", "1p", "3p"]
"""Person and number of a subject; English `you` is always the German singular `du`."""
Frame = Literal[
    "bare",  # no object
    "object",  # an object in the case or with the preposition that the verb governs
    "give",  # a direct object and an indirect one in the dative
    "motion",  # a destination
    "position",  # a location
    "placement",  # an object and its destination
    "amount",  # a number of euros
    "be",  # a predicative adjective
    "that",  # a that-clause
    "whether",  # a whether-clause
    "to",  # an infinitive
]
Trait = Literal[
    "stative",  # a state: no progressive, modal or passive
    "passive",  # has a passive
    "manner",  # allows adverbs of manner
    "far",  # allows towns and countries as destinations
    "no-pronoun",  # no pronoun as object: English would move it before the particle (pick him up)
]


@dataclass(frozen=True, slots=True, eq=False)
class Noun:
    """A noun; the plurals of mass nouns are empty.

    weak: German weak declension: -(e)n in all cases except the nominative singular
    kind: semantic class, by which verbs and adjectives select nouns
    """

    en: str
    en_plural: str
    gender: Gender
    weak: bool
    de: str
    de_plural: str
    kind: str

    @property
    def is_human(self) -> bool:
        """Return whether the noun denotes a person and takes the relative pronoun who, not that."""
        return self.kind in ("kin", "folk")

    @property
    def is_animate(self) -> bool:
        """Return whether the noun denotes a person or an animal."""
        return self.kind in ("kin", "folk", "pet", "wild")

    @property
    def can_be_owned(self) -> bool:
        """Return whether the noun allows possessives."""
        return self.kind not in ("folk", "wild", "building", "shore", "ground")


@dataclass(frozen=True, slots=True, eq=False)
class Verb:
    """A verb: principal parts in both languages, government, frames and selectional restrictions.

    en_preposition, de_preposition, de_case: of its object
    de: infinitive without the separable `prefix`
    changed_stem: stem of the second and third person singular (liest) if it differs, else empty
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
        """Return the German infinitive with its prefix."""
        return self.prefix + self.de


class Modal(NamedTuple):
    """A modal verb; `do` marks those with do-support in English (does not want to)."""

    en: str
    en_third: str
    en_past: str
    do: bool
    de: tuple[str, str, str, str]
    """German forms: er kann, du kannst, sie können, er konnte."""


@dataclass(frozen=True, slots=True, eq=False)
class Adjective:
    """An adjective and the nouns that it may modify."""

    en: str
    de: str
    nouns: frozenset[Noun]


class Fixed(NamedTuple):
    """Uninflected words, such as an adverb or the first part of a compound; `label` names a phenomenon."""

    en: str
    de: str
    label: str = ""
