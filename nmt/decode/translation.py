"""Translations of lines, and their concatenation from the parts of a split line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from nmt.text.splitting import join_texts

# Tabs and all line breaks of `str.splitlines`, at which readers of the output may split lines.
_BREAKS = re.compile("[\t\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+")


@dataclass(frozen=True)
class Translation:
    """One translation of one line. For an empty line, text and lists are empty, and both numbers are 0.

    text:            the translation, without line breaks or tabs
    score:           (log_prob + phrase biases) / length penalty, or expected utility; higher is better. Lists are
                     sorted by score, except samples without MBR, and alternatives, which are sorted by the probability
                     of their first token after the prefix
    log_prob:        natural logarithm of the probability; with fusion, the weighted sum of both models, which is not
                     normalized
    pieces:          subword pieces
    token_log_probs: log-probability of each piece and of EOS; they sum to log_prob. A line that was split has one EOS
                     per part. Empty if scores are not computed
    alignment:       (source word, target word) pairs, counted from 0; None unless requested
    """

    text: str
    score: float
    log_prob: float
    pieces: list[str] = field(hash=False)
    token_log_probs: list[float] = field(default_factory=list, hash=False)
    alignment: list[tuple[int, int]] | None = field(default=None, hash=False)


@dataclass(frozen=True)
class Attention:
    """Cross-attention of the decoder position that predicts each target token.

    source, target: pieces; EOS is the last source piece
    weights:        by layer, head, target token and source token; they sum to 1 over the source, or to less with a
                    tag, which is omitted
    """

    source: list[str]
    target: list[str]
    weights: list[list[list[list[float]]]]


def without_breaks(text: str) -> str:
    """Replace tabs and line breaks with spaces."""
    return _BREAKS.sub(" ", text)


def join_parts(parts: Sequence[Translation]) -> Translation:
    """Concatenate one translation of each part of a line. Log-probabilities are summed; the score is the mean."""
    text, first_words = join_texts([part.text for part in parts])
    links = None
    if all(part.alignment is not None for part in parts):
        offsets = zip(parts, first_words, strict=True)
        links = sorted({(source, first + target) for part, first in offsets for source, target in part.alignment or ()})
    return Translation(
        text=text,
        score=sum(part.score for part in parts) / max(1, len(parts)),
        log_prob=sum((part.log_prob for part in parts), 0.0),
        pieces=[piece for part in parts for piece in part.pieces],
        token_log_probs=[value for part in parts for value in part.token_log_probs],
        alignment=links,
    )


def join_ranks(parts: Sequence[Sequence[Translation]]) -> list[Translation]:
    """Concatenate the i-th translations of all parts; a part with fewer translations repeats its last."""
    if len(parts) == 1:
        return list(parts[0])
    longest = max(map(len, parts), default=1)
    return [join_parts([part[min(rank, len(part) - 1)] for part in parts]) for rank in range(longest)]
