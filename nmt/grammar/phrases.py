"""Random phrases: names, pronouns, nouns with all that belongs to them, times and places."""

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
"""What time a clause speaks of; present and habit are the English progressive and simple present."""

# Each word as often as its weight.
_POSSESSIVES = ("my", "your", "his", "her", "our", "their")
_SINGULAR = ("the",) * 10 + ("a",) * 6 + ("this",) * 2 + ("every", *_POSSESSIVES)
_PLURAL = ("the",) * 6 + ("",) * 3 + ("this", "some", "many", "all", *_POSSESSIVES)
_MASS = ("the",) * 6 + ("",) * 5 + ("this", *_POSSESSIVES)
OF_PERSONS = ("the", "the", "the", "a", *_POSSESSIVES)
_OF_PLACES = ("the",) * 22 + ("a",) * 4 + _POSSESSIVES
_OF_DESCRIBED = ("the", "the", "the", "a", "a")
_PRONOUNS = (Pronoun("I"), Pronoun("you")) * 4 + (Pronoun("he"), Pronoun("she"), Pronoun("we"), Pronoun("they"))
NAMED = tuple(map(Name, NAMES))

ADJECTIVES_OF = {noun: tuple(one for one in ADJECTIVES if noun in one.nouns) for noun in NOUNS}
PERSONS = nouns("person")
_OWNERS = nouns("kin man woman farmer baker king queen")
_PLACES = nouns("place")
_INSIDES = nouns("house garden kitchen school shop office room cellar hotel church park forest museum library castle")
_GOALS = nouns("place doctor baker friend neighbor teacher uncle aunt farmer bus train car -city")
_SIGHTS = nouns("lake mountain island beach castle river bridge")
_HOMES = nouns("house village city castle forest island hotel")
_BEING_AT = {"shore": Fixed("at", "an"), "ground": Fixed("on", "auf")}
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
_SPOTS = {"sitzen": _SITTING, "liegen": _LYING, "legen": _LYING, "stellen": _STANDING, "hängen": _HANGING}


