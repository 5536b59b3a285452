"""Random circumstances: when and where something happens, and where it goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from nmt.data.embedded.entries import Adverbial, Noun, Preposition, Verb
from nmt.data.embedded.modifiers import (
    ABOVE,
    AT_HOME,
    BEHIND,
    HERE_AND_THERE,
    HOME,
    IN_FRONT_OF,
    INTO,
    NEXT_TO,
    ON,
    TO,
    TOWNS,
    UNDER,
)
from nmt.data.embedded.nouns import nouns
from nmt.data.embedded.phrases import PhraseSampler
from nmt.data.embedded.splits import is_held_out
from nmt.data.embedded.syntax import NounPhrase, PrepositionalPhrase
from nmt.data.embedded.times import (
    DAYS,
    FUTURE_TIMES,
    HABITS,
    MINUTES,
    MONTHS,
    PAST_TIMES,
    PRESENT_TIMES,
    SPANS,
    WEEKDAYS,
    ago,
    at_clock,
    every_weekday,
    from_now,
    in_month,
    in_year,
    last_weekday,
    next_weekday,
    on_date,
    on_weekday,
    on_weekday_and_date,
    on_weekday_at_clock,
)

Period = Literal["past", "now", "habit", "future"]
"""What time a clause speaks of; now and habit are the English progressive and simple present."""

_DATES = tuple((str(day), month) for month, days in DAYS.items() for day in range(1, days + 1))
_HOURS = tuple((str(hour), weekday) for weekday in WEEKDAYS for hour in range(1, 13))
_WEEKDAYS, _MONTHS, _MINUTES, _SPANS = tuple(WEEKDAYS), tuple(MONTHS), tuple(MINUTES), tuple(SPANS)

_TOWNS_IN = tuple(Adverbial(f"in {en}", f"in {de}") for en, de in TOWNS.items())
_TOWNS_TO = tuple(Adverbial(f"to {en}", f"nach {de}") for en, de in TOWNS.items())
_OF_PLACES = ("the",) * 22 + ("a",) * 4 + ("my", "your", "his", "her", "our", "their")

_PLACES = nouns("place")
_INSIDES = tuple(noun for noun in _PLACES if noun.preposition == ("in", "in"))
_GOALS = (*nouns("place -city"), *nouns("doctor baker friend neighbor teacher lawyer uncle aunt farmer bus train car"))
_SIGHTS = nouns("lake mountain island beach castle river bridge")
_HOMES = nouns("house village city castle forest island hotel")
_SEATS = nouns("chair sofa bench armchair bed")
_SURFACES = nouns("table chair bed sofa bench desk shelf cupboard")
_SHELTERS = nouns("table bed desk sofa bench")
_STANDS = nouns("table desk shelf cupboard")
_INDOOR_MARKS = nouns("table bed sofa cupboard door window desk armchair")
_LANDMARKS = nouns("house school church museum castle hotel library hospital restaurant")

_BEING_AT: dict[tuple[str, str], Preposition] = {
    noun.preposition: Preposition(*noun.preposition, two_way=True) for noun in _PLACES
}

Spot = tuple[Preposition, tuple[Noun, ...]]
_SPOTS: dict[str, tuple[Spot, ...]] = {
    "sitzen": ((ON, _SEATS), (ON, _SEATS), (NEXT_TO, _INDOOR_MARKS), (IN_FRONT_OF, _LANDMARKS)),
    "liegen": ((ON, _SURFACES), (ON, _SURFACES), (UNDER, _SHELTERS), (NEXT_TO, _INDOOR_MARKS), (BEHIND, _INDOOR_MARKS)),
    "wohnen": ((NEXT_TO, _LANDMARKS), (BEHIND, _LANDMARKS)),
    "legen": ((ON, _SURFACES), (ON, _SURFACES), (UNDER, _SHELTERS), (NEXT_TO, _INDOOR_MARKS), (BEHIND, _INDOOR_MARKS)),
    "stellen": ((ON, _STANDS), (ON, _STANDS), (NEXT_TO, _INDOOR_MARKS), (BEHIND, _INDOOR_MARKS)),
    "hängen": ((ABOVE, _SHELTERS), (NEXT_TO, nouns("door window cupboard bed")), (BEHIND, nouns("door"))),
}
_SPOTS_OF_THINGS = ((ON, _STANDS), (ON, _STANDS), (NEXT_TO, _INDOOR_MARKS), (BEHIND, _INDOOR_MARKS))
_SPOTS_OF_OTHERS = (
    (NEXT_TO, _LANDMARKS),
    (BEHIND, _LANDMARKS),
    (IN_FRONT_OF, _LANDMARKS),
    (IN_FRONT_OF, _INDOOR_MARKS),
)
_SPOTS_OF_FURNITURE = tuple((where, _INDOOR_MARKS) for where in (NEXT_TO, BEHIND, IN_FRONT_OF))


class CircumstanceSampler(PhraseSampler):
    """Draws times and places."""

    # --- Times ------------------------------------------------------------------------------------------------------

    def _time(self, period: Period) -> Adverbial:
        match period:
            case "past":
                return self._past_time()
            case "now":
                return self._pick(PRESENT_TIMES)
            case "habit":
                return self._habit()
            case "future":
                return self._future_time()

    def _past_time(self) -> Adverbial:
        roll = self._random()
        if roll < 0.4:
            return self._pick(PAST_TIMES)
        if roll < 0.5:
            return last_weekday(self._pick(_WEEKDAYS))
        if roll < 0.6:
            return ago(self._number(2, 99), self._pick(_SPANS))
        if roll < 0.66:
            return in_year(self._year())
        return self._calendar()

    def _habit(self) -> Adverbial:
        roll = self._random()
        if roll < 0.6:
            return self._pick(HABITS)
        if roll < 0.8:
            return every_weekday(self._pick(_WEEKDAYS))
        return at_clock(1 + int(self._random() * 12), self._pick(_MINUTES))

    def _future_time(self) -> Adverbial:
        roll = self._random()
        if roll < 0.44:
            return self._pick(FUTURE_TIMES)
        if roll < 0.54:
            return next_weekday(self._pick(_WEEKDAYS))
        if roll < 0.62:
            return from_now(self._number(2, 12), self._pick(_SPANS))
        return self._calendar()

    def _calendar(self) -> Adverbial:
        """A time that may lie in the past or in the future."""
        roll = self._random()
        if roll < 0.15:
            return on_weekday(self._pick(_WEEKDAYS))
        if roll < 0.3:
            return in_month(self._pick(_MONTHS))
        if roll < 0.55:
            hour, weekday = self._appointment("clock", _HOURS)
            return on_weekday_at_clock(weekday, int(hour), self._pick(_MINUTES))
        day, month = self._appointment("date", _DATES)
        if roll < 0.85:
            return on_date(int(day), month)
        return on_weekday_and_date(self._pick(_WEEKDAYS), int(day), month)

    def _appointment(self, kind: Literal["date", "clock"], choices: Sequence[tuple[str, str]]) -> tuple[str, str]:
        """A day and month, or an hour and weekday, that the split may put together."""
        while True:
            first, second = self._pick(choices)
            if self._with_held_out or not is_held_out((kind, first, second)):
                return first, second

    def _year(self) -> int:
        """A year of the twentieth century that both languages read in pairs of digits."""
        return self._number(1910, 1999)

    # --- Places -----------------------------------------------------------------------------------------------------

    def _location(self) -> PrepositionalPhrase | Adverbial:
        """Where something happens."""
        roll = self._random()
        if roll < 0.7:
            return self._at(self._pick(_PLACES))
        if roll < 0.87:
            return self._pick(_TOWNS_IN)
        return self._pick(HERE_AND_THERE) if roll < 0.94 else AT_HOME

    def _at(self, noun: Noun) -> PrepositionalPhrase:
        return PrepositionalPhrase(_BEING_AT[noun.preposition], self._place_phrase(noun))

    def _goal(self, verb: Verb, noun: Noun | None) -> PrepositionalPhrase | Adverbial:
        """Where a motion leads: abroad, home, inside, or just there."""
        roll = self._random()
        if "far" in verb.traits and (roll < 0.5 or (noun is not None and noun.kind == "vehicle")):
            return self._pick(_TOWNS_TO)
        if 0.5 < roll < 0.57:
            return HOME
        if "into" in verb.traits and roll < 0.6:
            return PrepositionalPhrase(INTO, self._place_phrase(self._pick(_INSIDES)), direction=True)
        return PrepositionalPhrase(TO, self._place_phrase(self._pick(_SIGHTS if "sights" in verb.traits else _GOALS)))

    def _spot(self, verb: Verb, noun: Noun | None, *, direction: bool) -> PrepositionalPhrase | Adverbial:
        """Where something stands, sits or lies, or (`direction`) where it is put."""
        kind = "person" if noun is None else noun.kind
        if verb.infinitive == "bleiben" or (kind in ("person", "animal") and not direction and self._chance(0.4)):
            if verb.infinitive == "wohnen":
                return self._pick(_TOWNS_IN) if self._chance(0.5) else self._at(self._pick(_HOMES))
            return self._location()
        spots = _SPOTS.get(verb.infinitive)
        if spots is None:
            match kind:
                case "object":
                    spots = _SPOTS_OF_THINGS
                case "furniture":
                    spots = _SPOTS_OF_FURNITURE
                case _:
                    spots = _SPOTS_OF_OTHERS
        preposition, places = self._pick(spots)
        place = self._pick(places)
        while place is noun:
            place = self._pick(places)
        return PrepositionalPhrase(preposition, self._place_phrase(place), direction)

    def _place_phrase(self, noun: Noun) -> NounPhrase:
        return self._described(noun, self._pick(_OF_PLACES), plural=False)
