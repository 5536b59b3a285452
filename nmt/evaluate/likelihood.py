"""Scores of text under a language model."""

from __future__ import annotations

from collections.abc import Sequence

from nmt.decode.scoring import Likelihood, TextScorer
from nmt.evaluate.metrics import Score

_BATCH_TEXTS = 64


def score_text(scorer: TextScorer, texts: Sequence[str]) -> tuple[Score, ...]:
    """Return perplexity and bits per byte, see `Likelihood`; raises UserError for a text too long for the model."""
    total = Likelihood()
    for start in range(0, len(texts), _BATCH_TEXTS):
        batch = texts[start : start + _BATCH_TEXTS]
        for score, text in zip(scorer.score([""] * len(batch), batch, first_line=start + 1), batch, strict=True):
            total.add(score, text)
    detail = f"{total.tokens:,} tokens with EOS, {total.num_bytes:,} bytes without line breaks"
    return (
        Score("perplexity", total.perplexity, "per token, EOS included"),
        Score("bits-per-byte", total.bits_per_byte, "bits of tokens and EOS / bytes", detail),
    )
