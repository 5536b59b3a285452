"""The exact line search against brute force, and tuning with known optima."""

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from nmt.evaluate.sentence_counts import sentence_counts
from nmt.rerank.corpus_counts import CorpusMetric, Counts
from nmt.rerank.mert import Floats, TuningSet, search_line, tune

WORDS = np.array(["a", "b", "c", "d", "e", "f"])


def counts_of(metric: CorpusMetric, texts: list[str], reference: str) -> Counts:
    """Return the counts of candidates of one reference."""
    return sentence_counts(BLEU() if metric == "bleu" else CHRF(), texts, [[reference] * len(texts)])


def random_lists(seed: int, metric: CorpusMetric, whole_numbers: bool = False) -> TuningSet:
    """Return six random lists of one to five candidates with three features."""
    random = np.random.Generator(np.random.PCG64(seed))
    features, counts = [], []
    for _ in range(6):
        size = random.integers(1, 6)
        texts = [" ".join(random.choice(WORDS, random.integers(1, 9))) for _ in range(size)]
        counts.append(counts_of(metric, texts, " ".join(random.choice(WORDS, 6))))
        values = random.integers(-3, 4, (size, 3)).astype(float) if whole_numbers else random.normal(size=(size, 3))
        features.append(values)
    return TuningSet.from_lists(features, counts, metric)


def best_by_trying(lists: TuningSet, weights: Floats, direction: Floats) -> float:
    """Return the highest score over all intervals between crossings of any two candidates."""
    offsets, slopes = lists.features @ weights, lists.features @ direction
    crossings = set()
    for row in range(len(offsets)):
        for i, j in combinations(np.flatnonzero(lists.exists[row]), 2):
            if slopes[row, i] != slopes[row, j]:
                crossings.add((offsets[row, i] - offsets[row, j]) / (slopes[row, j] - slopes[row, i]))
    ordered = sorted(crossings) or [0.0]
    steps = [ordered[0] - 1, *((a + b) / 2 for a, b in pairwise(ordered) if b - a > 1e-7)]
    return max(lists.score(weights + step * direction) for step in [*steps, ordered[-1] + 1])


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["bleu", "chrf"])
@pytest.mark.parametrize("whole_numbers", [False, True])
def test_the_line_search_finds_the_best_interval(metric: CorpusMetric, whole_numbers: bool) -> None:
    """Integers make many candidates and sentences cross at the same step."""
    num_improved = 0
    for seed in range(30):
        lists = random_lists(seed, metric, whole_numbers)
        random = np.random.Generator(np.random.PCG64(1000 + seed))
        weights, direction = random.normal(size=(2, 3))
        if whole_numbers:
            weights, direction = np.array([1.0, 0.0, 1.0]), np.array([0.0, 1.0, -(2**0.5)])
        step, score = search_line(lists, weights, direction)
        assert score == pytest.approx(best_by_trying(lists, weights, direction), abs=1e-9)
        assert lists.score(weights + step * direction) == pytest.approx(score, abs=1e-9)
        num_improved += score > lists.score(weights) + 1e-9
    assert num_improved > 10


def test_a_line_without_changes_has_step_zero() -> None:
    lists = random_lists(0, "bleu")
    weights = np.array([1.0, 2.0, 3.0])
    assert search_line(lists, weights, np.zeros(3)) == (0.0, lists.score(weights))


def test_rounded_crossings_at_the_same_step_keep_their_order() -> None:
    """With one feature, all candidates cross at the same step, up to rounding."""
    for seed in range(300):
        lists = random_lists(seed, "bleu")
        lists = replace(lists, features=lists.features[:, :, :1])
        weights, direction = np.random.Generator(np.random.PCG64(seed)).normal(size=(2, 1))
        with np.errstate(all="raise"):  # counts would be negative between swapped crossings
            search_line(lists, weights, direction)


def test_tuning_finds_the_informative_feature() -> None:
    """One candidate of each list is the reference, marked by a small feature among noisy ones."""
    random = np.random.Generator(np.random.PCG64(3))
    features, counts = [], []
    for _ in range(20):
        reference = " ".join(random.choice(WORDS, 9))
        texts = [" ".join(random.choice(WORDS, 9)) for _ in range(4)]
        correct = random.integers(4)
        texts[correct] = reference
        counts.append(counts_of("bleu", texts, reference))
        values = random.normal(size=(4, 3))
        values[:, 1] = [0.001 * (index == correct) for index in range(4)]
        features.append(values)
    lists = TuningSet.from_lists(features, counts, "bleu")
    tuned = tune(lists)
    assert lists.score(np.array([1.0, 0.0, 0.0])) == tuned.before < 60
    assert tuned.after == lists.score(tuned.weights) == pytest.approx(100.0)
    assert np.abs(tuned.weights).sum() == pytest.approx(1.0)


@pytest.mark.slow
def test_restarts_only_add_to_the_search_and_are_deterministic() -> None:
    improved = set()
    for seed in range(6):
        lists = random_lists(seed, "bleu")
        tuned = {restarts: tune(lists, restarts=restarts, seed=7) for restarts in (0, 1, 3)}
        scores = [tuned[0].before, *(found.after for found in tuned.values())]
        assert scores == sorted(scores)
        improved |= {number for number, (before, after) in enumerate(pairwise(scores)) if after > before}
        np.testing.assert_array_equal(tuned[3].weights, tune(lists, restarts=3, seed=7).weights)
    assert improved == {0, 1, 2}, "each restart begins elsewhere"


def test_tuning_of_equal_features_and_single_candidates_keeps_the_score() -> None:
    counts = [counts_of("bleu", ["a b", "a c"], "a b"), counts_of("bleu", ["a"], "a")]
    lists = TuningSet.from_lists([np.ones((2, 2)), np.ones((1, 2))], counts, "bleu")
    tuned = tune(lists)
    assert tuned.after == tuned.before
    assert np.isfinite(tuned.weights).all()


@pytest.mark.slow
def test_tuning_does_not_depend_on_the_scale_of_features() -> None:
    """Powers of two change no digit. Without scaling, the largest feature would dominate random directions."""
    scale = np.array([2.0**-6, 1.0, 2.0**9])
    for seed in range(3):
        lists = random_lists(seed, "bleu")
        plain, scaled = (tune(one, restarts=2) for one in (lists, replace(lists, features=lists.features * scale)))
        weights = scaled.weights * scale
        assert scaled.after == plain.after
        np.testing.assert_allclose(weights / np.abs(weights).sum(), plain.weights, rtol=1e-12)
