"""Reranking of n-best lists by several models.

The score of a candidate is a weighted sum of features: its score in the list, its length, and its log-probability under
each model. Models may be left-to-right, right-to-left (Liu et al. 2016, "Agreement on Target-bidirectional Neural
Machine Translation"), target-to-source, or language models.
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

from nmt.decode.scoring import TextScorer
from nmt.errors import UserError
from nmt.logs import counted, warn
from nmt.rerank.nbest import Candidate
from nmt.storage.sealed import read_manifest, write_file
from nmt.text.lines import unreadable

Floats = NDArray[np.floating[Any]]

# Number of pairs in a batch.
_BATCH_PAIRS = 64

GIVEN = "given"
LENGTH = "length"


@dataclass(frozen=True)
class FeatureModel:
    """A model that scores candidates.

    name:    name of its feature
    reverse: whether it translates from target to source; it then scores the source given the candidate
    path:    as given by the user
    digest:  SHA-256 of its parameters; "" if unknown
    """

    name: str
    scorer: TextScorer
    reverse: bool = False
    path: Path = Path()
    digest: str = ""

    def log_probs(self, sources: Sequence[str], texts: Sequence[str]) -> list[float]:
        """Return the log-probability of each pair."""
        pairs = (texts, sources) if self.reverse else (sources, texts)
        return [scored.log_prob for scored in self.scorer.score(*pairs)]

    def fits(self, source: str, text: str) -> bool:
        """Return whether both sides are short enough for the model."""
        return self.scorer.fits(text, source) if self.reverse else self.scorer.fits(source, text)


def feature_names(models: Sequence[FeatureModel]) -> list[str]:
    """Return the names of the features, in order."""
    return [GIVEN, LENGTH, *(model.name for model in models)]


def features(
    sources: Sequence[str],
    lists: Sequence[Sequence[Candidate]],
    models: Sequence[FeatureModel],
    progress: Callable[[int], None] = lambda count: None,
) -> list[Floats]:
    """Return the features of the candidates of each source, (candidates, features), in the order of `feature_names`.

    The length is in words. If a line or one of its candidates is too long for a model, the model's feature is 0 for the
    line, with a warning. For each model, `progress` is called with numbers of candidates that add up to the total.
    """
    scores = [candidate.score for candidate in chain.from_iterable(lists)]
    lengths = [float(len(candidate.text.split())) for candidate in chain.from_iterable(lists)]
    columns = [scores, lengths, *(_log_probs(model, sources, lists, progress) for model in models)]
    return np.split(np.array(columns).T, np.cumsum([len(candidates) for candidates in lists])[:-1])


def best_first(candidates: Sequence[Candidate], values: Floats, weights: Floats) -> list[Candidate]:
    """Sort candidates by their weighted sums, which become their scores; ties keep their order.

    values: (candidates, features); weights: (features,)
    """
    scores = (values @ weights).tolist()
    rescored = [Candidate(candidate.text, score) for candidate, score in zip(candidates, scores, strict=True)]
    return sorted(rescored, key=lambda candidate: -candidate.score)


def _log_probs(
    model: FeatureModel, sources: Sequence[str], lists: Sequence[Sequence[Candidate]], progress: Callable[[int], None]
) -> list[float]:
    """Return the log-probability of every candidate, concatenated over lines."""
    scores: list[float] = []
    fitting: list[tuple[int, str, str]] = []  # index in `scores`, source and translation
    too_long: list[int] = []
    for line, (source, candidates) in enumerate(zip(sources, lists, strict=True), start=1):
        if all(model.fits(source, candidate.text) for candidate in candidates):
            fitting += [(len(scores) + i, source, candidate.text) for i, candidate in enumerate(candidates)]
        else:
            too_long.append(line)
            progress(len(candidates))
        scores += [0.0] * len(candidates)
    for first in range(0, len(fitting), _BATCH_PAIRS):
        indices, batch_sources, texts = zip(*fitting[first : first + _BATCH_PAIRS], strict=True)
        for index, log_prob in zip(indices, model.log_probs(batch_sources, texts), strict=True):
            scores[index] = log_prob
        progress(len(indices))
    if too_long:
        lines = f"{counted(len(too_long), 'line')} (first: line {too_long[0]:,})"
        warn(f"in {lines}, the source or a translation is too long for {model.name}; its feature is 0 there")
    return scores


def parameters_digest(model: Path) -> str:
    """Return the SHA-256 of the parameters of a model directory; it does not depend on search options."""
    return read_manifest(model).get("model.safetensors", (0, ""))[1]


def save_weights(
    path: Path, weights: Mapping[str, float], notes: Mapping[str, object], models: Sequence[FeatureModel] = ()
) -> None:
    """Write the weights of features, notes on their origin, and the models as TOML; raises UserError if it fails."""
    identities = {model.name: {"path": str(model.path), "sha256": model.digest} for model in models}
    tree = {"weights": dict(weights), "tuned": dict(notes), "models": identities}
    write_file(path, tomli_w.dumps(tree).encode())


def load_weights(path: Path, models: Sequence[FeatureModel]) -> Floats:
    """Read the weights of `feature_names`; raises UserError unless exactly these exist and at least one is not 0.

    Also raises UserError if the weights were tuned for these models in another order, and warns if they were tuned for
    others. Files of earlier versions do not identify models.
    """
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
        weights = {name: float(value) for name, value in tree["weights"].items()}
        if not all(map(math.isfinite, weights.values())):
            raise ValueError
        tuned = {name: (str(model["path"]), str(model["sha256"])) for name, model in tree.get("models", {}).items()}
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise UserError(
            f"{path} has no valid weights; expected TOML with a table [weights] of numbers; create it with "
            "--tune --save-weights"
        ) from error
    names = feature_names(models)
    if weights.keys() != set(names):
        raise UserError(
            f"{path} has weights for {', '.join(weights) or 'no feature'}; expected {', '.join(names)}; use the models "
            "that it was tuned for"
        )
    if not any(weights.values()):
        raise UserError(
            f"{path} has only weights of 0, so all translations score equally; at least one must not be 0; correct "
            "the file"
        )
    _check_models(path, models, tuned)
    return np.array([weights[name] for name in names])


def _check_models(path: Path, models: Sequence[FeatureModel], tuned: Mapping[str, tuple[str, str]]) -> None:
    """Compare models with those of tuned weights. tuned: path and digest by feature; "" if unknown"""
    changed = [model for model in models if model.name in tuned and model.digest != tuned[model.name][1]]
    if not changed:
        return
    names = ", ".join(f"{model.name} was {tuned[model.name][0]} and is {model.path}" for model in changed)
    if {model.digest for model in changed} == {tuned[model.name][1] for model in changed}:
        raise UserError(f"{path} was tuned for these models in another order: {names}; give them in that order")
    warn(f"{path} was tuned for other models: {names}; tune the weights again unless the models are similar")
