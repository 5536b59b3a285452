"""The kinds of dictionary entries, and the names of the grammatical categories that they and the grammar share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Gender = Literal["m", "f", "n"]
Column = Literal["m", "f", "n", "p"]
"""A column of the article and ending tables: the three genders, and the plural, which has no gender in German."""
Case = Literal["nom", "acc", "dat", "gen"]
Person = Literal["1s", "2s", "3s", "1p", "3p"]
"""Person and number of a subject; English `you` is always one friend, German `du`."""
Kind = Literal[
    "person",
    "animal",
    "food",
    "drink",
    "text",
    "clothes",
    "vehicle",
    "furniture",
    "object",
    "place",
    "thought",
    "event",
]
"""What a noun names; verbs and adjectives choose their nouns by it, so that sentences make sense."""
Frame = Literal[
    "bare",  # no object
    "acc",  # accusative object
    "dat",  # dative object
    "give",  # dative and accusative object
    "prep",  # object with a fixed preposition
    "motion",  # a place to go to
    "position",  # a place to be at: two-way preposition with dative
    "placement",  # accusative object and a place to put it: two-way preposition with accusative
    "that",  # a clause with that
    "whether",  # a clause with whether
    "to",  # an infinitive
    "weather",  # it rains
]
Trait = Literal[
    "stative",  # a state: no progressive, no modal, no command
    "manner",  # may be done slowly, quietly, ...
    "private",  # done without company
    "benefit",  # may be done for somebody
    "far",  # leads to towns and countries
    "vehicle",  # may be done by bus
    "into",  # leads into buildings
    "sights",  # leads to lakes, mountains and the like alone
    "no-passive",
    "no-pronoun",  # English would have to put a pronoun before the particle: pick him up
    "to-only",  # the English recipient needs `to`: explain it to her
]
CombinationKind = Literal["subject", "object", "adjective", "number", "date", "clock"]
Combination = tuple[CombinationKind, str, str]
"""Verb and subject; verb and object; adjective and noun; a number and nothing; day and month; hour and weekday."""


@dataclass(frozen=True, slots=True, eq=False)
class Noun:
    """A noun; `en_plural` and `de_plural` are empty for what cannot be counted.

    `owned` tells whether one may call it mine; `preposition` is the pair of English and German prepositions that says
    where one is when one is at that place.
    """

    en: str
    en_plural: str
    gender: Gender
    de: str
    de_genitive: str
    de_plural: str
    kind: Kind
    owned: bool
    preposition: tuple[str, str]

    @property
    def countable(self) -> bool:
        """Whether the noun has a plural and may follow `a`."""
        return bool(self.de_plural)


@dataclass(frozen=True, slots=True, eq=False)
class Verb:
    """A verb with its principal parts in both languages and the sentences it makes.

    `de` is the infinitive without its separable `prefix`; `present_stem` is the changed stem of du and er (lies in
    liest), empty for none. `en_preposition` and `de_preposition` belong to the object; `de_case` is the case after the
    latter.
    """

    en: str
    en_past: str
    en_participle: str
    en_ing: str
    en_preposition: str
    de: str
    prefix: str
    present_stem: str
    participle: str
    auxiliary: Literal["haben", "sein"]
    reflexive: bool
    de_preposition: str
    de_case: Case
    frames: frozenset[Frame]
    traits: frozenset[Trait]
    subjects: tuple[Noun, ...]
    objects: tuple[Noun, ...]

    @property
    def infinitive(self) -> str:
        """The German infinitive with its prefix; names the verb."""
        return self.prefix + self.de

    @property
    def past_is_base(self) -> bool:
        """Whether `they cut` may be present and past; such a past is never used where nothing tells them apart."""
        return self.en_past == self.en


@dataclass(frozen=True, slots=True, eq=False)
class Modal:
    """A modal verb; `full_verb` marks those that need `do` in English (`does not want to`)."""

    en_present: str
    en_third: str
    en_past: str
    full_verb: bool
    de_singular: str
    de_second: str
    de_plural: str
    de_past: str
    negatable: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Adjective:
    """An adjective with its degrees, empty where there are none, and the nouns that it may describe.

    `passing` marks qualities that come and go, so that something may often or now have them.
    """

    en: str
    en_comparative: str
    en_superlative: str
    de: str
    de_comparative: str
    de_superlative: str
    nouns: frozenset[Noun]
    passing: bool

    @property
    def gradable(self) -> bool:
        """Whether the adjective has a comparative."""
        return bool(self.de_comparative)


@dataclass(frozen=True, slots=True)
class Adverbial:
    """An expression that never inflects: its words in both languages, and the phenomena it shows.

    `combination` is what its choice may hold out of training: two words of it that go together.
    """

    en: str
    de: str
    phenomena: tuple[str, ...] = ()
    combination: Combination | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Preposition:
    """A preposition; a two-way one takes the dative for a location and the accusative for a direction."""

    en: str
    de: str
    case: Case = "dat"
    two_way: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A unit of measure, which stays as it is in every sentence."""

    en: str
    de: str
