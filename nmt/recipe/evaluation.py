"""The section on scores, and the names of metrics and tokenizers."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeInt

from nmt.recipe.corpora import Section

Metric = Literal[
    "bleu", "chrf", "chrf++", "ter", "bleu-tokenized", "bleu-tokenized-lc", "bleu-compound-split", "bracket-f1"
]
BleuTokenizer = Literal[
    "13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "flores101", "flores200", "spm", "spBLEU-1K", "none"
]


class EvaluateRecipe(Section):
    """How test translations are scored."""

    metrics: tuple[Metric, ...] = ("bleu", "chrf", "ter")
    """sacreBLEU's metrics, and BLEU of Moses tokens as older publications give it: cased, lower-cased (`-lc`), or with
    compounds split at hyphens; for trees, `bracket-f1` by the rules of EVALB. Each is reported with its signature."""
    tokenize: BleuTokenizer | None = None
    """sacreBLEU's tokenizer for `bleu`, here and in validation: 13a, intl, zh, ja-mecab, ko-mecab, char, flores101,
    flores200, spm, spBLEU-1K or none; by default its own choice for the target language, which is 13a for most."""
    resamples: NonNegativeInt = 1_000
    """Bootstrap resamples of the sentences, which give each score its 95 % interval; 0 leaves the intervals out."""
    samples: NonNegativeInt = 10
    """Sample translations shown in the report."""
