"""Expected utilities by hand, and sacreBLEU's sentence scores as they are."""

import math

import pytest
import sacrebleu

from nmt.decode.bayes_risk import expected_utilities, relative_probabilities, sentence_utility


def test_expected_utility_is_the_weighted_mean_over_all_candidates() -> None:
    score = {("a", "a"): 100, ("a", "b"): 10, ("b", "a"): 30, ("b", "b"): 100}
    found = expected_utilities(["a", "b", "a"], [1.0, 2.0, 1.0], lambda h, r: score[h, r])
    assert found == pytest.approx([0.5 * 100 + 0.5 * 10, 0.5 * 30 + 0.5 * 100, 55])


def test_the_outlier_loses_even_if_it_is_most_probable() -> None:
    texts = ["Purple ideas sleep.", "A man rides a red bike.", "A man rides a bike.", "A man is riding a red bike."]
    utilities = expected_utilities(texts, [0.3, 0.25, 0.25, 0.2], sentence_utility("chrf"))
    assert max(range(4), key=utilities.__getitem__) in (1, 2)
    assert min(range(4), key=utilities.__getitem__) == 0


def test_utilities_are_sacrebleus() -> None:
    hypothesis, reference = "A man rides a red bike.", "A man is riding a bike."
    assert sentence_utility("chrf")(hypothesis, reference) == sacrebleu.sentence_chrf(hypothesis, [reference]).score
    assert sentence_utility("bleu")(hypothesis, reference) == sacrebleu.sentence_bleu(hypothesis, [reference]).score


def test_probabilities_of_very_improbable_candidates_do_not_vanish() -> None:
    assert relative_probabilities([-2000.0, -2000.0 + math.log(0.5)]) == pytest.approx([1.0, 0.5])
