"""Unicode normalization forms equal those of `unicodedata`, in linear time."""

import random
import unicodedata
from typing import Literal

import pytest

from nmt.text.normal_forms import normal_forms
from nmt.text.unicode_form import unicode_form
from nmt.text.words import find_words, split_words

FORMS: tuple[Literal["NFC", "NFKC"], ...] = ("NFC", "NFKC")


@pytest.mark.parametrize("form", FORMS)
def test_forms_equal_those_of_unicodedata(form: Literal["NFC", "NFKC"]) -> None:
    rng = random.Random(4)
    hangul = "\uac00\u1100\u1161\u302e\u0335"
    for characters in ("a\u0315\u0316\u0301", "\u30cf\uff8a\uff9e\uff9f\u3099\u0327 ", hangul):
        for length in (900, 1_100, 3_000):
            text = "".join(rng.choices(characters, k=length))
            assert unicode_form(text, form) == unicodedata.normalize(form, text)


@pytest.mark.slow
@pytest.mark.parametrize("marks", ["\u0315\u0316", "\u0315\uff9e"])
def test_marks_out_of_order_take_linear_time(marks: str) -> None:
    """With quadratic time, each form would take half a minute."""
    text = "a" + marks * 75_000
    forms = {form: unicode_form(text, form) for form in FORMS}
    assert all(len(form) == len(text) for form in forms.values())
    assert "".join(split_words(text)) == "".join(word.text for word in find_words(text))
    assert normal_forms([text])
