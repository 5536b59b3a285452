"""Reranking: of the n best translations the one that several models together think best.

The score of a candidate is a weighted sum of features: the score that it came with, its length, and its log-probability
by each model, be it from left to right, from right to left (Liu et al. 2016, "Agreement on Target-bidirectional Neural
Machine Translation"), or of the source given the translation.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray

from nmt.decode.scoring import Scorer
from nmt.recipe import UserError
from nmt.rerank.nbest import Candidate
from nmt.storage.sealed import write_file

Floats = NDArray[np.floating[Any]]

# Pairs that are scored together.
_SCORED_TOGETHER = 64

GIVEN, LENGTH = "given", "length"


@dataclass(frozen=True)
class Judge:
    """A model that scores candidates.

    name:    what its feature is called
    reverse: whether it translates the other way: then it says how probable the source is, given the candidate
    """

    name: str
    scorer: Scorer
    reverse: bool = False

    def log_probs(self, sources: Sequence[str], texts: Sequence[str]) -> list[float]:
        """The log-probability of each text by its source, or of each source by its text."""
        pairs = (texts, sources) if self.reverse else (sources, texts)
        return [scored.log_prob for scored in self.scorer.score(*pairs)]

    def fits(self, source: str, text: str) -> bool:
        """Whether the model can hold the pair."""
        return self.scorer.fits(text, source) if self.reverse else self.scorer.fits(source, text)


def feature_names(judges: Sequence[Judge]) -> list[str]:
    """The features in their order."""
    return [GIVEN, LENGTH, *(judge.name for judge in judges)]


def features(
    sources: Sequence[str],
    lists: Sequence[Sequence[Candidate]],
    judges: Sequence[Judge],
    done: Callable[[int], None] = lambda count: None,
) -> list[Floats]:
    """The features of the candidates of each source: (candidates, features), in the order of `feature_names`.

    The length is counted in words. From a model that cannot hold a line, or one of its candidates, all candidates of
    the line get 0. `done` is told how many candidates a model has scored.
    """
    given = [candidate.score for candidate in chain.from_iterable(lists)]
    lengths = [float(len(candidate.text.split())) for candidate in chain.from_iterable(lists)]
    columns = [given, lengths, *(_log_probs(judge, sources, lists, done) for judge in judges)]
    return np.split(np.array(columns).T, np.cumsum([len(candidates) for candidates in lists])[:-1])


def best_first(candidates: Sequence[Candidate], values: Floats, weights: Floats) -> list[Candidate]:
    """The candidates with their weighted sums as scores, the highest first; equal ones keep their order.

    values: (candidates, features); weights: (features,)
    """
    scored = [Candidate(one.text, float(score)) for one, score in zip(candidates, values @ weights, strict=True)]
    return sorted(scored, key=lambda candidate: -candidate.score)


def _log_probs(
    judge: Judge, sources: Sequence[str], lists: Sequence[Sequence[Candidate]], done: Callable[[int], None]
) -> list[float]:
    """What a model says of all candidates, one line after the other."""
    found: list[float] = []
    waiting: list[tuple[int, str, str]] = []

    def score_waiting() -> None:
        log_probs = judge.log_probs([source for _, source, _ in waiting], [text for _, _, text in waiting])
        for (place, _, _), log_prob in zip(waiting, log_probs, strict=True):
            found[place] = log_prob
        waiting.clear()

    for source, candidates in zip(sources, lists, strict=True):
        if all(judge.fits(source, candidate.text) for candidate in candidates):
            waiting += [(len(found) + i, source, candidate.text) for i, candidate in enumerate(candidates)]
        found += [0.0] * len(candidates)
        if len(waiting) >= _SCORED_TOGETHER:
            score_waiting()
        done(len(candidates))
    score_waiting()
    return found


# --- Weights as a file ------------------------------------------------------------------------------------------------


def save_weights(path: Path, weights: Mapping[str, float], notes: Mapping[str, object]) -> None:
    """Write weights by the name of their feature as TOML, with notes on where they come from; UserError if it fails."""
    write_file(path, tomli_w.dumps({"weights": dict(weights), "tuned": dict(notes)}).encode())


def load_weights(path: Path, names: Sequence[str]) -> Floats:
    """The weights of the named features; UserError unless the file has one for each of them and no other."""
    try:
        weights = tomllib.loads(path.read_text(encoding="utf-8"))["weights"]
        found = {str(name): float(value) for name, value in weights.items()}
        if not all(map(math.isfinite, found.values())):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        wrong = f"{path} holds no weights; it must be TOML with a table [weights] of numbers"
        raise UserError(f"{wrong}; write it by --tune --save-weights") from error
    if found.keys() != set(names):
        raise UserError(
            f"{path} has weights for {', '.join(found)}; they must be for {', '.join(names)}; "
            "give the same models as when they were tuned"
        )
    return np.array([found[name] for name in names])
