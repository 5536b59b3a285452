"""Number words of both languages: cardinals, ordinals and years."""

from __future__ import annotations

_EN_SMALL = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_EN_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_EN_ORDINALS = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth"}

_DE_SMALL = (
    *("null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf"),
    *("dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn"),
)
_DE_TENS = ("", "", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig")
_DE_ORDINALS = {1: "erst", 3: "dritt", 7: "siebt", 8: "acht"}


def english_cardinal(number: int) -> str:
    """The English words of a number from 0 to 9999, British style: two hundred and forty-three."""
    if number < 20:
        return _EN_SMALL[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return f"{_EN_TENS[tens]}-{_EN_SMALL[ones]}" if ones else _EN_TENS[tens]
    if number < 1000:
        hundreds, rest = divmod(number, 100)
        words = f"{_EN_SMALL[hundreds]} hundred"
        return f"{words} and {english_cardinal(rest)}" if rest else words
    thousands, rest = divmod(number, 1000)
    words = f"{_EN_SMALL[thousands]} thousand"
    if not rest:
        return words
    return f"{words} {'and ' if rest < 100 else ''}{english_cardinal(rest)}"


def german_cardinal(number: int) -> str:
    """The German word of a number from 0 to 9999 as one counts: no leading ein, but eins at the end (hunderteins)."""
    if number < 20:
        return _DE_SMALL[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return f"{_de_joined(ones)}und{_DE_TENS[tens]}" if ones else _DE_TENS[tens]
    if number < 1000:
        hundreds, rest = divmod(number, 100)
        return f"{_de_joined(hundreds) if hundreds > 1 else ''}hundert{german_cardinal(rest) if rest else ''}"
    thousands, rest = divmod(number, 1000)
    word = f"{_de_joined(thousands) if thousands > 1 else ''}tausend"
    inner = "ein" if rest // 100 == 1 else ""  # tausend, hundert, but tausendeinhundert
    return f"{word}{inner}{german_cardinal(rest)}" if rest else word


def english_ordinal(number: int) -> str:
    """The English ordinal of a number from 1 to 31: twenty-first."""
    tens, dash, ones = english_cardinal(number).rpartition("-")
    if ones in _EN_ORDINALS:
        return tens + dash + _EN_ORDINALS[ones]
    if ones == "twelve":
        return "twelfth"
    return tens + dash + (ones.removesuffix("y") + "ieth" if ones.endswith("y") else ones + "th")


def german_ordinal_stem(number: int) -> str:
    """The German ordinal of a number from 1 to 31 without its adjective ending: einundzwanzigst."""
    if number < 20:
        return _DE_ORDINALS.get(number, german_cardinal(number) + "t")
    return german_cardinal(number) + "st"


def english_year(year: int) -> str:
    """The English words of a year of the twentieth century or before whose last two digits are 10 or more."""
    century, rest = divmod(year, 100)
    return f"{english_cardinal(century)} {english_cardinal(rest)}"


def german_year(year: int) -> str:
    """The German word of such a year: neunzehnhundertvierundachtzig."""
    century, rest = divmod(year, 100)
    return f"{german_cardinal(century)}hundert{german_cardinal(rest)}"


def _de_joined(digit: int) -> str:
    """A digit at the front of a longer number word, where eins loses its s."""
    return "ein" if digit == 1 else _DE_SMALL[digit]
