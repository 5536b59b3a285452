"""Metrics in the interface of sacreBLEU whose corpus score is a function of counts summed over sentences."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics.base import Metric, Score, Signature

from nmt.rerank.corpus_counts import Counts


class CountedMetric(Metric):
    """A sacreBLEU metric; with several references, the one with the highest score counts."""

    lowercase: bool

    def __init__(self, kind: str) -> None:
        """kind: name of the score in signatures."""
        Metric.__init__(self)
        self.kind = kind
        self.num_refs = 1

    @abstractmethod
    def count_pair(self, hypothesis: str, reference: str) -> list[float]:
        """Return the counts of a sentence against one reference."""

    @abstractmethod
    def scores(self, sums: Counts) -> Counts:
        """Return the scores, 0 to 100, of summed counts: (..., counts) -> (...)."""

    @abstractmethod
    def describe(self, sums: Counts) -> str:
        """Return the components of the score of summed counts, (counts,)."""

    @property
    def shown_num_refs(self) -> int | str:
        """Number of references of the latest score for signatures; `var` if it differs between sentences."""
        return self.num_refs if self.num_refs >= 0 else "var"

    @abstractmethod
    def signature_entries(self) -> dict[str, Any]:
        """Return the entries of the signature, with `version`; those with value None are omitted."""

    def count(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Counts:
        """Return the counts of each sentence against its best reference, (sentences, counts)."""
        return np.array(self._extract_corpus_statistics(hypotheses, references), dtype=np.float64)

    def get_signature(self) -> Signature:
        """Return the signature of the latest score."""
        signature = Signature(vars(self))
        signature.info = {**self.signature_entries(), "bs": self.n_bootstrap, "ar": None, "seed": self.seed}
        return signature

    def _preprocess_segment(self, sent: str) -> str:
        return sent

    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
        return {"references": refs}

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict[str, Any]) -> list[float]:
        rows = [self.count_pair(hypothesis, reference) for reference in ref_kwargs["references"]]
        return max(rows, key=lambda row: float(self.scores(np.array(row))))

    def _compute_score_from_stats(self, stats: Sequence[float]) -> Score:
        return _CountedScore(self, np.asarray(stats, dtype=np.float64))

    def _aggregate_and_compute(self, stats: Sequence[Sequence[float]]) -> Score:
        return _CountedScore(self, np.asarray(stats, dtype=np.float64).sum(axis=0))


class _CountedScore(Score):
    def __init__(self, metric: CountedMetric, sums: Counts) -> None:
        super().__init__(metric.kind, float(metric.scores(sums)))
        self._verbose = metric.describe(sums)
