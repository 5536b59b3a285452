"""Normal forms of lines. Lines that differ only in case, punctuation, spacing or Unicode form have the same one."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from re import Pattern

from nmt.text.unicode_form import unicode_form

_IGNORED_CATEGORIES = ("P", "Z", "Cc", "Cf", "Sk")


def normal_forms(lines: Sequence[str]) -> list[bytes]:
    """Return the normal form of each line, in UTF-8.

    Applies NFKC and full case folding, and removes the categories punctuation, separator, control, format and modifier
    symbol. Letters, marks, digits and other symbols (`+`, `€`) stay. Lines must not contain line feeds.
    """
    if not lines:
        return []
    text = "\n".join(lines).casefold()
    ascii_ignored, ignored = _ignored_characters()
    if not text.isascii():
        # Also remove ignored characters before NFKC, which turns an accent used as an apostrophe into a combining mark.
        text = ignored.sub("", text)
        text = unicode_form(unicode_form(text, "NFKC").casefold(), "NFKC")
        text = ignored.sub("", text)
    return text.encode().translate(None, ascii_ignored).split(b"\n")


@cache
def _ignored_characters() -> tuple[bytes, Pattern[str]]:
    """Return the ASCII characters that normal forms ignore, and a pattern for the others. Line feeds are kept.

    Excludes characters above U+FFFF, mostly of historic scripts: they would make the pattern 20 times slower.
    """
    characters = (character for character in map(chr, range(0x10000)) if character != "\n")
    ignored = "".join(c for c in characters if unicodedata.category(c).startswith(_IGNORED_CATEGORIES))
    ascii_ignored = "".join(character for character in ignored if character.isascii())
    return ascii_ignored.encode(), re.compile(f"[{re.escape(ignored.removeprefix(ascii_ignored))}]+")