class PhraseSampler:
    """Draws phrases for a split.

    Only the split test draws held-out combinations; `has_held_out` tells whether the current sentence has one.
    `_detail` scales how much is said beside the point: less in deep sentences. Every draw is a multiple of
    `random.random`, the one method whose sequence Python promises to keep.
    """

    def __init__(self, split: Split, seed: int) -> None:
        self._random = random.Random(digest(f"{split} {seed}")).random
        self._takes_held_out = split == "test"
        self._detail = 1.0
        self.has_held_out = False

    # --- Drawing ----------------------------------------------------------------------------------------------------

    def _chance(self, probability: float) -> bool:
        return self._random() < probability

    def _pick(self, choices: Sequence[T]) -> T:
        return choices[int(self._random() * len(choices))]

    def _may(self, kind: str, first: str, second: str = "") -> bool:
        """Whether the split may combine two words; the caller then does."""
        if not is_held_out(kind, first, second):
            return True
        self.has_held_out |= self._takes_held_out
        return self._takes_held_out

    def _number(self, low: int, high: int) -> int:
        """A number that counts things; not one that ends in 01, whose German inflects."""
        while True:  # The parts of number words are never held out.
            number = low + int(self._random() * (high - low + 1))
            if number <= 20 or number % 10 == 0 or (number % 100 != 1 and self._may("number", str(number))):
                return number

    # --- Noun phrases -----------------------------------------------------------------------------------------------

    def _noun_phrase(self, noun: Noun) -> NounPhrase:
        """A noun with determiner, number and perhaps an adjective or an owner."""
        if not noun.de_plural:
            return self._dressed(noun, self._pick(_MASS))
        roll = self._random()
        if roll < 0.07 and noun.owned:
            return self._owned(noun)
        if roll < 0.74:
            return self._dressed(noun, self._pick(_SINGULAR))
        if roll < 0.93:
            return self._dressed(noun, self._pick(_PLURAL), plural=True)
        high = 12 if noun.kind in ("room", "building", "shore", "ground") else 99 if noun.human or roll < 0.98 else 999
        return self._dressed(noun, "", plural=True)._replace(number=self._number(2, high))

    def _dressed(self, noun: Noun, determiner: str, plural: bool = False) -> NounPhrase:
        """The noun, perhaps as the last part of a compound and with an adjective."""
        if not noun.owned and determiner in _POSSESSIVES:
            determiner = "the"
        modifier = adjective = None
        if noun in COMPOUNDS and self._chance(0.25):
            one = self._pick(COMPOUNDS[noun])
            modifier = one if self._may("compound", one.en, noun.en) else None
        if self._random() < 0.3 * self._detail:
            quality = self._pick(ADJECTIVES_OF[noun])
            adjective = quality if self._may("adjective", quality.en, noun.en) else None
        return NounPhrase(noun, determiner, plural, modifier, adjective)

    def _owned(self, noun: Noun) -> NounPhrase:
        """Anna's dog, the neighbor's dog."""
        if self._chance(0.5):
            return NounPhrase(noun, "", owner=self._pick(NAMED))
        owner = self._pick(_OWNERS)
        determiner = self._pick(OF_PERSONS) if owner.owned else "the"
        return NounPhrase(noun, "", owner=NounPhrase(owner, determiner))

    def _described(self, noun: Noun) -> NounPhrase:
        """A noun that a relative clause is going to describe."""
        plural = bool(noun.de_plural) and self._chance(0.25)
        return self._dressed(noun, self._pick(_OF_DESCRIBED) if noun.de_plural and not plural else "the", plural)

    def _person(self, other: Noun | None = None) -> NounPhrase | Name:
        """Somebody beside subject and objects; not the other noun."""
        if self._chance(0.25):
            return self._pick(NAMED)
        noun = self._pick(PERSONS)
        while noun is other:
            noun = self._pick(PERSONS)
        return self._dressed(noun, self._pick(OF_PERSONS))

    def _company(self) -> Prepositional:
        if self._chance(0.7):
            return Prepositional("with", "mit", "dat", self._person())
        return Prepositional("without", "ohne", "acc", self._person())

    def _someone(self, entries: Sequence[Noun], pronouns: float) -> Phrase | Noun:
        """A noun, or somebody by pronoun or name where these may stand, with the probability `pronouns`."""
        roll = self._random()
        if roll < pronouns * 0.6:
            return self._pick(_PRONOUNS)
        return self._pick(NAMED) if roll < pronouns else self._pick(entries)

    def _pair(self, noun: Noun) -> Coordination:
        """Anna and the gardener, the boy and the gardener"""
        return Coordination(self._person(noun), self._dressed(noun, self._pick(OF_PERSONS)))

    # --- Times ------------------------------------------------------------------------------------------------------

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

    # --- Places -----------------------------------------------------------------------------------------------------

    def _at(self, preposition: Fixed, noun: Noun, case: Case) -> Prepositional:
        phrase = self._dressed(noun, self._pick(_OF_PLACES))
        return Prepositional(preposition.en, preposition.de, case, phrase)

    def _location(self, places: Sequence[Noun] = _PLACES) -> Prepositional | Fixed:
        """Where something happens."""
        roll = self._random()
        if roll < 0.75:
            place = self._pick(places)
            return self._at(_BEING_AT.get(place.kind, Fixed("in", "in")), place, "dat")
        return self._pick(_TOWNS_IN if roll < 0.92 else HERE_AND_THERE)

    def _goal(self, verb: Verb) -> Prepositional | Fixed:
        """Where a motion leads: abroad, home, inside, or just there."""
        roll = self._random()
        if roll < 0.08:
            return HOME
        if "far" in verb.traits:
            return self._pick(_TOWNS_TO) if roll < 0.55 else self._at(Fixed("to", "zu"), self._pick(_SIGHTS), "dat")
        if roll < 0.5:
            return self._at(Fixed("into", "in"), self._pick(_INSIDES), "acc")
        return self._at(Fixed("to", "zu"), self._pick(_GOALS), "dat")

    def _spot(self, verb: Verb, noun: Noun | None, case: Case) -> Prepositional | Fixed:
        """Where somebody or something (None: somebody) stands, sits or lies (dative), or is put (accusative)."""
        is_alive = noun is None or noun.alive
        if verb.de == "wohnen":
            return self._location(_HOMES)
        if case == "dat" and is_alive and (verb.de == "bleiben" or self._chance(0.5)):
            return self._location()
        spots = _SPOTS.get(verb.de) or (_OUTSIDE if is_alive else _STANDING)
        if noun is not None and noun.kind == "furniture":
            spots = _BESIDE
        preposition, places = self._pick(spots)
        place = self._pick(places)
        while place is noun:
            place = self._pick(places)
        return self._at(preposition, place, case)
