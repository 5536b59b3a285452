"""How sure a mean score is, over seeds and test sentences together.

A score varies because other seeds train other models, and because another test text would have other sentences. With
k runs, n sentences and the score of run s on sentence i thought of as m + a_s + b_i + e_si, the mean score has the
variance var(a) / k + var(b) / n + var(e) / kn. The variance of the runs' scores over k estimates the first and the
third term together, that of the mean score over bootstrap resamples of sentences the second and the third. Their sum
counts the third twice; how much less the mean of the runs varies over resamples than one run does, tells how large it
is. The estimate has as many degrees of freedom as Satterthwaite (1946) counts.
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
CONFIDENCE = 0.95
_SEED = 12345


@dataclass(frozen=True)
class RunScores:
    """The scores of all runs of one system on one test set.

    whole:     (runs,) on the whole test set
    resampled: (runs, resamples) on the same resamples of its sentences for all runs and systems
    """

    whole: Floats
    resampled: Floats

    @property
    def mean(self) -> float:
        """The mean score of the runs."""
        return float(self.whole.mean())

    @property
    def deviation(self) -> float:
        """The standard deviation between runs; nan of one run."""
        return float(self.whole.std(ddof=1)) if len(self.whole) > 1 else math.nan


@dataclass(frozen=True)
class Estimate:
    """A mean score or a difference of two, and half the width of its 95 % interval; nan where a seed is missing."""

    value: float
    half_width: float

    @property
    def is_shown(self) -> bool:
        """Whether the interval leaves out zero."""
        return abs(self.value) > self.half_width


def score_runs(
    scorer: Scorer, runs: Sequence[Sequence[str]], references: Sequence[Sequence[str]], resamples: int
) -> RunScores:
    """The scores of the translations of several runs; the resamples depend on the number of sentences alone."""
    refs = [[scorer.prepare(line) for line in stream] for stream in references]
    generator, size = np.random.default_rng(_SEED), len(refs[0])
    drawn = generator.multinomial(size, np.full(size, 1 / size), size=resamples)  # (resamples, sentences)
    scores = []
    for lines in runs:
        counts = sentence_counts(scorer.metric, [scorer.prepare(line) for line in lines], refs)
        sums = np.vstack([counts.sum(axis=0), drawn @ counts])  # (1 + resamples, counts)
        scores.append(score_from_counts(scorer.metric, sums))
    table: Floats = np.array(scores, dtype=np.float64)
    return RunScores(table[:, 0], table[:, 1:])


def estimate(system: RunScores, baseline: RunScores | None = None) -> Estimate:
    """The mean score of a system, or its difference to that of a baseline, with its interval."""
    groups = [system] if baseline is None else [system, baseline]
    value = system.mean - (0.0 if baseline is None else baseline.mean)
    if any(len(group.whole) < 2 for group in groups):
        return Estimate(value, math.nan)
    of_text = _mean_of_resamples(system) - (0.0 if baseline is None else _mean_of_resamples(baseline))
    text = max(0.0, float(of_text.var(ddof=1)) - sum(map(_counted_twice, groups)))
    of_seeds = [group.deviation**2 / len(group.whole) for group in groups]
    variance = sum(of_seeds) + text
    if variance == 0.0:
        return Estimate(value, 0.0)
    spread = sum(one**2 / (len(group.whole) - 1) for one, group in zip(of_seeds, groups, strict=True))
    degrees = variance**2 / spread if spread else math.inf
    return Estimate(value, student_t_quantile(CONFIDENCE, degrees) * math.sqrt(variance))


def _mean_of_resamples(group: RunScores) -> Floats:
    """The mean score of the runs on each resample."""
    means: Floats = group.resampled.mean(axis=0)
    return means


def _counted_twice(group: RunScores) -> float:
    """The part of the variance that is each run's own on each sentence, var(e) / kn."""
    runs = len(group.whole)
    of_one = float(group.resampled.var(axis=1, ddof=1).mean())
    of_mean = float(_mean_of_resamples(group).var(ddof=1))
    return max(0.0, (of_one - of_mean) / (runs - 1))
