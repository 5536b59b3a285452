"""Number words, dates and hours of the embedded corpus, against a reader that knows the languages on its own."""

from __future__ import annotations

import re

import pytest

from nmt.data.embedded.entries import Adverbial
from nmt.data.embedded.numbers import (
    english_cardinal,
    english_ordinal,
    english_year,
    german_cardinal,
    german_ordinal_stem,
    german_year,
)
from nmt.data.embedded.times import (
    ago,
    at_clock,
    from_now,
    in_year,
    on_date,
    on_weekday_at_clock,
)


@pytest.mark.parametrize(
    ("number", "en", "de"),
    [
        (0, "zero", "null"),
        (1, "one", "eins"),
        (7, "seven", "sieben"),
        (12, "twelve", "zwölf"),
        (16, "sixteen", "sechzehn"),
        (17, "seventeen", "siebzehn"),
        (20, "twenty", "zwanzig"),
        (21, "twenty-one", "einundzwanzig"),
        (30, "thirty", "dreißig"),
        (66, "sixty-six", "sechsundsechzig"),
        (77, "seventy-seven", "siebenundsiebzig"),
        (100, "one hundred", "hundert"),
        (101, "one hundred and one", "hunderteins"),
        (143, "one hundred and forty-three", "hundertdreiundvierzig"),
        (612, "six hundred and twelve", "sechshundertzwölf"),
        (1000, "one thousand", "tausend"),
        (1005, "one thousand and five", "tausendfünf"),
        (1143, "one thousand one hundred and forty-three", "tausendeinhundertdreiundvierzig"),
        (1200, "one thousand two hundred", "tausendzweihundert"),
        (2000, "two thousand", "zweitausend"),
        (7099, "seven thousand and ninety-nine", "siebentausendneunundneunzig"),
        (9999, "nine thousand nine hundred and ninety-nine", "neuntausendneunhundertneunundneunzig"),
    ],
)
def test_number_words(number: int, en: str, de: str) -> None:
    assert (english_cardinal(number), german_cardinal(number)) == (en, de)


EN_DIGITS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
]
DE_DIGITS = [
    "null",
    "ein",
    "zwei",
    "drei",
    "vier",
    "fünf",
    "sechs",
    "sieben",
    "acht",
    "neun",
    "zehn",
    "elf",
    "zwölf",
    "dreizehn",
    "vierzehn",
    "fünfzehn",
    "sechzehn",
]
EN_VALUES = {word: value for value, word in enumerate([*EN_DIGITS, "seventeen", "eighteen", "nineteen"])} | dict(
    zip(["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"], range(20, 100, 10), strict=True)
)
DE_VALUES = {word: value for value, word in enumerate([*DE_DIGITS, "siebzehn", "achtzehn", "neunzehn"])} | dict(
    zip(
        ["zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"],
        range(20, 100, 10),
        strict=True,
    )
)


def read_english(words: str) -> int:
    """The value of an English number, read from left to right."""
    total = current = 0
    for word in re.split("[ -]", words):
        if word == "hundred":
            current *= 100
        elif word == "thousand":
            total, current = current * 1000, 0
        elif word != "and":
            current += EN_VALUES[word]
    return total + current


def read_german(word: str) -> int:
    """The value of a German number, taken apart at tausend, hundert and und."""
    for unit, factor in (("tausend", 1000), ("hundert", 100)):
        before, found, behind = word.partition(unit)
        if found:
            return (read_german(before) if before else 1) * factor + (read_german(behind) if behind else 0)
    ones, found, tens = word.partition("und")
    if found:
        return DE_VALUES[ones] + DE_VALUES[tens]
    return 1 if word == "eins" else DE_VALUES[word]


def test_every_number_word_means_its_number() -> None:
    for number in range(10_000):
        assert read_english(english_cardinal(number)) == number
        assert read_german(german_cardinal(number)) == number


def test_ordinals_and_years() -> None:
    ordinals = {
        1: "first",
        2: "second",
        3: "third",
        8: "eighth",
        9: "ninth",
        12: "twelfth",
        20: "twentieth",
        21: "twenty-first",
    }
    assert {number: english_ordinal(number) for number in ordinals} == ordinals
    stems = {
        1: "erst",
        2: "zweit",
        3: "dritt",
        7: "siebt",
        8: "acht",
        19: "neunzehnt",
        20: "zwanzigst",
        31: "einunddreißigst",
    }
    assert {number: german_ordinal_stem(number) for number in stems} == stems
    assert (english_year(1984), german_year(1984)) == ("nineteen eighty-four", "neunzehnhundertvierundachtzig")
    assert (english_year(1910), german_year(1910)) == ("nineteen ten", "neunzehnhundertzehn")


@pytest.mark.parametrize(
    ("time", "en", "de"),
    [
        (on_date(21, "March"), "on the twenty-first of March", "am einundzwanzigsten März"),
        (at_clock(1, "o'clock"), "at one o'clock", "um ein Uhr"),
        (at_clock(3, "half past"), "at half past three", "um halb vier"),
        (at_clock(12, "half past"), "at half past twelve", "um halb eins"),
        (at_clock(1, "a quarter to"), "at a quarter to one", "um Viertel vor eins"),
        (at_clock(7, "twenty past"), "at twenty past seven", "um zwanzig nach sieben"),
        (on_weekday_at_clock("Sunday", 6, "o'clock"), "on Sunday at six o'clock", "am Sonntag um sechs Uhr"),
        (in_year(1976), "in nineteen seventy-six", "im Jahr neunzehnhundertsechsundsiebzig"),
        (ago(3, "days"), "three days ago", "vor drei Tagen"),
        (ago(2, "weeks"), "two weeks ago", "vor zwei Wochen"),
        (from_now(5, "years"), "in five years", "in fünf Jahren"),
    ],
)
def test_times(time: Adverbial, en: str, de: str) -> None:
    assert (time.en, time.de) == (en, de)
