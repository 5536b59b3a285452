"""Labeled bracket F1 of constituency trees, by the rules of EVALB (Sekine and Collins 1997).

Brackets match if label and span are equal, each at most once. Precision, recall and F1 are computed from sums over all
sentences. A hypothesis that is malformed or differs from its reference in the number of words has no matching bracket.
EVALB skips such sentences, which favors systems that produce many of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sacrebleu.metrics.base import Metric, Score, Signature

from nmt.errors import UserError
from nmt.text.trees import brackets

Counts = NDArray[np.float64]
"""(..., 5): matching, hypothesis and reference brackets; exact matches; malformed trees.

Trees whose number of words differs from the reference count as malformed.
"""


class BracketScore(Score):
    """Score of a corpus, with precision, recall, exact matches and malformed trees in the verbose part."""

    def __init__(self, counts: Counts, sentences: int) -> None:
        super().__init__("BracketF1", float(f1(counts)))
        matched, predicted, gold, exact, malformed = counts.tolist()
        precision = 100 * matched / max(predicted, 1)
        recall = 100 * matched / max(gold, 1)
        self._verbose = (
            f"P {precision:.2f}, R {recall:.2f}, exact {100 * exact / max(sentences, 1):.1f}%, "
            f"malformed {malformed:,.0f} of {sentences:,}"
        )


class _BracketSignature(Signature):
    def __init__(self, args: Mapping[str, Any]) -> None:
        self.info = {
            "rules": "evalb",
            "malformed": "wrong",
            "bs": args["n_bootstrap"],
            "ar": None,
            "seed": args["seed"],
            "version": f"nmt-{metadata.version('nmt')}",
        }


class BracketF1(Metric):
    """A sacreBLEU metric of trees in either format of `nmt.text.trees`."""

    lowercase = False
    _SIGNATURE_TYPE = _BracketSignature

    def __init__(self) -> None:
        Metric.__init__(self)

    def count(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Counts:
        """Return the counts of each sentence against its best reference, (sentences, 5).

        Raises UserError for a malformed reference.
        """
        return np.array(self._extract_corpus_statistics(hypotheses, references), dtype=np.float64)

    def _cache_references(self, references: Sequence[Sequence[str]]) -> list[Any]:
        for stream in references:
            for line, reference in enumerate(stream, start=1):
                try:
                    if reference is not None:  # it is None if it is missing
                        brackets(reference)
                except ValueError as error:
                    raise UserError(
                        f"line {line} of the reference is not a tree: {error}; it must look like "
                        "(S (NP XX )NP (VP XX )VP )S or (S (NP (DT The) (NN dog)) (VP (VBZ sleeps)))"
                    ) from error
        return super()._cache_references(references)

    def _preprocess_segment(self, sent: str) -> str:
        return sent

    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
        return {"references": refs}

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict[str, Any]) -> list[int]:
        rows = [_count(hypothesis, reference) for reference in ref_kwargs["references"]]
        return max(rows, key=lambda row: float(f1(row)))

    def _compute_score_from_stats(self, stats: ArrayLike) -> BracketScore:
        return BracketScore(np.asarray(stats, dtype=np.float64), sentences=0)

    def _aggregate_and_compute(self, stats: Sequence[Sequence[int]]) -> BracketScore:
        return BracketScore(np.asarray(stats, dtype=np.float64).sum(axis=0), len(stats))


def f1(counts: ArrayLike) -> Counts:
    """Return F1, 0 to 100, of counts (..., 5)."""
    matched, predicted, gold, *_ = np.moveaxis(np.asarray(counts, dtype=np.float64), -1, 0)
    score: Counts = 200.0 * matched / np.maximum(predicted + gold, 1.0)
    return score


def _count(hypothesis: str, reference: str) -> list[int]:
    gold, num_words = brackets(reference)
    malformed = [0, 0, len(gold), 0, 1]
    try:
        predicted, num_predicted_words = brackets(hypothesis)
    except ValueError:
        return malformed
    if num_predicted_words != num_words:
        return malformed
    matched = (Counter(predicted) & Counter(gold)).total()
    is_exact = Counter(predicted) == Counter(gold)
    return [matched, len(predicted), len(gold), int(is_exact), 0]
