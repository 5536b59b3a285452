"""Intervals over seeds and sentences: against known quantiles, sacreBLEU, and systems of known difference."""

import math

import numpy as np
import pytest

from nmt.evaluate.metrics import make_scorer, score_corpus
from nmt.experiments.intervals import Estimate, RunScores, estimate, score_runs

SENTENCES, RESAMPLES = 150, 200


def of_values(values: np.ndarray, drawn: np.ndarray) -> RunScores:
    """The scores of runs whose score is the mean of values of the sentences; values: (runs, sentences)."""
    return RunScores(values.mean(axis=1), values @ drawn.T / SENTENCES)


@pytest.mark.parametrize(
    ("runs", "of_seed", "of_sentence", "of_both"),
    [(2, 0.5, 0.5, 0.3), (3, 0.0, 0.1, 0.8), (5, 0.3, 0.6, 0.3)],
)
def test_intervals_hold_the_true_difference_in_95_of_100_experiments(
    runs: int, of_seed: float, of_sentence: float, of_both: float
) -> None:
    """The four figures are the standard deviations that a score of one run has by each cause."""
    generator, experiments, true = np.random.default_rng(7), 1000, 0.4
    drawn = generator.multinomial(SENTENCES, np.full(SENTENCES, 1 / SENTENCES), size=RESAMPLES)
    root = math.sqrt(SENTENCES)
    held = 0
    for _ in range(experiments):
        shared = generator.normal(0, root, SENTENCES)  # hard sentences are hard for both
        systems = []
        for mean in (true, 0.0):
            own = generator.normal(0, of_sentence * root, SENTENCES)
            each = generator.normal(0, of_both * root, (runs, SENTENCES))
            seeds = generator.normal(0, of_seed, (runs, 1))
            systems.append(of_values(mean + shared + own + each + seeds, drawn))
        found = estimate(*systems)
        held += abs(found.value - true) <= found.half_width
    assert 0.93 <= held / experiments <= 0.97


def test_the_same_seeds_and_sentences_leave_nothing_uncertain_but_luck() -> None:
    same = RunScores(np.full(3, 30.0), np.full((3, 50), 30.0))
    assert estimate(same, same) == Estimate(0.0, 0.0)
    assert not estimate(same, same).is_shown
    better = RunScores(np.full(3, 31.0), np.full((3, 50), 31.0))
    assert estimate(better, same).is_shown


def test_one_seed_shows_nothing() -> None:
    one = RunScores(np.array([31.0]), np.full((1, 50), 31.0))
    other = RunScores(np.array([30.0]), np.full((1, 50), 30.0))
    found = estimate(one, other)
    assert found.value == 1.0 and math.isnan(found.half_width) and not found.is_shown
    assert math.isnan(one.deviation)


@pytest.mark.parametrize("metric", ["bleu", "chrf", "ter", "bleu-tokenized-lc"])
def test_scores_are_those_of_sacrebleu_and_resamples_spread_as_its_bootstrap(metric: str) -> None:
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
    assert np.array_equal(again.resampled[0], scores.resampled[0])  # the same resamples for every system
