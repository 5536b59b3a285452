"""Labelled bracket F1 of constituency trees, by the rules of EVALB (Sekine and Collins 1997).

Brackets match where label and span are equal, each at most once; precision, recall and F1 are of the sums over all
sentences. A tree that is malformed, or has another number of words than its reference, has no bracket that matches;
EVALB would leave out the sentence, which flatters a system that makes many of these.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.recipe import UserError
from nmt.text.trees import brackets

Counts = NDArray[np.float64]
"""(sentences or corpora, 5): brackets that match, of the hypothesis, of the reference; exact trees; malformed ones."""


@dataclass(frozen=True)
class BracketScore:
    """The score of a corpus, as sacreBLEU hands out scores.

    mean, interval: over bootstrap resamples of sentences; None without these
    """

    score: float
    detail: str
    mean: float | None
    interval: float | None
    name: str = "BracketF1"

    def format(self, width: int = 2, signature: str = "", is_json: bool = False) -> str:
        """The score as text, or as the JSON object of sacreBLEU."""
        if not is_json:
            return f"{self.name}{'|' if signature else ''}{signature} = {self.score:.{width}f} {self.detail}"
        told: dict[str, object] = {"name": self.name, "score": self.score, "signature": signature}
        told["verbose_score"] = self.detail
        if self.mean is not None:
            told |= {"confidence_mean": self.mean, "confidence_var": self.interval}
        return json.dumps(told)


class BracketF1:
    """Counts and scores trees in either form of `nmt.text.trees`; the interface is that of sacreBLEU's metrics."""

    lowercase = False

    def __init__(self) -> None:
        self.n_bootstrap: int | None = None
        self.seed: str | None = None

    def corpus_score(
        self, hypotheses: Sequence[str], references: Sequence[Sequence[str]], n_bootstrap: int = 1
    ) -> BracketScore:
        """The score of a corpus; `n_bootstrap` above 1 gives it an interval, as sacreBLEU draws it."""
        counts = self.count(hypotheses, references)
        mean = interval = None
        if n_bootstrap > 1:
            self.n_bootstrap, self.seed = n_bootstrap, os.environ.get("SACREBLEU_SEED", "12345").lower()
            generator = np.random.default_rng(None if self.seed == "none" else int(self.seed))
            drawn = generator.choice(len(counts), size=(n_bootstrap, len(counts)), replace=True)
            scores = np.sort([float(f1(counts[rows].sum(axis=0))) for rows in drawn])
            cut = n_bootstrap // 40
            mean = float(scores.mean())
            interval = float(scores[n_bootstrap - cut - 1] - scores[cut]) / 2
        sums = counts.sum(axis=0)
        return BracketScore(float(f1(sums)), _detail(sums, len(counts)), mean, interval)

    def count(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Counts:
        """The counts of each sentence; of several references, the one with the best F1 counts.

        Raises UserError where a reference is malformed.
        """
        rows = []
        for line, (hypothesis, *answers) in enumerate(zip(hypotheses, *references, strict=True), start=1):
            try:
                each = [_count(hypothesis, answer) for answer in answers]
            except ValueError as error:
                raise UserError(
                    f"line {line} of the reference is no tree: {error}; it must be one such as (S (NP XX )NP (VP XX "
                    ")VP )S or (S (NP (DT The) (NN dog)) (VP (VBZ sleeps))); correct it, or take another metric"
                ) from error
            rows.append(max(each, key=lambda row: float(f1(np.array(row)))))
        return np.array(rows, dtype=np.float64)

    def get_signature(self) -> str:
        """How it was counted, as sacreBLEU writes signatures."""
        entries = ["rules:evalb", "malformed:wrong"]
        if self.n_bootstrap is not None:
            entries += [f"bs:{self.n_bootstrap}", f"seed:{self.seed}"]
        return "|".join([*entries, f"version:nmt-{metadata.version('nmt')}"])


def f1(counts: NDArray[np.floating[Any]]) -> Counts:
    """F1 from 0 to 100 of (..., 5) counts."""
    matched, found, expected = counts[..., 0], counts[..., 1], counts[..., 2]
    score: Counts = 200.0 * matched / np.maximum(found + expected, 1.0)
    return score


def _count(hypothesis: str, reference: str) -> list[int]:
    expected, words = brackets(reference)
    try:
        found, found_words = brackets(hypothesis)
    except ValueError:
        found, found_words = [], -1
    if found_words != words:
        return [0, 0, len(expected), 0, 1]
    matched = (Counter(found) & Counter(expected)).total()
    return [matched, len(found), len(expected), int(Counter(found) == Counter(expected)), 0]


def _detail(sums: Counts, sentences: int) -> str:
    matched, found, expected, exact, malformed = sums.tolist()
    precision, recall = 100 * matched / max(found, 1), 100 * matched / max(expected, 1)
    return (
        f"P {precision:.2f}, R {recall:.2f}, exact {100 * exact / max(sentences, 1):.1f} %, "
        f"malformed {malformed:,.0f} of {sentences:,}"
    )
