"""Tables of results: marks of significance, order of rows, and notes."""

import pytest

from nmt.evaluate.breakdown import WordScore
from nmt.evaluate.metrics import Score
from nmt.evaluate.result_tables import Evaluation, comparison_tables, score_notes
from nmt.evaluate.significance import Comparison, PairedScore


@pytest.mark.parametrize(
    ("p", "difference", "cell"),
    [(0.0499, 1.0, "0.0499*"), (0.0499, -1.0, "0.0499*"), (0.05, 1.0, "0.0500 "), (0.01, 0.0, "0.0100 ")],
)
def test_a_star_marks_differences_with_p_below_5_percent(p: float, difference: float, cell: str) -> None:
    """Bootstrap may give a small p to systems of equal score, which do not differ."""
    system = PairedScore("b", 30.0, difference=difference, p_bootstrap=p, p_randomization=p)
    (table,) = comparison_tables([Comparison("bleu", (), (PairedScore("a", 30.0), system))])
    assert table.header[-2:] == ("p, bootstrap", "p, randomization")
    assert table.rows[1][-2:] == (cell, cell)


def test_words_are_sorted_by_frequency_in_the_training_text() -> None:
    common, rare, middle = (WordScore(name, 2, 2, 1) for name in ("1,000 or more", "2", "10 to 99"))
    evaluation = Evaluation({"a": [Score("bleu", 1.0, "")]}, by_frequency={"a": [common, rare], "b": [middle]})
    _, table = evaluation.tables()
    assert table.rows == (("2", "2", "50.00", ""), ("10 to 99", "2", "", "50.00"), ("1,000 or more", "2", "50.00", ""))


def test_the_note_on_intervals_has_the_largest_distance_of_mean_and_score() -> None:
    near, far = (Score("bleu", 30.0, "", mean=mean, interval=1.0) for mean in (29.9, 30.4))
    (note,) = score_notes([near, far])
    assert "within 0.40 of the score" in note
