"""Minimum error rate training (MERT): feature weights for which the 1-best of all n-best lists scores highest.

Along a line in weight space, the score of each candidate is a linear function, and the best candidate changes only
where these functions cross on their upper envelope. The exact optimum on the line is found by evaluating every interval
between the crossings of all sentences (Och 2003, "Minimum Error Rate Training in Statistical Machine Translation",
section 5). The search starts from the given weights and from random ones. It moves along the axes and random
directions, each time to the best point on any of these lines, until the score stops improving.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.rerank.corpus_counts import CorpusMetric, Counts, score_of_counts

Floats = NDArray[np.floating[Any]]

# Smaller differences of scores (0 to 100) and smaller interval widths relative to their location are rounding errors.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class TuningSet:
    """The n-best lists of a corpus, padded to the longest.

    features: (sentences, candidates, features)
    counts:   (sentences, candidates, counts), see `nmt.rerank.corpus_counts`
    exists:   (sentences, candidates) bool, False for padding
    """

    features: Floats
    counts: Counts
    exists: NDArray[np.bool_]
    metric: CorpusMetric

    @classmethod
    def from_lists(cls, features: Sequence[Floats], counts: Sequence[Counts], metric: CorpusMetric) -> TuningSet:
        """Pad the lists. features, counts: (candidates, features) and (candidates, counts) of each sentence"""
        longest = max(map(len, features))
        exists = np.array([[index < len(candidates) for index in range(longest)] for candidates in features])
        return cls(_pad(features, longest), _pad(counts, longest), exists, metric)

    def score(self, weights: Floats) -> float:
        """Return the corpus score of the 1-best candidates; ties go to the first."""
        values = np.where(self.exists, self.features @ weights, -np.inf)
        chosen = self.counts[np.arange(len(values)), values.argmax(axis=1)]
        return float(score_of_counts(self.metric, chosen.sum(axis=0)))


@dataclass(frozen=True)
class TunedWeights:
    """Weights of the features, (features,), and the corpus scores before and after tuning."""

    weights: Floats
    before: float
    after: float


def tune(lists: TuningSet, *, restarts: int = 10, seed: int = 1) -> TunedWeights:
    """Return the best weights found; deterministic given the seed.

    Only the ratios of weights matter; their absolute values sum to 1. The first starting point is the order of the
    lists: weight 1 for the first feature (their score), 0 for others.
    """
    start = np.zeros(lists.features.shape[2])
    start[0] = 1.0
    # Features are scaled to unit variance; otherwise the one with the highest variance dominates random directions.
    spread = lists.features[lists.exists].std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    scaled = TuningSet(lists.features / spread, lists.counts, lists.exists, lists.metric)
    optima = []
    for number in range(restarts + 1):  # separate generators: more restarts do not change the first ones
        random = np.random.Generator(np.random.PCG64((seed, number)))
        initial = start * spread if number == 0 else random.normal(size=len(start))
        optima.append(_climb(scaled, initial, random))
    best, score = max(optima, key=lambda optimum: optimum[1])
    weights = best / spread
    return TunedWeights(weights / np.abs(weights).sum(), lists.score(start), score)


def _climb(lists: TuningSet, weights: Floats, random: np.random.Generator) -> tuple[Floats, float]:
    """Move to the best point on the best line until no line improves the score."""
    score = lists.score(weights)
    size = len(weights)
    while True:
        weights = weights / max(np.abs(weights).sum(), _ROUNDING)
        directions = [*np.eye(size), *random.normal(size=(size, size))]
        optima = [search_line(lists, weights, direction) for direction in directions]
        best = max(range(len(optima)), key=lambda i: optima[i][1])
        step, expected_score = optima[best]
        moved = weights + step * directions[best]
        moved_score = lists.score(moved)
        if min(expected_score, moved_score) <= score + _ROUNDING:
            return weights, score
        weights, score = moved, moved_score


def search_line(lists: TuningSet, weights: Floats, direction: Floats) -> tuple[float, float]:
    """Return the step with the highest corpus score of `weights + step * direction`, and that score.

    The step is the middle of its interval, or 1 beyond the outermost crossing; 0 without crossings.
    """
    crossings, totals = _intervals(lists, lists.features @ weights, lists.features @ direction)
    if not len(crossings):
        return 0.0, float(score_of_counts(lists.metric, totals[0]))
    scores = score_of_counts(lists.metric, totals)
    is_wide = np.diff(crossings) > _ROUNDING * np.maximum(1.0, np.abs(crossings[1:]))
    scores[1:-1][~is_wide] = -np.inf  # there is no step between simultaneous crossings
    steps = np.concatenate([crossings[:1] - 1, (crossings[:-1] + crossings[1:]) / 2, crossings[-1:] + 1])
    best = int(scores.argmax())
    return float(steps[best]), float(scores[best])


def _intervals(lists: TuningSet, offsets: Floats, slopes: Floats) -> tuple[Floats, Counts]:
    """Return the steps at which the 1-best of any sentence changes, and the summed counts of each interval.

    offsets, slopes: (sentences, candidates); the score of a candidate is offset + step * slope. Returns ascending
    crossings (crossings,) and counts (crossings + 1, counts).
    """
    sentences = np.arange(len(offsets))
    # At minus infinity the candidate with the smallest slope is best; ties go to the highest offset.
    masked = np.where(lists.exists, slopes, np.inf)
    is_smallest = masked == masked.min(axis=1, keepdims=True)
    best = np.where(is_smallest, offsets, -np.inf).argmax(axis=1)
    start = lists.counts[sentences, best].sum(axis=0)
    reached = np.full(len(sentences), -np.inf)
    crossings: list[Floats] = [np.zeros(0)]
    changes: list[Counts] = [np.zeros((0, len(start)))]
    while len(sentences):
        # The best candidate of each sentence is overtaken by candidates with a larger slope.
        lead = offsets[sentences, best][:, None] - offsets[sentences]
        extra_slope = slopes[sentences] - slopes[sentences, best][:, None]
        overtakes = lists.exists[sentences] & (extra_slope > 0)
        overtaken_at = np.where(overtakes, lead / np.where(overtakes, extra_slope, 1.0), np.inf)
        next_at = overtaken_at.min(axis=1)
        # Of candidates that overtake at the same step, the one with the largest slope is best from there on.
        following = np.where(overtaken_at == next_at[:, None], slopes[sentences], -np.inf).argmax(axis=1)
        change = lists.counts[sentences, following] - lists.counts[sentences, best]
        continues = np.isfinite(next_at)
        reached = np.maximum(next_at, reached)[continues]  # rounding may swap crossings, and with them the changes
        crossings.append(reached)
        changes.append(change[continues])
        sentences, best = sentences[continues], following[continues]
    all_crossings = np.concatenate(crossings)
    order = np.argsort(all_crossings, kind="stable")
    sums = np.vstack([start, start + np.cumsum(np.concatenate(changes)[order], axis=0)])
    return all_crossings[order], sums


def _pad(lists: Sequence[Floats], longest: int) -> Floats:
    """Stack arrays (candidates, n) to (sentences, longest, n), padded with zeros."""
    padded = np.zeros((len(lists), longest, lists[0].shape[1]))
    for row, candidates in zip(padded, lists, strict=True):
        row[: len(candidates)] = candidates
    return padded
