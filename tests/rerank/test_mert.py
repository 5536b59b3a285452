"""The exact line search against all intervals tried one by one, and tuning against what must be found."""

from itertools import combinations, pairwise

import numpy as np
import pytest

from nmt.rerank.corpus_counts import CorpusMetric, sentence_counts
from nmt.rerank.mert import Floats, TuningSet, search_line, tune

WORDS = np.array(["a", "b", "c", "d", "e", "f"])


def random_lists(seed: int, metric: CorpusMetric, whole_numbers: bool = False) -> TuningSet:
    """A few sentences of one to five candidates with random text and three features."""
    random = np.random.Generator(np.random.PCG64(seed))
    features, counts = [], []
    for _ in range(6):
        size = random.integers(1, 6)
        texts = [" ".join(random.choice(WORDS, random.integers(1, 9))) for _ in range(size)]
        counts.append(sentence_counts(metric, texts, " ".join(random.choice(WORDS, 6))))
        values = random.integers(-3, 4, (size, 3)).astype(float) if whole_numbers else random.normal(size=(size, 3))
        features.append(values)
    return TuningSet.from_lists(features, counts, metric)


def best_by_trying(lists: TuningSet, weights: Floats, direction: Floats) -> float:
    """The highest score between any two places where any two candidates of a sentence are equal."""
    offsets, slopes = lists.features @ weights, lists.features @ direction
    places = set()
    for row in range(len(offsets)):
        there = np.flatnonzero(lists.exists[row])
        for i, j in combinations(there, 2):
            if slopes[row, i] != slopes[row, j]:
                places.add((offsets[row, i] - offsets[row, j]) / (slopes[row, j] - slopes[row, i]))
    ordered = sorted(places) or [0.0]
    steps = [ordered[0] - 1, *((a + b) / 2 for a, b in pairwise(ordered) if b - a > 1e-7)]
    return max(lists.score(weights + step * direction) for step in [*steps, ordered[-1] + 1])


@pytest.mark.parametrize("metric", ["bleu", "chrf"])
@pytest.mark.parametrize("whole_numbers", [False, True])
def test_the_line_search_finds_the_best_interval(metric: CorpusMetric, whole_numbers: bool) -> None:
    """With whole numbers, many candidates and many sentences change at the very same place."""
    gains = 0
    for seed in range(60):
        lists = random_lists(seed, metric, whole_numbers)
        random = np.random.Generator(np.random.PCG64(1000 + seed))
        weights, direction = random.normal(size=(2, 3))
        if whole_numbers:
            weights, direction = np.array([1.0, 0.0, 1.0]), np.array([0.0, 1.0, -(2**0.5)])
        step, score = search_line(lists, weights, direction)
        assert score == pytest.approx(best_by_trying(lists, weights, direction), abs=1e-9)
        assert lists.score(weights + step * direction) == pytest.approx(score, abs=1e-9)
        gains += score > lists.score(weights) + 1e-9
    assert gains > 20


def test_a_line_along_which_nothing_changes_stays() -> None:
    lists = random_lists(0, "bleu")
    weights = np.array([1.0, 2.0, 3.0])
    assert search_line(lists, weights, np.zeros(3)) == (0.0, lists.score(weights))


def test_tuning_finds_the_feature_that_tells_the_truth() -> None:
    """One candidate of each list is the reference, which a feature says on a scale of a thousandth; others disturb."""
    random = np.random.Generator(np.random.PCG64(3))
    features, counts = [], []
    for _ in range(20):
        reference = " ".join(random.choice(WORDS, 9))
        texts = [" ".join(random.choice(WORDS, 9)) for _ in range(4)]
        right = random.integers(4)
        texts[right] = reference
        counts.append(sentence_counts("bleu", texts, reference))
        values = random.normal(size=(4, 3))
        values[:, 1] = [0.001 * (place == right) for place in range(4)]
        features.append(values)
    lists = TuningSet.from_lists(features, counts, "bleu")
    start = np.array([1.0, 0.0, 0.0])
    weights, score = tune(lists, start)
    assert lists.score(start) < 60
    assert score == lists.score(weights) == pytest.approx(100.0)
    assert np.abs(weights).sum() == pytest.approx(1.0)


def test_tuning_is_never_worse_than_its_start_and_repeats_with_the_seed() -> None:
    for seed in range(5):
        lists = random_lists(seed, "bleu")
        start = np.array([1.0, 0.0, 0.0])
        weights, score = tune(lists, start, restarts=3, seed=7)
        assert score >= lists.score(start)
        again, _ = tune(lists, start, restarts=3, seed=7)
        np.testing.assert_array_equal(weights, again)
        alone, _ = tune(lists, start, restarts=0, seed=7)
        assert lists.score(alone) <= score + 1e-9


def test_equal_features_and_single_candidates_are_no_trouble() -> None:
    counts = [sentence_counts("bleu", ["a b", "a c"], "a b"), sentence_counts("bleu", ["a"], "a")]
    lists = TuningSet.from_lists([np.ones((2, 2)), np.ones((1, 2))], counts, "bleu")
    weights, score = tune(lists, np.array([1.0, 0.0]))
    assert score == lists.score(np.array([1.0, 0.0]))
    assert np.isfinite(weights).all()
