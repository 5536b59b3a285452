"""Number words, dates and hours in both languages."""

from __future__ import annotations

from nmt.grammar.entries import Fixed

_EN_SMALL = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_EN_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_EN_ORDINALS = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth"}
_EN_ORDINALS |= {"nine": "ninth", "twelve": "twelfth"}
_DE_SMALL = (
    *("null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf"),
    *("dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn"),
)
_DE_TENS = ("", "", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig")
_DE_ORDINALS = {1: "erst", 3: "dritt", 7: "siebt", 8: "acht"}


def english_cardinal(number: int) -> str:
    """Spell a number from 0 to 999 in British English: two hundred and forty-three."""
    if number < 20:
        return _EN_SMALL[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return f"{_EN_TENS[tens]}-{_EN_SMALL[ones]}" if ones else _EN_TENS[tens]
    hundreds, rest = divmod(number, 100)
    words = f"{_EN_SMALL[hundreds]} hundred"
    return f"{words} and {english_cardinal(rest)}" if rest else words


def german_cardinal(number: int) -> str:
    """Spell a number from 0 to 999 in German, as in counting: hundert, hunderteins."""
    if number < 20:
        return _DE_SMALL[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return f"{'ein' if ones == 1 else _DE_SMALL[ones]}und{_DE_TENS[tens]}" if ones else _DE_TENS[tens]
    hundreds, rest = divmod(number, 100)
    return f"{_DE_SMALL[hundreds] if hundreds > 1 else ''}hundert{german_cardinal(rest) if rest else ''}"


def english_ordinal(number: int) -> str:
    """Spell an English ordinal from 1 to 31: twenty-first."""
    tens, dash, ones = english_cardinal(number).rpartition("-")
    regular = ones[:-1] + "ieth" if ones.endswith("y") else ones + "th"
    return tens + dash + _EN_ORDINALS.get(ones, regular)


def german_ordinal(number: int) -> str:
    """Spell a German ordinal from 1 to 31 in the dative, as in dates: einundzwanzigsten."""
    if number < 20:
        return _DE_ORDINALS.get(number, german_cardinal(number) + "t") + "en"
    return german_cardinal(number) + "sten"


def on_date(day: int, month: tuple[str, str]) -> Fixed:
    """Return a date, such as on the third of May. month: its name in both languages"""
    return Fixed(f"on the {english_ordinal(day)} of {month[0]}", f"am {german_ordinal(day)} {month[1]}", "dates")


def at_hour(hour: int, half: bool) -> Fixed:
    """Return a time of day. German names the next hour for half hours: half past three is halb vier."""
    if half:
        return Fixed(f"at half past {english_cardinal(hour)}", f"um halb {german_cardinal(hour % 12 + 1)}", "dates")
    german = "ein" if hour == 1 else german_cardinal(hour)
    return Fixed(f"at {english_cardinal(hour)} o'clock", f"um {german} Uhr", "dates")
