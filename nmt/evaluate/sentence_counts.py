"""What the score of a corpus is made of: counts of each sentence, which add up, and the score of their sums.

sacreBLEU keeps these to itself: here they come from public results of single sentences, and those of chrF are counted.
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

from nmt.evaluate.brackets import BracketF1, f1
from nmt.rerank.corpus_counts import Counts, score_of_counts

SentenceCounter = BLEU | CHRF | TER | BracketF1
"""What counts a sentence and scores the sums of such counts."""


def sentence_counts(metric: SentenceCounter, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Counts:
    """The counts of each hypothesis against its references, of which there are one or more streams.

    Returns: (sentences, counts)
    """
    pairs = list(zip(hypotheses, zip(*references, strict=True), strict=True))
    match metric:
        case BLEU():
            bleu = copy.copy(metric)
            bleu.effective_order = True  # to keep it from warning: the counts are the same
            scores = [bleu.sentence_score(hypothesis, refs) for hypothesis, refs in pairs]
            rows = [[one.sys_len, one.ref_len, *one.counts, *one.totals] for one in scores]
        case TER():
            edits = [metric.sentence_score(hypothesis, refs) for hypothesis, refs in pairs]
            rows = [[one.num_edits, one.ref_length] for one in edits]
        case BracketF1():
            return metric.count(hypotheses, references)
        case CHRF():
            rows = [_chrf_counts(metric, hypothesis, refs) for hypothesis, refs in pairs]
        case _:
            assert_never(metric)
    return np.array(rows, dtype=np.float64)


def score_from_counts(metric: SentenceCounter, sums: Counts) -> Counts:
    """The score of corpora whose sums of counts are (corpora, counts): (corpora,)."""
    match metric:
        case BLEU():
            return np.array([_bleu(metric, row) for row in sums.astype(np.int64).tolist()])
        case TER():
            edits, length = sums.T
            rate: Counts = np.where(edits > 0, 100.0, 0.0)  # of nothing but empty references
            np.divide(100.0 * edits, length, out=rate, where=length > 0)
            return rate
        case BracketF1():
            return f1(sums)
        case CHRF():
            return score_of_counts("chrf", sums)
        case _:
            assert_never(metric)


def _bleu(metric: BLEU, counts: list[int]) -> float:
    order = metric.max_ngram_order
    found = BLEU.compute_bleu(
        correct=counts[2 : 2 + order],
        total=counts[2 + order :],
        sys_len=counts[0],
        ref_len=counts[1],
        smooth_method=metric.smooth_method,
        smooth_value=metric.smooth_value,
        max_ngram_order=order,
    )
    return float(found.score)


def _chrf_counts(metric: CHRF, hypothesis: str, references: Sequence[str]) -> list[int]:
    """N-grams of the hypothesis, of the reference that suits it best, and of both, for each order."""
    own = _ngrams(metric, hypothesis)
    found = []
    for reference in references:
        orders = zip(own, _ngrams(metric, reference), strict=True)
        # Where the reference is too short for an order, those of the hypothesis do not count.
        found.append([n for one, ref in orders for n in (one.total() * bool(ref), ref.total(), (one & ref).total())])
    return found[int(score_of_counts("chrf", np.array(found, dtype=np.float64)).argmax())]


def _ngrams(metric: CHRF, line: str) -> list[Counter[Any]]:
    """The n-grams of characters of each order, and after them those of words, where these count."""
    line = line.lower() if metric.lowercase else line
    words = [part for word in line.split() for part in _without_punctuation(word)] if metric.word_order else []
    characters = extract_all_char_ngrams(line, metric.char_order, metric.whitespace)
    return [*characters, *(extract_word_ngrams(words, order + 1) for order in range(metric.word_order))]


def _without_punctuation(word: str) -> list[str]:
    """A word without the punctuation mark at its end, or else at its start, which is a word of its own."""
    if len(word) > 1 and word[-1] in string.punctuation:
        return [word[:-1], word[-1]]
    return [word[0], word[1:]] if len(word) > 1 and word[0] in string.punctuation else [word]
