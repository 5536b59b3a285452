"""Unicode normalization forms in linear time."""

from __future__ import annotations

import re
import unicodedata
from functools import partial
from itertools import groupby
from typing import Literal

_LONG = 1_000  # characters
# Matches every long run of combining characters. NFKC turns the last two characters, which are letters, into marks.
_MARKS = re.compile(r"(?:[^\w\s\x00-\x7f]|[\uff9e\uff9f]){100,}")


def unicode_form(text: str, form: Literal["NFC", "NFKC"]) -> str:
    """Normalize like `unicodedata.normalize`, which takes quadratic time for unordered combining characters."""
    if len(text) > _LONG:
        decomposition: Literal["NFD", "NFKD"] = "NFKD" if form == "NFKC" else "NFD"
        text = _MARKS.sub(partial(_in_canonical_order, decomposition), text)
    return unicodedata.normalize(form, text)


def _in_canonical_order(decomposition: Literal["NFD", "NFKD"], symbols: re.Match[str]) -> str:
    """Return the decomposed text of a match, with combining characters in canonical order."""
    decomposed = "".join(unicodedata.normalize(decomposition, symbol) for symbol in symbols[0])
    runs = groupby(decomposed, key=lambda character: unicodedata.combining(character) > 0)
    return "".join("".join(sorted(run, key=unicodedata.combining)) for _, run in runs)
