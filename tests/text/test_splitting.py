"""Phrases in texts."""

import pytest

from nmt.text.splitting import contains_phrase


@pytest.mark.parametrize(
    ("text", "phrase", "ignores_case", "expected"),
    [
        ("Der Hund bellt", "Hund", False, True),
        ("Der Hund bellt", "hund", False, False),
        ("Der Hund bellt", "hund", True, True),
        ("Der  Hund", "Der Hund", False, True),
        ("Der Hundekorb", "Hund", False, False),
        ("大狗", "狗", False, True),
        ("狗dog", "dog", False, True),
        ("dog狗", "dog", False, True),
        ("狗dogs hotdog狗", "dog", False, False),
        ("狗dogs", "狗dog", False, False),
        ("狗dog狗", "狗dog", False, True),
        ("hotdog狗", "dog狗", False, False),
        ("hotdog dog", "dog", False, True),
        ("ein Cafe\u0301", "Caf\u00e9", False, True),
        ("ein Caf\u00e9", "Ca\u00adfe\u0301", False, True),
    ],
)
def test_phrases_in_texts(text: str, phrase: str, ignores_case: bool, expected: bool) -> None:
    assert contains_phrase(text, phrase, ignores_case=ignores_case) is expected
