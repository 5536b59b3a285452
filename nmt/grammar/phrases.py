"""Sampling of phrases: names, pronouns, noun phrases, times and places."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal, TypeVar

from nmt.grammar.entries import Case, Fixed, Noun, Verb
from nmt.grammar.modifiers import (
    ADJECTIVES,
    FUTURE_TIMES,
    HABITS,
    HERE_AND_THERE,
    HOME,
    MONTHS,
    NAMES,
    PAST_TIMES,
    PRESENT_TIMES,
    TOWNS,
    WEEKDAYS,
)
from nmt.grammar.nouns import COMPOUNDS, NOUNS, nouns
from nmt.grammar.numbers import at_hour, on_date
from nmt.grammar.splits import Split, digest, is_held_out
from nmt.grammar.syntax import Coordination, Name, NounPhrase, Phrase, Prepositional, Pronoun

T = TypeVar("T")

Period = Literal["past", "present", "habit", "future"]
"""Time that a clause refers to; present and habit are the English progressive and simple present."""

# Determiners, repeated by their weight.
_POSSESSIVES = ("my", "your", "his", "her", "our", "their")
_SINGULAR = ("the",) * 10 + ("a",) * 6 + ("this",) * 2 + ("every", *_POSSESSIVES)
_PLURAL = ("the",) * 6 + ("",) * 3 + ("this", "some", "many", "all", *_POSSESSIVES)
_MASS = ("the",) * 6 + ("",) * 5 + ("this", *_POSSESSIVES)
PERSON_DETERMINERS = ("the", "the", "the", "a", *_POSSESSIVES)
_PLACE_DETERMINERS = ("the",) * 22 + ("a",) * 4 + _POSSESSIVES
_RELATIVE_HEAD_DETERMINERS = ("the", "the", "the", "a", "a")
_PRONOUNS = (Pronoun("I"), Pronoun("you")) * 4 + (Pronoun("he"), Pronoun("she"), Pronoun("we"), Pronoun("they"))
_NAMED = tuple(map(Name, NAMES))

ADJECTIVES_OF = {noun: tuple(adjective for adjective in ADJECTIVES if noun in adjective.nouns) for noun in NOUNS}
PERSONS = nouns("person")
_OWNERS = nouns("kin man woman farmer baker king queen")
_PLACES = nouns("place")
_INTERIORS = nouns("house garden kitchen school shop office room cellar hotel church park forest museum library castle")
_DESTINATIONS = nouns("place doctor baker friend neighbor teacher uncle aunt farmer bus train car -city")
_SIGHTS = nouns("lake mountain island beach castle river bridge")
_HOMES = nouns("house village city castle forest island hotel")
_LOCATION_PREPOSITIONS = {"shore": Fixed("at", "an"), "ground": Fixed("on", "auf")}
_TOWNS_IN = tuple(Fixed(f"in {en}", f"in {de}") for en, de in TOWNS)
_TOWNS_TO = tuple(Fixed(f"to {en}", f"nach {de}") for en, de in TOWNS)

_ON, _UNDER = Fixed("on", "auf"), Fixed("under", "unter")
_NEXT_TO, _BEHIND, _IN_FRONT_OF = Fixed("next to", "neben"), Fixed("behind", "hinter"), Fixed("in front of", "vor")
_SEATS, _TOPS = nouns("chair sofa bench bed"), nouns("table shelf cupboard")
_MARKS = nouns("table bed sofa cupboard door")
_LANDMARKS = nouns("house school church museum castle hotel library hospital restaurant")
_BESIDE = ((_NEXT_TO, _MARKS), (_BEHIND, _MARKS))
_LYING = ((_ON, _SEATS + _TOPS), (_ON, _SEATS + _TOPS), (_UNDER, nouns("table bed sofa bench")), *_BESIDE)
_STANDING = ((_ON, _TOPS), (_ON, _TOPS), *_BESIDE)
_SITTING = ((_ON, _SEATS), (_ON, _SEATS), (_NEXT_TO, _MARKS), (_IN_FRONT_OF, _LANDMARKS))
_HANGING = ((_NEXT_TO, nouns("door bed cupboard window")), (_BEHIND, nouns("door")))
_OUTSIDE = ((_NEXT_TO, _LANDMARKS), (_BEHIND, _LANDMARKS), (_IN_FRONT_OF, _LANDMARKS))
_POSITIONS = {"sitzen": _SITTING, "liegen": _LYING, "legen": _LYING, "stellen": _STANDING, "hängen": _HANGING}


class PhraseSampler:
    """Samples phrases for a split.

    has_held_out: whether the current sentence has a held-out word combination, which only the test split may have
    _detail:      scales the probability of optional phrases; lower in deeply nested sentences

    Sampling only uses `random.random`, whose sequence is the same in all versions of Python.
    """

    def __init__(self, split: Split, seed: int) -> None:
        self._random = random.Random(digest(f"{split} {seed}")).random
        self._allows_held_out = split == "test"
        self._detail = 1.0
        self.has_held_out = False

    # --- Random choices -----------------------------------------------------------------------------------------------

    def _chance(self, probability: float) -> bool:
        return self._random() < probability

    def _pick(self, choices: Sequence[T]) -> T:
        return choices[int(self._random() * len(choices))]

    def _allows(self, kind: str, first: str, second: str = "") -> bool:
        """Return whether the split allows a word combination; if so, the caller must use it."""
        if not is_held_out(kind, first, second):
            return True
        self.has_held_out |= self._allows_held_out
        return self._allows_held_out

    def _number(self, low: int, high: int) -> int:
        """Sample a cardinal number, except those that end in 01, which inflect in German."""
        while True:  # numbers without a compound word are never held out
            number = low + int(self._random() * (high - low + 1))
            if number <= 20 or number % 10 == 0 or (number % 100 != 1 and self._allows("number", str(number))):
                return number

    # --- Noun phrases -------------------------------------------------------------------------------------------------

    def _noun_phrase(self, noun: Noun) -> NounPhrase:
        """Sample a noun phrase with determiner or number, and an optional adjective or owner."""
        if not noun.de_plural:
            return self._modified(noun, self._pick(_MASS))
        roll = self._random()
        if roll < 0.07 and noun.can_be_owned:
            return self._possessive(noun)
        if roll < 0.74:
            return self._modified(noun, self._pick(_SINGULAR))
        if roll < 0.93:
            return self._modified(noun, self._pick(_PLURAL), plural=True)
        high = 12 if noun in _PLACES else 99 if noun.is_human or roll < 0.98 else 999
        return self._modified(noun, "", plural=True)._replace(number=self._number(2, high))

    def _modified(self, noun: Noun, determiner: str, plural: bool = False) -> NounPhrase:
        """Add a determiner, and an optional compound modifier and adjective."""
        if not noun.can_be_owned and determiner in _POSSESSIVES:
            determiner = "the"
        modifier = adjective = None
        if noun in COMPOUNDS and self._chance(0.25):
            candidate = self._pick(COMPOUNDS[noun])
            modifier = candidate if self._allows("compound", candidate.en, noun.en) else None
        if self._random() < 0.3 * self._detail:
            quality = self._pick(ADJECTIVES_OF[noun])
            adjective = quality if self._allows("adjective", quality.en, noun.en) else None
        return NounPhrase(noun, determiner, plural, modifier, adjective)

    def _possessive(self, noun: Noun) -> NounPhrase:
        """Sample an owner: Anna's dog, the neighbor's dog."""
        if self._chance(0.5):
            return NounPhrase(noun, "", owner=self._pick(_NAMED))
        owner = self._pick(_OWNERS)
        determiner = self._pick(PERSON_DETERMINERS) if owner.can_be_owned else "the"
        return NounPhrase(noun, "", owner=NounPhrase(owner, determiner))

    def _relative_head(self, noun: Noun) -> NounPhrase:
        """Sample a noun phrase for a relative clause."""
        if not noun.de_plural or self._chance(0.25):
            return self._modified(noun, "the", plural=bool(noun.de_plural))
        return self._modified(noun, self._pick(_RELATIVE_HEAD_DETERMINERS))

    def _person(self, other: Noun | None = None) -> NounPhrase | Name:
        """Sample a person other than `other`."""
        if self._chance(0.25):
            return self._pick(_NAMED)
        noun = self._pick(PERSONS)
        while noun is other:
            noun = self._pick(PERSONS)
        return self._modified(noun, self._pick(PERSON_DETERMINERS))

    def _company(self) -> Prepositional:
        if self._chance(0.7):
            return Prepositional("with", "mit", "dat", self._person())
        return Prepositional("without", "ohne", "acc", self._person())

    def _noun_or_name(self, candidates: Sequence[Noun], pronouns: float) -> Phrase | Noun:
        """Sample a noun, or with probability `pronouns` a pronoun or name."""
        roll = self._random()
        if roll < pronouns * 0.6:
            return self._pick(_PRONOUNS)
        return self._pick(_NAMED) if roll < pronouns else self._pick(candidates)

    def _coordinate(self, noun: Noun) -> Coordination:
        """Coordinate a noun with another person: Anna and the gardener."""
        return Coordination(self._person(noun), self._modified(noun, self._pick(PERSON_DETERMINERS)))

    # --- Times --------------------------------------------------------------------------------------------------------

    def _time(self, period: Period) -> Fixed:
        roll = self._random()
        match period:
            case "present":
                return self._pick(PRESENT_TIMES)
            case "habit" if roll < 0.3:
                return at_hour(1 + int(self._random() * 12), self._chance(0.5))
            case "habit":
                return self._pick(HABITS)
            case _ if roll < 0.6:
                return self._pick(PAST_TIMES if period == "past" else FUTURE_TIMES)
            case _ if roll < 0.75:
                return on_date(1 + int(self._random() * 28), self._pick(MONTHS))
            case _:
                (en, de), hour = self._pick(WEEKDAYS), at_hour(1 + int(self._random() * 12), self._chance(0.5))
                return Fixed(f"on {en} {hour.en}", f"am {de} {hour.de}", "dates")

    # --- Places -------------------------------------------------------------------------------------------------------

    def _at(self, preposition: Fixed, noun: Noun, case: Case) -> Prepositional:
        phrase = self._modified(noun, self._pick(_PLACE_DETERMINERS))
        return Prepositional(preposition.en, preposition.de, case, phrase)

    def _location(self, places: Sequence[Noun] = _PLACES) -> Prepositional | Fixed:
        """Sample the location of an event."""
        roll = self._random()
        if roll < 0.75:
            place = self._pick(places)
            return self._at(_LOCATION_PREPOSITIONS.get(place.kind, Fixed("in", "in")), place, "dat")
        return self._pick(_TOWNS_IN if roll < 0.92 else HERE_AND_THERE)

    def _destination(self, verb: Verb) -> Prepositional | Fixed:
        """Sample the destination of a motion verb."""
        roll = self._random()
        if roll < 0.08:
            return HOME
        if "far" in verb.traits:
            return self._pick(_TOWNS_TO) if roll < 0.55 else self._at(Fixed("to", "zu"), self._pick(_SIGHTS), "dat")
        if roll < 0.5:
            return self._at(Fixed("into", "in"), self._pick(_INTERIORS), "acc")
        return self._at(Fixed("to", "zu"), self._pick(_DESTINATIONS), "dat")

    def _position(self, verb: Verb, noun: Noun | None, case: Case) -> Prepositional | Fixed:
        """Sample where a noun (None: a person) is positioned (dative) or placed (accusative)."""
        is_animate = noun is None or noun.is_animate
        if verb.de == "wohnen":
            return self._location(_HOMES)
        if case == "dat" and is_animate and (verb.de == "bleiben" or self._chance(0.5)):
            return self._location()
        positions = _POSITIONS.get(verb.de) or (_OUTSIDE if is_animate else _STANDING)
        if noun is not None and noun.kind == "furniture":
            positions = _BESIDE
        preposition, places = self._pick(positions)
        place = self._pick(places)
        while place is noun:
            place = self._pick(places)
        return self._at(preposition, place, case)
