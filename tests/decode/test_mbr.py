"""Expected utilities by hand and in the translator, and pairwise scores against sacreBLEU."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
from hypothesis import example, given
from hypothesis import strategies as st

from nmt.decode.mbr import expected_utilities, pairwise_bleu, pairwise_chrf, relative_probabilities
from nmt.decode.translator import Translator
from nmt.recipe import DecodeRecipe
from tests.decode.test_fusion import LINES, write_model
from tests.vectors import load_vectors


def test_expected_utility_is_the_weighted_mean_over_all_candidates() -> None:
    score = {("a", "a"): 100.0, ("a", "b"): 10.0, ("b", "a"): 30.0, ("b", "b"): 100.0}

    def utility(texts: Sequence[str]) -> np.ndarray:
        return np.array([[score[h, r] for r in texts] for h in texts])

    found = expected_utilities(["a", "b", "a"], [1.0, 2.0, 1.0], utility)
    assert found == pytest.approx([0.5 * 100 + 0.5 * 10, 0.5 * 30 + 0.5 * 100, 55])


def test_the_outlier_loses_even_if_it_is_most_probable() -> None:
    texts = ["Purple ideas sleep.", "A man rides a red bike.", "A man rides a bike.", "A man is riding a red bike."]
    utilities = expected_utilities(texts, [0.3, 0.25, 0.25, 0.2], pairwise_chrf)
    assert np.argmax(utilities) in (1, 2)
    assert np.argmin(utilities) == 0


@pytest.mark.parametrize("sampling", [False, True])
def test_samples_count_by_frequency_and_n_best_lists_by_probability(sampling: bool, tmp_path: Path) -> None:
    decode = DecodeRecipe(n_best=4, sampling=True) if sampling else DecodeRecipe(n_best=4)
    translator = Translator.load(write_model(tmp_path / "model"), "cpu", "fp32", decode)
    (candidates,) = translator.translate_n_best(LINES[:1])
    weights = [1.0 if sampling else math.exp(one.log_prob) for one in candidates]
    expected = expected_utilities([one.text for one in candidates], weights, pairwise_chrf)
    (ranked,) = translator.with_decode(DecodeRecipe(mbr_metric="chrf")).translate_n_best(LINES[:1], 4)
    assert [one.score for one in ranked] == pytest.approx(sorted(expected, reverse=True))
    assert len(set(expected)) > 1


WORDS = st.sampled_from(["a", "an", "banana", "rides", "red", "bike.", "Bike", "u.s.", "3,5", "(so)", "Straße", "我"])
TEXTS = st.lists(st.lists(WORDS, max_size=12).map(" ".join) | st.text(max_size=9), min_size=1, max_size=5)


@pytest.mark.slow
@given(TEXTS)
@example(["", " ", "a", "a a a a a", "aaaa aaaa", "a b c d e", "a\n", "a-\n", "a -"])
def test_pairwise_scores_equal_sacrebleu(texts: list[str]) -> None:
    chrf, bleu = pairwise_chrf(texts), pairwise_bleu(texts)
    for row, hypothesis in enumerate(texts):
        for column, reference in enumerate(texts):
            assert chrf[row, column] == sacrebleu.sentence_chrf(hypothesis, [reference]).score
            assert bleu[row, column] == sacrebleu.sentence_bleu(hypothesis, [reference]).score


def test_small_probabilities_do_not_underflow() -> None:
    assert relative_probabilities([-2000.0, -2000.0 + math.log(0.5)]) == pytest.approx([1.0, 0.5])


def test_brevity_penalty_equals_sockeyes() -> None:
    """Sockeye's weight * min(0, 1 - reference / hypothesis) is the log of BLEU's brevity penalty if the weight is 1.

    Search has no such penalty, because it needs an estimate of the reference length. If all words of a hypothesis are
    right, its BLEU is the brevity penalty alone.
    """
    table = load_vectors("sockeye.json")["brevity_penalty_log"]
    rows = [(3.5, *row) for row in zip(*table["weight3.5"].values(), strict=True)]
    for weight, hypothesis, reference, log_penalty in [*rows, (2.0, 3, 5, table["weight2_hyp3_ref5"])]:
        words = [f"w{index}" for index in range(100)]
        bleu = pairwise_bleu([" ".join(words[:hypothesis]), " ".join(words[:reference])])[0, 1]
        assert weight * math.log(bleu / 100) == pytest.approx(log_penalty, abs=1e-9)
