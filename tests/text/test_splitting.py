"""Split points of texts, and phrases in texts."""

from itertools import accumulate

import pytest

from nmt.text.splitting import Part, contains_phrase, join_texts, split_line, split_text


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
        ("ba a a", "a a", False, True),  # two occurrences that overlap
        ("हिन्दी भाषा", "हिन्द", False, False),
        ("हिन्दी भाषा", "भाषा", False, True),
        ("हिन्दीभाषा", "भाषा", False, False),
        ("ภาษาไทยดี", "ภาษาไทย", False, True),
        ("می\u200cرود", "می", False, False),
        ("می\u200cرود", "رود", False, False),
        ("می\u200c رود", "می", False, True),
        ("👨\u200d👩", "👩", False, True),
        ("ein Cafe\u0301", "Caf\u00e9", False, True),
        ("ein Caf\u00e9", "Ca\u00adfe\u0301", False, True),
    ],
)
def test_a_phrase_is_not_part_of_a_longer_word(text: str, phrase: str, ignores_case: bool, expected: bool) -> None:
    assert contains_phrase(text, phrase, ignores_case=ignores_case) is expected


@pytest.mark.parametrize("run", [".", ".-", "\u3002", "\u0948.", "\u3002 "])
def test_long_runs_of_punctuation_take_linear_time(run: str) -> None:
    """With quadratic time, the test would take minutes."""
    text = f"x{run * 50_000}5"
    assert "".join(split_text(text, lambda part: len(part) < 30_000)).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Is it? No 1.5 is.", ["Is it?", "No 1.5 is."]),
        ('He said "no.") Then, he left', ['He said "no.")', "Then, he left"]),
        ("\u662f\u3002)\u4e0d\u662f\u4e0d\u662f", ["\u662f\u3002)", "\u4e0d\u662f\u4e0d\u662f"]),
        ("彼女は言った。「はい、そうです。」", ["彼女は言った。", "「はい、そうです。」"]),
        ("来ました。\uff08嘘だ。帰った\uff09", ["来ました。", "\uff08嘘だ。帰った\uff09"]),
        ("他说。“你好。”", ["他说。", "“你好。”"]),
        ("5\uff0e5\uff05\u3060\uff0e\u6b21\uff0e", ["5\uff0e5\uff05\u3060\uff0e", "\u6b21\uff0e"]),
        ("यह, श्लोक है॥ यह, दूसरा है", ["यह, श्लोक है॥", "यह, दूसरा है"]),
        ("Πώς, δες; Θέλω, δες", ["Πώς, δες;", "Θέλω, δες"]),
    ],
)
def test_sentence_ends_are_runs_of_punctuation(text: str, expected: list[str]) -> None:
    assert split_text(text, lambda part: part != text) == expected


def test_equal_parts_start_where_each_of_them_occurs() -> None:
    parts = split_line("a. a. b.", lambda text: [*text.encode()], 2)
    assert parts == [Part("a.", 0, [97, 46]), Part("a.", 3, [97, 46]), Part("b.", 6, [98, 46])]


def test_a_character_with_too_many_tokens_is_truncated() -> None:
    first, second = (Part("€", start, [*"€".encode()][:2]) for start in (0, 1))
    assert split_line("€€", lambda text: [*text.encode()], 2) == [first, second]
    assert split_line("", lambda text: [*text.encode()], 2) == []


@pytest.mark.parametrize(
    "characters",
    [
        "👨‍👩‍👧‍👦 👍🏽 ❤️ 👩‍🚀 1️⃣",
        "🇩🇪 🇫🇷 🇬🇧 🇺🇸 🇯🇵",
        "ที่ นี่ น้ำ ใจ แก้",
        "ខ្ញុំ ស្រ ឡា ញ់ ភា",
        "ကျော် င်း ဗျာ",
        "क्षि म्य स त्त्व ज्ञा",
        "e\u0301\u0323 می\u200c",
    ],
)
def test_characters_of_several_code_points_are_not_split(characters: str) -> None:
    text = characters.replace(" ", "")
    bounds = list(accumulate(map(len, characters.split())))
    parts = split_text(text, lambda part: len(part) <= max(map(len, characters.split())))
    assert "".join(parts) == text
    assert set(accumulate(map(len, parts))) <= set(bounds)


@pytest.mark.parametrize(
    ("text", "limit", "parts"),
    [
        ("e\u0301x", 2, ["e\u0301", "x"]),
        ("\U0001f44d\U0001f3fda", 2, ["\U0001f44d\U0001f3fd", "a"]),
        ("xe\u0301", 2, ["x", "e\u0301"]),
    ],
)
def test_the_last_boundary_between_characters_is_used(text: str, limit: int, parts: list[str]) -> None:
    assert split_text(text, lambda part: len(part) <= limit) == parts


@pytest.mark.slow
@pytest.mark.parametrize(
    "unit", ["\u3002(", "\u300c\uff01", "(\u3002", "\uff01\uff08", "\u3002(a", "\u3002((((((a", "a\u3002("]
)
def test_alternating_marks_and_brackets_are_split_in_linear_time(unit: str) -> None:
    """With a split point only at the start of a run, each level of the recursion would remove one mark."""
    for text in (unit * 20_000, unit * 20_000 + "a"):
        parts = split_text(text, lambda part: len(part) <= 200)
        assert "".join(parts) == text and max(map(len, parts)) <= 200


@pytest.mark.slow
@pytest.mark.parametrize("run", ["\u0301", "\U0001f468\u200d", "\U0001f1e6"])
def test_long_sequences_are_split_in_linear_time(run: str) -> None:
    """With quadratic time, the test would take minutes."""
    text = "a" + run * 50_000
    parts = split_text(text, lambda part: len(part) <= 30)
    assert "".join(parts) == text
    assert max(map(len, parts)) <= 30


@pytest.mark.slow
def test_many_parts_are_joined_in_linear_time() -> None:
    """With quadratic time, the test would take minutes."""
    joined, first_words = join_texts(["A part of a line.", "\u4e00\u3002", "\u4e8c", ""] * 50_000)
    assert joined.startswith("A part of a line. \u4e00\u3002\u4e8c A part")
    assert first_words[:9] == [0, 5, 5, 6, 6, 11, 11, 12, 12]
    assert first_words[-1] == len(joined.split()) == 300_000
