"""Number words, dates and hours of the built-in toy corpus."""

from __future__ import annotations

import pytest

from nmt.grammar.numbers import at_hour, english_cardinal, german_cardinal, on_date


@pytest.mark.parametrize(
    ("number", "en", "de"),
    [
        (2, "two", "zwei"),
        (12, "twelve", "zwölf"),
        (16, "sixteen", "sechzehn"),
        (17, "seventeen", "siebzehn"),
        (20, "twenty", "zwanzig"),
        (21, "twenty-one", "einundzwanzig"),
        (30, "thirty", "dreißig"),
        (66, "sixty-six", "sechsundsechzig"),
        (77, "seventy-seven", "siebenundsiebzig"),
        (100, "one hundred", "hundert"),
        (116, "one hundred and sixteen", "hundertsechzehn"),
        (143, "one hundred and forty-three", "hundertdreiundvierzig"),
        (200, "two hundred", "zweihundert"),
        (612, "six hundred and twelve", "sechshundertzwölf"),
        (999, "nine hundred and ninety-nine", "neunhundertneunundneunzig"),
    ],
)
def test_cardinals_are_spelled_in_both_languages(number: int, en: str, de: str) -> None:
    assert (english_cardinal(number), german_cardinal(number)) == (en, de)


def test_number_words_are_distinct() -> None:
    for cardinal in (english_cardinal, german_cardinal):
        assert len({cardinal(number) for number in range(1, 1_000)}) == 999


@pytest.mark.parametrize(
    ("day", "en", "de"),
    [
        (1, "first", "ersten"),
        (2, "second", "zweiten"),
        (3, "third", "dritten"),
        (5, "fifth", "fünften"),
        (7, "seventh", "siebten"),
        (8, "eighth", "achten"),
        (9, "ninth", "neunten"),
        (12, "twelfth", "zwölften"),
        (19, "nineteenth", "neunzehnten"),
        (20, "twentieth", "zwanzigsten"),
        (21, "twenty-first", "einundzwanzigsten"),
        (25, "twenty-fifth", "fünfundzwanzigsten"),
        (30, "thirtieth", "dreißigsten"),
    ],
)
def test_days_are_ordinals_in_both_languages(day: int, en: str, de: str) -> None:
    assert on_date(day, ("March", "März"))[:2] == (f"on the {en} of March", f"am {de} März")


@pytest.mark.parametrize(
    ("hour", "half", "en", "de"),
    [
        (1, False, "at one o'clock", "um ein Uhr"),
        (6, False, "at six o'clock", "um sechs Uhr"),
        (3, True, "at half past three", "um halb vier"),
        (12, True, "at half past twelve", "um halb eins"),
    ],
)
def test_hours_are_spelled_in_both_languages(hour: int, half: bool, en: str, de: str) -> None:
    assert at_hour(hour, half)[:2] == (en, de)
