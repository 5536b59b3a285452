"""Scores by length and word frequency, against counts by hand."""

from collections import Counter

import pytest

from nmt.evaluate.breakdown import WordScore, length_classes, score_words


def test_length_classes_sort_by_length() -> None:
    lengths = [0, 1, 10, 11, 20, 21, 30, 31, 40, 41, 50, 51, 60, 61, 500]
    names = [name for (name,) in length_classes([" ".join(["w"] * length) for length in lengths])]
    assert names[:5] == ["0 to 10", "0 to 10", "0 to 10", "11 to 20", "11 to 20"]
    assert names[-3:] == ["51 to 60", "over 60", "over 60"]
    assert names == sorted(names)


def test_words_match_by_class_and_sentence() -> None:
    frequencies = Counter({"the": 5000, "cat": 7, "dog": 3, "sat": 2, "mat": 1})
    hypotheses = ["the the cat sat", "mat x dog"]
    references = ["the cat sat down", "mat mat y"]
    assert score_words(hypotheses, references, frequencies, str.split) == [
        WordScore("0", in_reference=2, in_translation=1, matched=0),  # down, y; x
        WordScore("1", in_reference=2, in_translation=1, matched=1),  # mat
        WordScore("2", in_reference=1, in_translation=1, matched=1),  # sat
        WordScore("3", in_reference=0, in_translation=1, matched=0),  # dog
        WordScore("5 to 9", in_reference=1, in_translation=1, matched=1),  # cat
        WordScore("1,000 or more", in_reference=1, in_translation=2, matched=1),  # the: one too many
    ]


def test_the_f_measure_is_the_harmonic_mean_of_precision_and_recall() -> None:
    score = WordScore("0", in_reference=8, in_translation=4, matched=3)
    assert score.f_measure == pytest.approx(2 * 75 * 37.5 / (75 + 37.5))
    assert WordScore("0", 0, 0, 0).f_measure == 0.0


@pytest.mark.parametrize(
    ("frequency", "name"),
    [
        (0, "0"),
        (1, "1"),
        (4, "4"),
        (5, "5 to 9"),
        (9, "5 to 9"),
        (10, "10 to 99"),
        (100, "100 to 999"),
        (999, "100 to 999"),
        (1000, "1,000 or more"),
    ],
)
def test_frequency_classes_are_those_of_compare_mt(frequency: int, name: str) -> None:
    (score,) = score_words(["w"], ["w"], {"w": frequency}, str.split)
    assert score.frequency == name


def test_word_in_another_sentence_does_not_match() -> None:
    (score,) = score_words(["a", "b"], ["b", "a"], {}, str.split)
    assert (score.matched, score.in_reference, score.in_translation) == (0, 2, 2)
