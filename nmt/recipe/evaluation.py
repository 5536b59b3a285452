"""The recipe section of scoring, and the names of metrics and tokenizers."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeInt

from nmt.recipe.corpora import Section

Metric = Literal[
    "bleu",
    "chrf",
    "chrf++",
    "ter",
    "bleu-tokenized",
    "bleu-tokenized-lc",
    "bleu-compound-split",
    "bracket-f1",
    "rouge-1",
    "rouge-2",
    "rouge-l",
    "rouge-lsum",
]
BleuTokenizer = Literal[
    "13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "flores101", "flores200", "spm", "spBLEU-1K", "none"
]


class EvaluateRecipe(Section):
    """Scoring of test translations."""

    metrics: tuple[Metric, ...] = ("bleu", "chrf", "ter")
    """sacreBLEU's metrics; BLEU on Moses tokens as in older publications: cased, lowercased (`-lc`) or with compounds
    split at hyphens; for trees, `bracket-f1` as in EVALB; for English summaries, ROUGE (`rouge-lsum` is summary-level
    ROUGE-L, as published for CNN/DailyMail). Each is reported with its signature."""
    tokenize: BleuTokenizer | None = None
    """sacreBLEU tokenizer for `bleu`, also in validation: 13a, intl, zh, ja-mecab, ko-mecab, char, flores101,
    flores200, spm, spBLEU-1K or none; by default selected for the target language, mostly 13a."""
    resamples: NonNegativeInt = 1_000
    """Bootstrap resamples for the 95% confidence interval of each score; 0 disables the intervals."""
    lead_sentences: NonNegativeInt = 0
    """Also score the first N sentences of each source as a summary, a strong baseline for news (`lead-3`); 0 disables
    it."""
    samples: NonNegativeInt = 10
    """Number of sample translations in the report."""
