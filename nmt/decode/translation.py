"""What a translator gives for a line, and how it is made of the translations of the line's parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from nmt.text.splitting import join_texts


@dataclass(frozen=True)
class Translation:
    """One translation of one line; for an empty line its text is empty, all lists too, and both numbers are 0.

    text:            the translation, without any line break or tab
    score:           log_prob / length penalty, or expected utility: translations of a line that were searched for are
                     ordered by it; higher is better
    log_prob:        natural logarithm of its probability
    pieces:          its tokens in written form
    token_log_probs: of each piece and of the end token; they sum to log_prob. A line that was cut has an end token
                     for each of its parts
    alignment:       (source word, target word) pairs from 0, where asked for
    """

    text: str
    score: float
    log_prob: float
    pieces: list[str]
    token_log_probs: list[float] = field(default_factory=list)
    alignment: list[tuple[int, int]] | None = None


def join_parts(parts: Sequence[Translation]) -> Translation:
    """One translation of a line from one of each of its parts; an empty one without parts.

    Log-probabilities are added up, the score is the mean.
    """
    text, first_words = join_texts([part.text for part in parts])
    links = None
    if all(part.alignment is not None for part in parts):
        numbered = zip(parts, first_words, strict=True)
        links = sorted({(s, first + t) for part, first in numbered for s, t in part.alignment or ()})
    return Translation(
        text=text,
        score=sum(part.score for part in parts) / max(1, len(parts)),
        log_prob=sum((part.log_prob for part in parts), 0.0),
        pieces=[piece for part in parts for piece in part.pieces],
        token_log_probs=[value for part in parts for value in part.token_log_probs],
        alignment=links,
    )


def join_ranks(parts: Sequence[Sequence[Translation]]) -> list[Translation]:
    """The i-th translation of a line from the i-th of each of its parts; a part that has fewer gives its last again."""
    most = max(map(len, parts), default=1)
    return [join_parts([own[min(rank, len(own) - 1)] for own in parts]) for rank in range(most)]
