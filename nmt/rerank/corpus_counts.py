"""What BLEU and chrF of a corpus are made of: counts of each sentence, which add up, and the score of their sums.

The score is a function of many sums at once, so that a search over weights can look at thousands of corpora a second.
Both are sacreBLEU's, with its defaults and one reference (Papineni et al. 2002, Popović 2015, Post 2018).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, assert_never

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU

CorpusMetric = Literal["bleu", "chrf"]
Counts = NDArray[np.floating[Any]]

_BLEU_ORDER, _CHRF_ORDER, _CHRF_BETA = 4, 6, 2.0


def sentence_counts(metric: CorpusMetric, hypotheses: Sequence[str], reference: str) -> Counts:
    """The counts of each hypothesis against its reference: (hypotheses, counts)."""
    match metric:
        case "bleu":
            bleu = BLEU(effective_order=True)  # which is only said to keep it from warning: the counts are the same
            scores = [bleu.sentence_score(hypothesis, [reference]) for hypothesis in hypotheses]
            return np.array([[one.sys_len, one.ref_len, *one.counts, *one.totals] for one in scores], dtype=np.float64)
        case "chrf":
            grams = _character_grams(reference)
            return np.array([_chrf_counts(_character_grams(one), grams) for one in hypotheses], dtype=np.float64)
        case _:
            assert_never(metric)


def score_of_counts(metric: CorpusMetric, counts: Counts) -> Counts:
    """The score, 0 to 100, of corpora whose sums of counts are (..., counts): (...)."""
    match metric:
        case "bleu":
            return _bleu(counts)
        case "chrf":
            return _chrf(counts)
        case _:
            assert_never(metric)


def _bleu(counts: Counts) -> Counts:
    sys_len, ref_len = counts[..., 0], counts[..., 1]
    correct, total = counts[..., 2 : 2 + _BLEU_ORDER], counts[..., 2 + _BLEU_ORDER :]
    # The n-th order without any match counts as the 2^n-th part of one.
    smoothed = np.where(correct == 0, 0.5 ** np.cumsum(correct == 0, axis=-1), correct)
    precision = np.exp(np.log(smoothed / np.maximum(total, 1)).mean(axis=-1))
    brevity = np.exp(np.minimum(0.0, 1 - ref_len / np.maximum(sys_len, 1)))
    is_scored = (total > 0).all(axis=-1) & (correct > 0).any(axis=-1)
    return np.where(is_scored, 100 * brevity * precision, 0.0)


def _character_grams(text: str) -> list[Counter[str]]:
    """The n-grams of characters of each order, white space left out."""
    joined = "".join(text.split())
    orders = range(1, _CHRF_ORDER + 1)
    return [Counter(joined[start : start + n] for start in range(len(joined) - n + 1)) for n in orders]


def _chrf_counts(hypothesis: Sequence[Counter[str]], reference: Sequence[Counter[str]]) -> list[int]:
    """N-grams of hypothesis, of reference and of both, for each order."""
    counts: list[int] = []
    for own, other in zip(hypothesis, reference, strict=True):
        # Where the reference is too short for an order, those of the hypothesis do not count.
        counts += [own.total() if other else 0, other.total(), (own & other).total()]
    return counts


def _chrf(counts: Counts) -> Counts:
    hypothesis, reference, shared = (counts[..., start::3] for start in range(3))  # (..., orders)
    counted = (hypothesis > 0) & (reference > 0)
    orders = np.maximum(counted.sum(axis=-1), 1)
    precision = np.where(counted, shared / np.maximum(hypothesis, 1), 0.0).sum(axis=-1) / orders
    recall = np.where(counted, shared / np.maximum(reference, 1), 0.0).sum(axis=-1) / orders
    below = _CHRF_BETA**2 * precision + recall
    return np.where(below > 0, 100 * (1 + _CHRF_BETA**2) * precision * recall / np.where(below > 0, below, 1.0), 0.0)
