"""Intervals over seeds and sentences: coverage in simulations, and scores against sacreBLEU."""

import math

import numpy as np
import pytest

from nmt.evaluate.metrics import make_scorer, score_corpus
from nmt.experiments.intervals import Estimate, RunScores, estimate, score_runs

SENTENCES, RESAMPLES = 150, 200


def mean_scores(values: np.ndarray, weights: np.ndarray) -> RunScores:
    """Scores of runs as means over sentences of `values` (runs, sentences)."""
    return RunScores(values.mean(axis=1), values @ weights.T / SENTENCES)


@pytest.mark.parametrize(
    ("runs", "of_seed", "of_sentence", "of_both"),
    [(2, 0.5, 0.5, 0.3), (3, 0.0, 0.1, 0.8), (5, 0.3, 0.6, 0.3)],
)
def test_intervals_contain_the_true_difference_in_95_percent_of_experiments(
    runs: int, of_seed: float, of_sentence: float, of_both: float
) -> None:
    """The last three parameters are standard deviations of a run's score by source."""
    generator, experiments, true = np.random.default_rng(7), 1000, 0.4
    weights = generator.multinomial(SENTENCES, np.full(SENTENCES, 1 / SENTENCES), size=RESAMPLES)
    root = math.sqrt(SENTENCES)
    contained = 0
    for _ in range(experiments):
        shared = generator.normal(0, root, SENTENCES)  # hard sentences are hard for both
        systems = []
        for mean in (true, 0.0):
            own = generator.normal(0, of_sentence * root, SENTENCES)
            each = generator.normal(0, of_both * root, (runs, SENTENCES))
            seeds = generator.normal(0, of_seed, (runs, 1))
            systems.append(mean_scores(mean + shared + own + each + seeds, weights))
        found = estimate(*systems)
        contained += abs(found.value - true) <= found.half_width
    assert 0.93 <= contained / experiments <= 0.97


def test_equal_scores_have_an_interval_of_zero() -> None:
    same = RunScores(np.full(3, 30.0), np.full((3, 50), 30.0))
    assert estimate(same, same) == Estimate(0.0, 0.0)
    assert not estimate(same, same).is_significant
    better = RunScores(np.full(3, 31.0), np.full((3, 50), 31.0))
    assert estimate(better, same).is_significant


def test_one_seed_has_no_interval() -> None:
    one = RunScores(np.array([31.0]), np.full((1, 50), 31.0))
    other = RunScores(np.array([30.0]), np.full((1, 50), 30.0))
    found = estimate(one, other)
    assert found.value == 1.0 and math.isnan(found.half_width) and not found.is_significant
    assert math.isnan(one.deviation)


@pytest.mark.parametrize("metric", ["bleu", "chrf", "ter", "bleu-tokenized-lc"])
def test_scores_and_resampling_intervals_equal_those_of_sacrebleu(metric: str) -> None:
    generator = np.random.default_rng(1)
    words = ["der", "die", "das", "Hund", "Katze", "sieht", "läuft", "und", "nicht", "heute"]
    refs = [" ".join(generator.choice(words, 8)) for _ in range(120)]
    runs = [[" ".join(w if generator.random() < 0.7 else "x" for w in ref.split()) for ref in refs] for _ in range(2)]
    scores = score_runs(make_scorer(metric, tgt_lang="de"), runs, [refs], 1000)
    for lines, whole, resampled in zip(runs, scores.whole, scores.resampled, strict=True):
        (known,) = score_corpus(lines, [refs], [metric], tgt_lang="de", resamples=1000)
        assert whole == pytest.approx(known.value, abs=1e-9)
        assert known.interval is not None
        assert 1.96 * resampled.std() == pytest.approx(known.interval, rel=0.15)
    again = score_runs(make_scorer(metric, tgt_lang="de"), runs[:1], [refs], 1000)
    assert np.array_equal(again.resampled[0], scores.resampled[0])  # same resamples for every system
