"""When something happens: days, dates, hours and years as expressions of both languages."""

from __future__ import annotations

from functools import cache

from nmt.data.embedded.entries import Adverbial
from nmt.data.embedded.numbers import (
    english_cardinal,
    english_ordinal,
    english_year,
    german_cardinal,
    german_ordinal_stem,
    german_year,
)

WEEKDAYS = {
    "Monday": "Montag",
    "Tuesday": "Dienstag",
    "Wednesday": "Mittwoch",
    "Thursday": "Donnerstag",
    "Friday": "Freitag",
    "Saturday": "Samstag",
    "Sunday": "Sonntag",
}
MONTHS = {
    "January": "Januar",
    "February": "Februar",
    "March": "März",
    "April": "April",
    "May": "Mai",
    "June": "Juni",
    "July": "Juli",
    "August": "August",
    "September": "September",
    "October": "Oktober",
    "November": "November",
    "December": "Dezember",
}
DAYS = dict(zip(MONTHS, (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31), strict=True))
"""How many days a month can have."""

MINUTES = {
    "o'clock": "Uhr",
    "half past": "halb",
    "a quarter past": "Viertel nach",
    "a quarter to": "Viertel vor",
    "five past": "fünf nach",
    "ten past": "zehn nach",
    "twenty past": "zwanzig nach",
    "five to": "fünf vor",
    "ten to": "zehn vor",
    "twenty to": "zwanzig vor",
}
"""Where the clock's long hand stands."""

SPANS = {"days": "Tage", "weeks": "Wochen", "months": "Monate", "years": "Jahre"}
"""Plural time spans."""

_PAST = """
yesterday gestern
recently neulich
last_week letzte_Woche
last_month letzten_Monat
last_year letztes_Jahr
last_summer letzten_Sommer
last_winter letzten_Winter
yesterday_evening gestern_Abend
"""
_PRESENT = """
today heute
now jetzt
"""
_HABITS = """
every_day jeden_Tag
every_morning jeden_Morgen
every_evening jeden_Abend
every_week jede_Woche
in_the_morning am_Morgen
in_the_evening am_Abend
in_the_summer im_Sommer
in_the_winter im_Winter
at_the_weekend am_Wochenende
"""
_FUTURE = """
tomorrow morgen
soon bald
tonight heute_Abend
next_week nächste_Woche
next_month nächsten_Monat
next_year nächstes_Jahr
next_summer nächsten_Sommer
tomorrow_evening morgen_Abend
"""


def _parse(table: str) -> tuple[Adverbial, ...]:
    rows = (line.replace("_", " ").partition("|") for line in table.replace(" ", "|").split("\n") if line)
    return tuple(Adverbial(en, de) for en, _, de in rows)


PAST_TIMES = _parse(_PAST)
PRESENT_TIMES = _parse(_PRESENT)
HABITS = _parse(_HABITS)
FUTURE_TIMES = _parse(_FUTURE)

# Questions about the circumstances.
WHEN = Adverbial("when", "wann")
WHY = Adverbial("why", "warum")
WHERE = Adverbial("where", "wo")
WHERE_TO = Adverbial("where", "wohin")


@cache
def on_weekday(weekday: str) -> Adverbial:
    """on Monday"""
    return Adverbial(f"on {weekday}", f"am {WEEKDAYS[weekday]}", ("dates",))


@cache
def last_weekday(weekday: str) -> Adverbial:
    """last Monday"""
    return Adverbial(f"last {weekday}", f"letzten {WEEKDAYS[weekday]}", ("dates",))


@cache
def next_weekday(weekday: str) -> Adverbial:
    """next Monday"""
    return Adverbial(f"next {weekday}", f"nächsten {WEEKDAYS[weekday]}", ("dates",))


@cache
def every_weekday(weekday: str) -> Adverbial:
    """every Monday"""
    return Adverbial(f"every {weekday}", f"jeden {WEEKDAYS[weekday]}", ("dates",))


@cache
def in_month(month: str) -> Adverbial:
    """in May"""
    return Adverbial(f"in {month}", f"im {MONTHS[month]}", ("dates",))


@cache
def on_date(day: int, month: str) -> Adverbial:
    """on the third of May"""
    return Adverbial(
        f"on the {english_ordinal(day)} of {month}",
        f"am {german_ordinal_stem(day)}en {MONTHS[month]}",
        ("dates",),
        ("date", str(day), month),
    )


@cache
def on_weekday_and_date(weekday: str, day: int, month: str) -> Adverbial:
    """on Monday, the third of May, where the German date stands in apposition, in the dative like its weekday"""
    return Adverbial(
        f"on {weekday}, the {english_ordinal(day)} of {month},",
        f"am {WEEKDAYS[weekday]}, dem {german_ordinal_stem(day)}en {MONTHS[month]},",
        ("dates",),
        ("date", str(day), month),
    )


@cache
def in_year(year: int) -> Adverbial:
    """in nineteen eighty-four"""
    return Adverbial(
        f"in {english_year(year)}", f"im Jahr {german_year(year)}", ("dates", "numbers"), ("number", str(year), "")
    )


@cache
def at_clock(hour: int, minutes: str) -> Adverbial:
    """at half past three; German counts the half hour towards the next hour (halb vier)"""
    match minutes:
        case "o'clock":
            german = f"um {'ein' if hour == 1 else german_cardinal(hour)} Uhr"
            return Adverbial(f"at {english_cardinal(hour)} o'clock", german, ("dates",))
        case "half past":
            german = f"um halb {german_cardinal(hour % 12 + 1)}"
        case _:
            german = f"um {MINUTES[minutes]} {german_cardinal(hour)}"
    return Adverbial(f"at {minutes} {english_cardinal(hour)}", german, ("dates",))


def on_weekday_at_clock(weekday: str, hour: int, minutes: str) -> Adverbial:
    """on Monday at half past three"""
    day, clock = on_weekday(weekday), at_clock(hour, minutes)
    return Adverbial(f"{day.en} {clock.en}", f"{day.de} {clock.de}", ("dates",), ("clock", str(hour), weekday))


@cache
def ago(number: int, span: str) -> Adverbial:
    """three days ago"""
    return Adverbial(
        f"{english_cardinal(number)} {span} ago",
        f"vor {german_cardinal(number)} {_dative(span)}",
        ("numbers",),
        ("number", str(number), ""),
    )


@cache
def from_now(number: int, span: str) -> Adverbial:
    """in three days"""
    return Adverbial(
        f"in {english_cardinal(number)} {span}",
        f"in {german_cardinal(number)} {_dative(span)}",
        ("numbers",),
        ("number", str(number), ""),
    )


def _dative(span: str) -> str:
    """The German span in the dative plural, which ends in n."""
    return SPANS[span].removesuffix("n") + "n"
