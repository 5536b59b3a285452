"""Minimum-Bayes-risk decoding: of several translations, the one that agrees best with all of them.

The expected utility of a candidate is the mean of its sentence score against every candidate as the reference, each
weighted by how often (samples) or how probable (a list of the n best) it is. Source: Kumar and Byrne 2004, and for
samples Eikema and Aziz 2020.

The scores are sacreBLEU's to the last bit, but of all pairs at once: each text is cut into n-grams once, and not for
every pair anew.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, assert_never

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU, MAX_NGRAM_ORDER
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.helpers import extract_all_char_ngrams, extract_word_ngrams
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

UtilityName = Literal["chrf", "bleu"]
Scores = NDArray[np.float64]
# The score, from 0 to 100, of each text as a hypothesis (row) against each as its reference (column).
Utility = Callable[[Sequence[str]], Scores]


def sentence_utility(name: UtilityName) -> Utility:
    """sacreBLEU's chrF2 of sentences, or its BLEU smoothed for sentences."""
    match name:
        case "chrf":
            return pairwise_chrf
        case "bleu":
            return pairwise_bleu
        case _:
            assert_never(name)


def expected_utilities(texts: Sequence[str], weights: Sequence[float], utility: Utility) -> list[float]:
    """The expected utility of each candidate; weights are not negative and need not sum to one."""
    total = math.fsum(weights)
    together: dict[str, float] = {}  # equal texts are scored once
    for text, weight in zip(texts, weights, strict=True):
        together[text] = together.get(text, 0.0) + weight / total
    expected = utility(list(together)) @ np.array(list(together.values()))
    found = dict(zip(together, expected.tolist(), strict=True))
    return [found[text] for text in texts]


def relative_probabilities(log_probs: Sequence[float]) -> list[float]:
    """Weights of candidates of a list of the n best: their probabilities, up to a factor."""
    highest = max(log_probs)
    return [math.exp(log_prob - highest) for log_prob in log_probs]


def pairwise_chrf(texts: Sequence[str]) -> Scores:
    """chrF2 of each text against each: the F-score, recall weighing twice, of the mean precision and recall of orders.

    Only orders of which both texts have n-grams count. Source: Popovic 2015, as sacreBLEU computes it.
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
    above, below = (1 + weight) * precision * recall, weight * precision + recall
    scores: Scores = 100 * np.divide(above, below, out=np.zeros_like(above), where=below > 0)
    return scores


def pairwise_bleu(texts: Sequence[str]) -> Scores:
    """BLEU of each text against each, of as many orders as it has n-grams, zeros smoothed as sacreBLEU does."""
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

    places = range(len(texts))
    return np.array([[score(hypothesis, reference) for reference in places] for hypothesis in places])


def _matches(counts: Sequence[Counter[Any]]) -> tuple[Scores, Scores]:
    """How many n-grams each text has (texts,), and how many each shares with each, repeated ones as often as both do.

    The smaller of two counts is the number of k from 1 that neither is below, so that products find the shared ones.
    """
    place: dict[Hashable, int] = {}
    for count in counts:
        for ngram in count:
            place.setdefault(ngram, len(place))
    table = np.zeros((len(counts), len(place)), dtype=np.float32)
    for row, count in zip(table, counts, strict=True):
        row[[place[ngram] for ngram in count]] = list(count.values())
    matches = np.zeros((len(counts), len(counts)))
    for k in range(1, int(table.max(initial=0)) + 1):
        at_least = table[:, (table >= k).any(axis=0)] >= k
        matches += at_least.astype(np.float32) @ at_least.astype(np.float32).T
    return table.sum(axis=1, dtype=np.float64), matches
