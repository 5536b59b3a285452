"""Minimum error rate training: the weights of features by which the best of each n-best list makes the best corpus.

Along a line through the space of weights every candidate's score is a linear function, and the candidate that wins
changes only where these lines cross on their upper envelope. So the exact best place on the line is found by looking at
each of the intervals between the crossings of all sentences (Och 2003, "Minimum Error Rate Training in Statistical
Machine Translation", section 5). The search goes from the order as given, and from random places, along the axes and
random directions, each time to the best place of all, until nothing gains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.rerank.corpus_counts import CorpusMetric, Counts, score_of_counts

Floats = NDArray[np.floating[Any]]

# What is less than this, of scores from 0 to 100 or of an interval's width relative to its place, is rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class TuningSet:
    """The n-best lists of a corpus, filled up to the longest of them.

    features: (sentences, candidates, features)
    counts:   (sentences, candidates, counts), see `nmt.rerank.corpus_counts`
    is_there: (sentences, candidates), whether there is such a candidate
    """

    features: Floats
    counts: Counts
    is_there: NDArray[np.bool_]
    metric: CorpusMetric

    @classmethod
    def from_lists(cls, features: Sequence[Floats], counts: Sequence[Counts], metric: CorpusMetric) -> TuningSet:
        """Lists of (candidates, features) and (candidates, counts), one of each for every sentence."""
        longest = max(map(len, features))
        is_there = np.array([[place < len(one) for place in range(longest)] for one in features])
        return cls(_filled(features, longest), _filled(counts, longest), is_there, metric)

    def score(self, weights: Floats) -> float:
        """The corpus score of the candidates that the weights choose; of equals the first."""
        values = np.where(self.is_there, self.features @ weights, -np.inf)
        chosen = self.counts[np.arange(len(values)), values.argmax(axis=1)]
        return float(score_of_counts(self.metric, chosen.sum(axis=0)))


def tune(lists: TuningSet, start: Floats, *, restarts: int = 10, seed: int = 1) -> tuple[Floats, float]:
    """Weights (features,) of the highest corpus score that is found, and that score; the same for the same seed.

    start: the first weights to go from. The weights' absolute values add up to 1; only their ratios mean anything.
    """
    # All features in the unit of their own spread: then a random direction is not the direction of the widest of them.
    spread = lists.features[lists.is_there].std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    scaled = TuningSet(lists.features / spread, lists.counts, lists.is_there, lists.metric)
    found = []
    for number in range(restarts + 1):  # each with a generator of its own: more restarts change nothing of the first
        random = np.random.Generator(np.random.PCG64((seed, number)))
        found.append(_climb(scaled, random.normal(size=len(start)) if number else start * spread, random))
    best, score = max(found, key=lambda one: one[1])
    weights = best / spread
    return weights / np.abs(weights).sum(), score


def _climb(lists: TuningSet, weights: Floats, random: np.random.Generator) -> tuple[Floats, float]:
    """From `weights` to the best place on the best line, again and again, until no line is better."""
    score, size = lists.score(weights), len(weights)
    while True:
        weights = weights / max(np.abs(weights).sum(), _ROUNDING)
        directions = [*np.eye(size), *random.normal(size=(size, size))]
        steps = [search_line(lists, weights, direction) for direction in directions]
        (step, expected), direction = max(zip(steps, directions, strict=True), key=lambda one: one[0][1])
        moved = weights + step * direction
        if expected <= score + _ROUNDING or lists.score(moved) <= score + _ROUNDING:
            return weights, score
        weights, score = moved, lists.score(moved)


def search_line(lists: TuningSet, weights: Floats, direction: Floats) -> tuple[float, float]:
    """The step for which the corpus score of `weights + step * direction` is highest, and that score.

    It is in the middle of its interval, or 1 beyond the outermost crossing.
    """
    places, totals = _intervals(lists, lists.features @ weights, lists.features @ direction)
    if not len(places):
        return 0.0, float(score_of_counts(lists.metric, totals[0]))
    scores = score_of_counts(lists.metric, totals)
    wide = np.diff(places) > _ROUNDING * np.maximum(1.0, np.abs(places[1:]))
    scores[1:-1][~wide] = -np.inf  # where several sentences change at once there is nothing in between
    steps = np.concatenate([places[:1] - 1, (places[:-1] + places[1:]) / 2, places[-1:] + 1])
    best = int(scores.argmax())
    return float(steps[best]), float(scores[best])


def _intervals(lists: TuningSet, offsets: Floats, slopes: Floats) -> tuple[Floats, Counts]:
    """Where on the line any sentence changes its candidate, in order, and the sums of counts before, between, behind.

    offsets, slopes: (sentences, candidates), a candidate's score on the line as offset + step * slope. Returns
    (changes,) and (changes + 1, counts).
    """
    sentences = np.arange(len(offsets))
    best = _steepest_backwards(lists.is_there, offsets, slopes)
    start = lists.counts[sentences, best].sum(axis=0)
    places: list[Floats] = [np.zeros(0)]
    changes: list[Counts] = [np.zeros((0, len(start)))]
    while len(sentences):
        own_offsets, own_slopes, counts = offsets[sentences], slopes[sentences], lists.counts[sentences]
        rows = np.arange(len(sentences))
        behind = own_offsets[rows, best][:, None] - own_offsets
        faster = own_slopes - own_slopes[rows, best][:, None]
        overtakes = lists.is_there[sentences] & (faster > 0)
        crossing = np.where(overtakes, behind / np.where(overtakes, faster, 1.0), np.inf)
        place = crossing.min(axis=1)
        # Of those that overtake at the same place the fastest is ahead from there on.
        following = np.where(crossing == place[:, None], own_slopes, -np.inf).argmax(axis=1)
        goes_on = np.isfinite(place)
        places.append(place[goes_on])
        changes.append((counts[rows, following] - counts[rows, best])[goes_on])
        sentences, best = sentences[goes_on], following[goes_on]
    order = np.argsort(np.concatenate(places), kind="stable")
    sums = np.vstack([start, start + np.cumsum(np.concatenate(changes)[order], axis=0)])
    return np.concatenate(places)[order], sums


def _steepest_backwards(is_there: NDArray[np.bool_], offsets: Floats, slopes: Floats) -> NDArray[np.int64]:
    """The candidate of each sentence that is ahead at minus infinity: of the least slope, and of these the highest."""
    slopes = np.where(is_there, slopes, np.inf)
    is_least = slopes == slopes.min(axis=1, keepdims=True)
    best: NDArray[np.int64] = np.where(is_least, offsets, -np.inf).argmax(axis=1)
    return best


def _filled(lists: Sequence[Floats], longest: int) -> Floats:
    """(candidates, n) of each sentence as one array (sentences, longest, n), zeros behind the end."""
    filled = np.zeros((len(lists), longest, lists[0].shape[1]))
    for row, one in zip(filled, lists, strict=True):
        row[: len(one)] = one
    return filled
