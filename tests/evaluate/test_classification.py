"""Metrics of classifiers against their definitions, example by example."""

import math

import numpy as np
import pytest

from nmt.evaluate.classification import calibration_error, score_classes, score_tables

NAMES = ("a", "b", "c")
# Predictions: a a b b c a; labels: a b b b a a.
PROBABILITIES = np.array(
    [[0.8, 0.1, 0.1], [0.5, 0.4, 0.1], [0.1, 0.9, 0.0], [0.2, 0.6, 0.2], [0.3, 0.1, 0.6], [0.95, 0.05, 0.0]]
)
LABELS = np.array([0, 1, 1, 1, 0, 0])


def test_scores_of_six_examples_equal_the_hand_computed_ones() -> None:
    score = score_classes(PROBABILITIES, LABELS, NAMES)
    assert score.accuracy == pytest.approx(4 / 6)
    assert score.majority == pytest.approx(3 / 6)
    # a: 2 of 3 predicted, 2 of 3 labels; b: 2 of 2, 2 of 3; c: 0 of 1, no label.
    assert [one.f1 for one in score.classes] == pytest.approx([2 / 3, 4 / 5, 0])
    assert [(one.precision, one.recall) for one in score.classes[:2]] == [(2 / 3, 2 / 3), (1, pytest.approx(2 / 3))]
    assert score.macro_f1 == pytest.approx((2 / 3 + 4 / 5 + 0) / 3)
    assert score.nll == pytest.approx(-sum(map(math.log, [0.8, 0.4, 0.9, 0.6, 0.3, 0.95])) / 6)
    assert score.confusion == ((2, 0, 1), (1, 2, 0), (0, 0, 0))


def test_classes_that_never_occur_do_not_count() -> None:
    score = score_classes(PROBABILITIES[:4], LABELS[:4], NAMES)
    assert score.macro_f1 == pytest.approx((2 / 3 + 4 / 5) / 2)
    assert score.majority == 3 / 4


def test_the_nll_of_a_label_of_probability_0_is_finite() -> None:
    score = score_classes(np.eye(3)[[0, 0]], np.array([0, 1]), NAMES)
    assert score.nll == pytest.approx(-math.log(np.finfo(np.float64).tiny) / 2)


def expected_calibration_error(confidence: list[float], correct: list[bool], bins: int) -> float:
    """The definition: bins (k / bins, (k + 1) / bins]."""
    total = 0.0
    for k in range(bins):
        members = [i for i, value in enumerate(confidence) if k / bins < value <= (k + 1) / bins]
        if members:
            accuracy = sum(correct[i] for i in members) / len(members)
            mean = sum(confidence[i] for i in members) / len(members)
            total += len(members) / len(confidence) * abs(accuracy - mean)
    return total


def test_calibration_error_is_that_of_the_definition() -> None:
    rng = np.random.default_rng(1)
    confidence = rng.uniform(0.2, 1.0, 500)
    correct = rng.uniform(size=500) < confidence**2
    expected = expected_calibration_error(confidence.tolist(), correct.tolist(), 15)
    assert 0.1 < expected < 0.3
    assert calibration_error(confidence, correct) == pytest.approx(expected)


def test_a_confidence_at_the_bound_of_two_bins_is_in_the_lower_one() -> None:
    confidence, correct = [0.6, 0.61], [True, False]
    expected = expected_calibration_error(confidence, correct, 15)
    assert expected == pytest.approx((0.4 + 0.61) / 2)
    assert calibration_error(np.array(confidence), np.array(correct)) == pytest.approx(expected)


def test_the_calibration_error_of_a_diverged_classifier_is_nan() -> None:
    assert math.isnan(calibration_error(np.array([math.nan, 0.5]), np.array([True, False])))


def test_the_calibration_error_of_fully_confident_classifiers_is_their_error_rate() -> None:
    assert calibration_error(np.ones(4), np.array([True] * 4)) == 0
    assert calibration_error(np.ones(4), np.array([True, False, False, False])) == pytest.approx(0.75)


def test_tables_show_all_classes_and_the_majority() -> None:
    overall, classes = score_tables("reviews", score_classes(PROBABILITIES, LABELS, NAMES))
    assert overall.rows[0][0] == "0.6667"
    assert overall.rows[0][-1] == "0.5000"
    assert classes.rows[1] == ("b", "3", "1.0000", "0.6667", "0.8000", "1", "2", "0")


def test_tables_of_many_classes_list_the_most_frequent_errors() -> None:
    names, labels = [f"class {n}" for n in range(30)], np.array([7] * 10 + [8])
    predictions = [7, 7, 1, 2, 2, 3, 3, 3, 4, 4, 8]
    _, classes = score_tables("intents", score_classes(np.eye(30)[predictions], labels, names))
    assert classes.header[5:] == ("most frequent errors",)
    assert [row[5] for row in classes.rows[7:9]] == ["class 3 (3), class 2 (2), class 4 (2)", ""]
