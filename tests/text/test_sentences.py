"""Sentence splitting against sentences that were separated by hand."""

from pathlib import Path

import pytest

from nmt.text.sentences import split_sentences

# One paragraph per line. | separates its sentences; in the text it is a space, or nothing after wide punctuation.
CASES = (Path(__file__).parent / "sentences.txt").read_text(encoding="utf-8").strip().split("\n")
WIDE_MARKS = set("\u3002\uff01\uff1f\uff61\uff0e")


@pytest.mark.parametrize("case", CASES)
def test_paragraphs_are_split_into_the_reference_sentences(case: str) -> None:
    sentences = case.split("|")
    text = ""
    for sentence in sentences:
        text += ("" if not text or set(text[-2:]) & WIDE_MARKS else " ") + sentence
    assert split_sentences(text) == sentences


def test_cases_are_many_and_distinct() -> None:
    assert len(set(CASES)) == len(CASES) > 120


def test_only_white_space_is_lost() -> None:
    text = "  One two.  Three!\u00a0Four?\tFive \u3000 six. "
    assert split_sentences(text) == ["One two.", "Three!", "Four?", "Five \u3000 six."]
    assert split_sentences(" \t ") == split_sentences("") == []
    assert split_sentences("...") == ["..."]
    assert split_sentences("\u1000\u104b\u1001\u104b") == ["\u1000\u104b", "\u1001\u104b"]  # Burmese
    paragraph = "".join(CASES).replace("|", " ")
    assert "".join("".join(split_sentences(paragraph)).split()) == "".join(paragraph.split())


def test_long_runs_of_marks_take_linear_time() -> None:
    """With quadratic time, this would take a minute."""
    for mark in (*".?\u2026\u061f\u0964", "\u03b1;", ". \U0001f600"):
        text = f"{mark * 200_000}x"
        assert split_sentences(text) == [text]
