"""Normal forms of lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.text.normal_forms import normal_forms


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("It's mine!", "its MINE"),
        ("It\u00b4s mine", "It's mine"),
        ("Straße", "STRASSE"),
        ("e\u0301cole", "École"),
        ("ﬁne", "Fine"),
        ("\uff26\uff55\uff4c\uff4c\u3000\uff57\uff49\uff44\uff54\uff48\uff01", "full width"),
        ("„So“, sagte er …", '"So", sagte er...'),
        ("a\u00a0b\u200bc\u00add", "abcd"),
        ("ΣΊΣΥΦΟΣ", "Σίσυφος"),
        ("trailing \r", "trailing"),
    ],
)
def test_normal_forms_ignore_case_punctuation_spacing_and_unicode_form(one: str, other: str) -> None:
    assert normal_forms([one]) == normal_forms([other])


@pytest.mark.parametrize(
    ("one", "other"), [("a b", "a c"), ("schon", "schön"), ("C++", "C"), ("5 €", "5 $"), ("कि", "की"), ("a", "a b")]
)
def test_normal_forms_keep_letters_marks_digits_and_symbols(one: str, other: str) -> None:
    assert normal_forms([one]) != normal_forms([other])


@pytest.mark.slow
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"))))
def test_normal_forms_are_independent_of_neighboring_lines(lines: list[str]) -> None:
    assert normal_forms(lines) == [form for line in lines for form in normal_forms([line])]
