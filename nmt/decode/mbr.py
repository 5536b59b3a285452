"""Minimum Bayes risk (MBR) decoding: select the translation with the highest expected utility.

The expected utility of a candidate is its mean sentence score against every candidate as the reference. References are
weighted by their frequency (samples) or probability (n-best lists). Sources: Kumar and Byrne 2004; Eikema and Aziz 2020
for samples.

The scores are bit-identical to sacreBLEU's. They are computed for all pairs at once, with one n-gram extraction per
text.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU, MAX_NGRAM_ORDER
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.helpers import extract_all_char_ngrams, extract_word_ngrams
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from nmt.decode.translation import Translation

Metric = Literal["chrf", "bleu"]
Scores = NDArray[np.float64]
# Scores, 0 to 100, of each text as hypothesis (row) against each text as reference (column).
Utility = Callable[[Sequence[str]], Scores]


def rank(translations: Sequence[Translation], metric: Metric, *, are_samples: bool) -> list[Translation]:
    """Return translations with their expected utilities as scores, best first.

    metric: the utility, sacreBLEU's sentence-level chrF2 or BLEU
    """
    utility = {"chrf": pairwise_chrf, "bleu": pairwise_bleu}[metric]
    weights = [1.0] * len(translations)
    if not are_samples:
        weights = relative_probabilities([translation.log_prob for translation in translations])
    utilities = expected_utilities([translation.text for translation in translations], weights, utility)
    scored = [replace(translation, score=value) for translation, value in zip(translations, utilities, strict=True)]
    return sorted(scored, key=lambda translation: -translation.score)


def expected_utilities(texts: Sequence[str], weights: Sequence[float], utility: Utility) -> list[float]:
    """Return the expected utility of each candidate. Weights are non-negative and need not sum to 1."""
    total = math.fsum(weights)
    weight_of: dict[str, float] = {}  # equal texts are scored once
    for text, weight in zip(texts, weights, strict=True):
        weight_of[text] = weight_of.get(text, 0.0) + weight / total
    expected = utility(list(weight_of)) @ np.array(list(weight_of.values()))
    utility_of = dict(zip(weight_of, expected.tolist(), strict=True))
    return [utility_of[text] for text in texts]


def relative_probabilities(log_probs: Sequence[float]) -> list[float]:
    """Return the unnormalized probabilities of an n-best list."""
    highest = max(log_probs)
    return [math.exp(log_prob - highest) for log_prob in log_probs]


def pairwise_chrf(texts: Sequence[str]) -> Scores:
    """Return chrF2 of all pairs: the F2 score of precision and recall, averaged over n-gram orders (Popović 2015).

    As in sacreBLEU, an order counts only if both texts have n-grams of it.
    """
    order, weight = CHRF.CHAR_ORDER, CHRF.BETA**2
    counts_of_texts = [extract_all_char_ngrams(text, order) for text in texts]
    precision, recall, orders = np.zeros((3, len(texts), len(texts)))
    for counts in zip(*counts_of_texts, strict=True):
        totals, matches = _matches(counts)
        counted = (totals[:, None] > 0) & (totals > 0)
        precision += np.divide(matches, totals[:, None], out=np.zeros_like(matches), where=counted)
        recall += np.divide(matches, totals, out=np.zeros_like(matches), where=counted)
        orders += counted
    precision /= np.maximum(orders, 1)
    recall /= np.maximum(orders, 1)
    numerator, denominator = (1 + weight) * precision * recall, weight * precision + recall
    scores: Scores = 100 * np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)
    return scores


def pairwise_bleu(texts: Sequence[str]) -> Scores:
    """Return BLEU of all pairs, with effective order and exponential smoothing as in sacreBLEU."""
    tokenize = Tokenizer13a()
    tokens_of_texts = [tokenize(text.rstrip()).split() for text in texts]
    lengths = [len(tokens) for tokens in tokens_of_texts]
    orders = range(1, MAX_NGRAM_ORDER + 1)
    by_order = [_matches([extract_word_ngrams(tokens, n) for tokens in tokens_of_texts]) for n in orders]
    matches = np.stack([matches for _, matches in by_order], axis=-1).tolist()
    totals = np.stack([totals for totals, _ in by_order], axis=-1).tolist()

    def score(hypothesis: int, reference: int) -> float:
        return BLEU.compute_bleu(
            matches[hypothesis][reference],
            totals[hypothesis],
            lengths[hypothesis],
            lengths[reference],
            smooth_method="exp",
            effective_order=True,
        ).score

    indices = range(len(texts))
    return np.array([[score(hypothesis, reference) for reference in indices] for hypothesis in indices])


def _matches(counts: Sequence[Counter[Any]]) -> tuple[Scores, Scores]:
    """Return the number of n-grams of each text (texts,) and the clipped matches of all pairs (texts, texts).

    min(a, b) is the number of k >= 1 with a >= k and b >= k, so the matches are a sum of matmuls over k.
    """
    column: dict[Hashable, int] = {}
    for count in counts:
        for ngram in count:
            column.setdefault(ngram, len(column))
    table = np.zeros((len(counts), len(column)), dtype=np.float32)
    for row, count in zip(table, counts, strict=True):
        row[[column[ngram] for ngram in count]] = list(count.values())
    matches = np.zeros((len(counts), len(counts)))
    for k in range(1, int(table.max(initial=0)) + 1):
        at_least = table[:, (table >= k).any(axis=0)] >= k
        matches += at_least.astype(np.float32) @ at_least.astype(np.float32).T
    return table.sum(axis=1, dtype=np.float64), matches
