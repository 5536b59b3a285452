"""Minimum-Bayes-risk decoding: of several translations, the one that agrees best with all of them.

The expected utility of a candidate is the mean of its sentence score against every candidate as the reference, each
weighted by how often (samples) or how probable (a list of the n best) it is. Source: Kumar and Byrne 2004, and for
samples Eikema and Aziz 2020.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, assert_never

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

UtilityName = Literal["chrf", "bleu"]
Utility = Callable[[str, str], float]


def sentence_utility(name: UtilityName) -> Utility:
    """sacreBLEU's score of a hypothesis against a reference, from 0 to 100: chrF2, or BLEU smoothed for sentences."""
    match name:
        case "chrf":
            chrf = CHRF()
            return lambda hypothesis, reference: float(chrf.sentence_score(hypothesis, [reference]).score)
        case "bleu":
            bleu = BLEU(effective_order=True)
            return lambda hypothesis, reference: float(bleu.sentence_score(hypothesis, [reference]).score)
        case _:
            assert_never(name)


def expected_utilities(texts: Sequence[str], weights: Sequence[float], utility: Utility) -> list[float]:
    """The expected utility of each candidate; weights are not negative and need not sum to one."""
    total = math.fsum(weights)
    together: dict[str, float] = {}  # equal texts are scored once
    for text, weight in zip(texts, weights, strict=True):
        together[text] = together.get(text, 0.0) + weight / total
    found = {
        text: math.fsum(share * utility(text, reference) for reference, share in together.items()) for text in together
    }
    return [found[text] for text in texts]


def relative_probabilities(log_probs: Sequence[float]) -> list[float]:
    """Weights of candidates of a list of the n best: their probabilities, up to a factor."""
    highest = max(log_probs)
    return [math.exp(log_prob - highest) for log_prob in log_probs]
