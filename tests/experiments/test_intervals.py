"""Intervals over seeds and sentences: coverage in simulations, and scores against sacreBLEU."""

import math
import re

import numpy as np
import pytest
from interval_coverage import SEEDS, SOURCES, coverage, main

from nmt.evaluate.metrics import make_scorer, score_corpus
from nmt.experiments import intervals
from nmt.experiments.intervals import Estimate, RunScores, estimate, score_runs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seeds", "deviations"), [(2, (0.5, 0.5, 0.3)), (2, (0.5, 0.0, 0.1)), (3, (0.0, 0.1, 0.8)), (5, (0.3, 0.6, 0.3))]
)
def test_intervals_contain_the_true_value_in_95_percent_of_experiments(
    seeds: int, deviations: tuple[float, ...]
) -> None:
    """The margin is three standard errors of the coverage in 1,000 experiments. With two seeds, means have 92%."""
    differences, means = coverage(seeds, deviations, 1000)
    assert differences == pytest.approx(0.95, abs=0.02)
    assert means == pytest.approx(0.95 if seeds > 2 else 0.92, abs=0.025)


def test_variances_of_systems_with_different_numbers_of_seeds_are_pooled() -> None:
    """Compare with Student's t-test, to which the interval reduces if sentences have no variance."""
    more, fewer = np.array([30.0, 31.0, 33.0, 34.0]), np.array([28.0, 29.0])
    found = estimate(*(RunScores(runs, np.repeat(runs[:, None], 50, axis=1)) for runs in (more, fewer)))
    # 4 degrees of freedom: t = 2.776445; sums of squares 10 and 0.5
    assert found.value == 3.5
    assert found.half_width == pytest.approx(2.776445 * math.sqrt(10.5 / 4 * (1 / 4 + 1 / 2)), rel=1e-5)


def test_the_tool_prints_a_row_per_kind_of_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--experiments", "2"]) == 0
    rows = capsys.readouterr().out.splitlines()[2:]
    assert len(rows) == len(SOURCES) * len(SEEDS)
    assert re.fullmatch(r"\| 2 \| 0\.5 \| 0\.5 \| 0\.3( \| (0\.0|50\.0|100\.0)%){2} \|", rows[0])


def test_the_tool_requires_an_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--experiments", "0"])
    assert "--experiments must be at least 1" in capsys.readouterr().err


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


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["bleu", "chrf", "ter", "bleu-tokenized-lc"])
def test_scores_and_resampling_intervals_equal_those_of_sacrebleu(metric: str) -> None:
    generator = np.random.default_rng(1)
    words = ["der", "die", "das", "Hund", "Katze", "sieht", "läuft", "und", "nicht", "heute"]
    refs = [" ".join(generator.choice(words, 8)) for _ in range(120)]

    def with_errors(line: str) -> str:
        return " ".join(word if generator.random() < 0.7 else "x" for word in line.split())

    runs = [[with_errors(ref) for ref in refs] for _ in range(2)]
    scores = score_runs(make_scorer(metric, tgt_lang="de"), runs, [refs], 1000)
    for lines, whole, resampled in zip(runs, scores.whole, scores.resampled, strict=True):
        (known,) = score_corpus(lines, [refs], [metric], tgt_lang="de", resamples=1000)
        assert whole == pytest.approx(known.value, abs=1e-9)
        assert known.interval is not None
        # The standard deviations of 1,000 resamples vary by 2%, and sacreBLEU's interval consists of percentiles.
        assert 1.96 * resampled.std() == pytest.approx(known.interval, rel=0.15)
    again = score_runs(make_scorer(metric, tgt_lang="de"), runs[:1], [refs], 1000)
    assert np.array_equal(again.resampled[0], scores.resampled[0])  # same resamples for every system


def test_resamples_do_not_depend_on_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    refs, runs = ["der Hund", "die Katze", "das Haus"], [["der Hund", "die Katze", "x"], ["x", "die Maus", "das Haus"]]
    scorer = make_scorer("chrf", tgt_lang="de")
    found = score_runs(scorer, runs, [refs], 120)
    monkeypatch.setattr(intervals, "_RESAMPLES_PER_PART", 7)
    assert np.array_equal(score_runs(scorer, runs, [refs], 120).resampled, found.resampled)
    assert found.resampled.shape == (2, 120)
