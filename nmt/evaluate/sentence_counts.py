"""Sufficient statistics of corpus metrics: additive counts per sentence, and scores of their sums.

sacreBLEU keeps these private. For BLEU and TER, they are recovered from its public sentence scores. Those of chrF lack
the counts, so this module counts the n-grams itself.
"""

from __future__ import annotations

import copy
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any, assert_never

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.helpers import extract_all_char_ngrams, extract_word_ngrams
from sacrebleu.metrics.ter import TER

from nmt.evaluate.counted_metric import CountedMetric
from nmt.rerank.corpus_counts import Counts, score_of_counts

SentenceMetric = BLEU | CHRF | TER | CountedMetric
"""A metric whose corpus score is a function of sums over sentences."""


def sentence_counts(metric: SentenceMetric, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Counts:
    """Return the counts of each hypothesis against one or more streams of references, (sentences, counts).

    None stands for a missing reference.
    """
    known = [[reference for reference in refs if reference is not None] for refs in zip(*references, strict=True)]
    pairs = list(zip(hypotheses, known, strict=True))
    match metric:
        case BLEU():
            bleu = copy.copy(metric)
            bleu.effective_order = True  # suppresses a warning; the counts are the same
            scores = [bleu.sentence_score(hypothesis, refs) for hypothesis, refs in pairs]
            rows = [[score.sys_len, score.ref_len, *score.counts, *score.totals] for score in scores]
        case TER():
            edits = [metric.sentence_score(hypothesis, refs) for hypothesis, refs in pairs]
            rows = [[score.num_edits, score.ref_length] for score in edits]
        case CountedMetric():
            return metric.count(hypotheses, references)
        case CHRF():
            rows = [_chrf_counts(metric, hypothesis, refs) for hypothesis, refs in pairs]
        case _:
            assert_never(metric)
    return np.array(rows, dtype=np.float64)


def score_from_counts(metric: SentenceMetric, sums: Counts) -> Counts:
    """Return the scores (corpora,) of summed counts (corpora, counts)."""
    match metric:
        case BLEU():
            return np.array([_bleu(metric, row) for row in sums.astype(np.int64).tolist()])
        case TER():
            edits, length = sums.T
            rate: Counts = np.where(edits > 0, 100.0, 0.0)  # if all references are empty
            np.divide(100.0 * edits, length, out=rate, where=length > 0)
            return rate
        case CountedMetric():
            return metric.scores(sums)
        case CHRF():
            return score_of_counts("chrf", sums)
        case _:
            assert_never(metric)


def _bleu(metric: BLEU, counts: list[int]) -> float:
    order = metric.max_ngram_order
    score = BLEU.compute_bleu(
        correct=counts[2 : 2 + order],
        total=counts[2 + order :],
        sys_len=counts[0],
        ref_len=counts[1],
        smooth_method=metric.smooth_method,
        smooth_value=metric.smooth_value,
        max_ngram_order=order,
    )
    return float(score.score)


def _chrf_counts(metric: CHRF, hypothesis: str, references: Sequence[str]) -> list[int]:
    """Count n-grams of the hypothesis, of its best reference and of both, for each order."""
    hyp_ngrams = _ngrams(metric, hypothesis)
    rows = []
    for reference in references:
        row = []
        for hyp, ref in zip(hyp_ngrams, _ngrams(metric, reference), strict=True):
            # If the reference is too short for an order, the n-grams of the hypothesis do not count either.
            row += [hyp.total() if ref else 0, ref.total(), (hyp & ref).total()]
        rows.append(row)
    return rows[int(score_of_counts("chrf", np.array(rows, dtype=np.float64)).argmax())]


def _ngrams(metric: CHRF, line: str) -> list[Counter[Any]]:
    """Count character n-grams of each order, then word n-grams if the metric has them."""
    line = line.lower() if metric.lowercase else line
    words = [part for word in line.split() for part in _split_punctuation(word)] if metric.word_order else []
    characters = extract_all_char_ngrams(line, metric.char_order, metric.whitespace)
    return [*characters, *(extract_word_ngrams(words, order + 1) for order in range(metric.word_order))]


def _split_punctuation(word: str) -> list[str]:
    """Split off one punctuation mark at the end, or else at the start, as chrF++ does."""
    if len(word) > 1 and word[-1] in string.punctuation:
        return [word[:-1], word[-1]]
    return [word[0], word[1:]] if len(word) > 1 and word[0] in string.punctuation else [word]
