"""Results of a search, shared by all engines."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hypothesis:
    """A finished translation of one sentence.

    tokens:          without BOS and EOS
    score:           ranking criterion: (log_prob + bias) / length penalty
    log_prob:        natural logarithm of its probability under the model, EOS included
    token_log_probs: log-probability of each token and of EOS; they sum to log_prob
    """

    tokens: list[int]
    score: float
    log_prob: float
    token_log_probs: list[float]


def in_reading_order(values: list[float]) -> list[float]:
    """Reverse the values of the tokens of a right-to-left output; the value of EOS stays last."""
    return [*values[-2::-1], *values[-1:]]
