"""Scores of text under a language model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from nmt.data.test_sets import TestSet, test_sets
from nmt.decode.scoring import Likelihood, TextScorer
from nmt.diagnostics.leaks import SetLeaks
from nmt.evaluate.metrics import Score
from nmt.evaluate.report import ScoredTestSet
from nmt.recipe import Recipe
from nmt.text.pair_encoder import PairEncoder
from nmt.text.tokenizer import Tokenizers

_BATCH_TEXTS = 64


def score_text(scorer: TextScorer, texts: Sequence[str]) -> tuple[Score, ...]:
    """Return perplexity and bits per byte, see `Likelihood`; raises UserError for a text too long for the model."""
    total = Likelihood()
    for start in range(0, len(texts), _BATCH_TEXTS):
        batch = texts[start : start + _BATCH_TEXTS]
        for score in scorer.score([""] * len(batch), batch, first_line=start + 1):
            total.add(score, score.num_bytes)
    detail = f"{total.tokens:,} tokens with EOS, {total.num_bytes:,} bytes without line breaks and repeated spaces"
    return (
        Score("perplexity", total.perplexity, "per token, EOS included"),
        Score("bits-per-byte", total.bits_per_byte, f"bits of tokens and EOS / bytes ({scorer.normalization})", detail),
    )


def score_test_set(scorer: TextScorer, test: TestSet, leaks: SetLeaks | None) -> ScoredTestSet:
    """Score all texts of a test set, and those without a leak; raises UserError as `score_text` does."""
    started = time.perf_counter()
    scores = score_text(scorer, test.ref)
    scored = ScoredTestSet(test.name, len(test.ref), time.perf_counter() - started, scores)
    if leaks is None:
        return scored
    clean = [test.ref[index] for index in leaks.clean()]
    clean_scores = score_text(scorer, clean) if 0 < len(clean) < len(test.ref) else ()
    return replace(scored, leaks=leaks.counts(), clean_scores=clean_scores)


def require_test_lengths(recipe: Recipe, tokenizers: Tokenizers) -> None:
    """Raise UserError, before training, if a test text of a language model is too long for it."""
    encoder = PairEncoder(tokenizers, recipe.data.unicode_form, recipe.model.max_positions - 1)
    for name, test in test_sets(recipe).items():
        encoder.require_fit((encoder.encode("", text) for text in test.ref), names=("source", f"data.test.{name}"))
