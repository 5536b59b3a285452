"""What a search finds, whichever program searches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hypothesis:
    """A finished translation of one sentence.

    tokens:          without begin and end token
    score:           what translations are ordered by: log_prob / length penalty, with bias where in use
    log_prob:        natural logarithm of its probability under the model, end token included
    token_log_probs: of each token and of the end token; they sum to log_prob
    """

    tokens: list[int]
    score: float
    log_prob: float
    token_log_probs: list[float]


def in_order_of_reading(values: list[float]) -> list[float]:
    """Values of the tokens of a sentence that was written backwards, and of its end token, as they are read."""
    return [*values[-2::-1], values[-1]]
