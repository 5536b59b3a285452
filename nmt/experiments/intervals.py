"""Confidence intervals of mean scores over seeds and test sentences.

A score varies with the training seed and with the choice of test sentences. Let the score of run s on sentence i be
m + a_s + b_i + e_si. With k runs and n sentences, the variance of the mean score is var(a) / k + var(b) / n +
var(e) / kn. The variance of the k scores, divided by k, estimates the sum of the first and third terms. The variance of
the mean score over bootstrap resamples of sentences estimates the sum of the second and third. The third term, counted
twice, is estimated from the difference between the resampling variance of single runs and that of their mean. The
degrees of freedom follow Satterthwaite (1946). For a difference, both systems are assumed to vary equally with the
seed: with two seeds each, separate variances would have too few degrees of freedom, and intervals would be too wide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nmt.evaluate.metrics import Scorer
from nmt.evaluate.sentence_counts import score_from_counts, sentence_counts
from nmt.evaluate.student_t import student_t_quantile

Floats = NDArray[np.float64]
_CONFIDENCE = 0.95
SEED = 12345
# Resamples at a time; bounds memory.
_RESAMPLES_PER_PART = 50


@dataclass(frozen=True)
class RunScores:
    """Scores of all runs of one system on one test set.

    whole:     (runs,), on the whole test set
    resampled: (runs, resamples), on resamples of its sentences, the same for all runs and systems
    """

    whole: Floats
    resampled: Floats

    @property
    def mean(self) -> float:
        """Mean score of the runs."""
        return float(self.whole.mean())

    @property
    def deviation(self) -> float:
        """Standard deviation over runs; NaN for one run."""
        return float(self.whole.std(ddof=1)) if len(self.whole) > 1 else math.nan


@dataclass(frozen=True)
class Estimate:
    """A mean score or difference; the half width of its 95% interval is NaN if a system has only one run."""

    value: float
    half_width: float

    @property
    def is_significant(self) -> bool:
        """Return whether the interval excludes zero."""
        return abs(self.value) > self.half_width


def score_runs(
    scorer: Scorer, runs: Sequence[Sequence[str]], references: Sequence[Sequence[str]], resamples: int
) -> RunScores:
    """Score the translations of several runs; the resamples depend only on the number of sentences."""
    refs = scorer.prepare_references(references)
    generator = np.random.default_rng(SEED)
    size = len(refs[0])
    counts = [sentence_counts(scorer.metric, [scorer.prepare(line) for line in lines], refs) for lines in runs]
    sums = [[run_counts.sum(axis=0, keepdims=True)] for run_counts in counts]  # of each run, in parts (n, counts)
    for first in range(0, resamples, _RESAMPLES_PER_PART):
        number = min(_RESAMPLES_PER_PART, resamples - first)
        weights = generator.multinomial(size, np.full(size, 1 / size), size=number)  # (n, sentences)
        for parts, run_counts in zip(sums, counts, strict=True):
            parts.append(weights @ run_counts)
    table: Floats = np.array([score_from_counts(scorer.metric, np.vstack(parts)) for parts in sums], dtype=np.float64)
    return RunScores(table[:, 0], table[:, 1:])


def estimate(system: RunScores, baseline: RunScores | None = None) -> Estimate:
    """Estimate the mean score of a system, or its difference from a baseline, with its interval."""
    groups = [system]
    value = system.mean
    resampled = system.resampled.mean(axis=0)
    if baseline is not None:
        groups.append(baseline)
        value -= baseline.mean
        resampled = resampled - baseline.resampled.mean(axis=0)
    if any(len(group.whole) < 2 for group in groups):
        return Estimate(value, math.nan)
    over_sentences = max(0.0, float(resampled.var(ddof=1)) - sum(map(_interaction_variance, groups)))
    over_seeds, seed_degrees = _seed_variance(groups)
    variance = over_seeds + over_sentences
    if variance == 0.0:
        return Estimate(value, 0.0)
    degrees = seed_degrees * (variance / over_seeds) ** 2 if over_seeds else math.inf
    return Estimate(value, student_t_quantile(_CONFIDENCE, degrees) * math.sqrt(variance))


def _seed_variance(groups: Sequence[RunScores]) -> tuple[float, int]:
    """Return the variance over seeds of a mean or difference of means, pooled, and its degrees of freedom (t-test)."""
    degrees = sum(len(group.whole) - 1 for group in groups)
    pooled = sum((len(group.whole) - 1) * group.deviation**2 for group in groups) / degrees
    return pooled * sum(1 / len(group.whole) for group in groups), degrees


def _interaction_variance(group: RunScores) -> float:
    """Estimate var(e) / kn, the variance specific to run and sentence."""
    single = float(group.resampled.var(axis=1, ddof=1).mean())
    mean = float(group.resampled.mean(axis=0).var(ddof=1))
    return max(0.0, (single - mean) / (len(group.whole) - 1))
