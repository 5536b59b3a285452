"""ROUGE (Lin 2004) from the package rouge-score: n-grams or longest common subsequence shared with a reference.

The score of a test set is the mean F1 of its texts. The package lowercases text and keeps only the letters a to z and
digits, so it suits only English. It stems words (Porter 1980), as publications on summarization do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np

from nmt.evaluate.counted_metric import CountedMetric
from nmt.export.packages import load_package
from nmt.logs import warn
from nmt.rerank.corpus_counts import Counts
from nmt.text.sentences import split_sentences

# The names of rouge-score.
_TYPES = {"rouge-1": "rouge1", "rouge-2": "rouge2", "rouge-l": "rougeL", "rouge-lsum": "rougeLsum"}

_WORD = re.compile("[a-z0-9]", re.IGNORECASE)
_MAX_LOST = 0.1  # fraction of references without words


class Rouge(CountedMetric):
    """A metric of the package rouge-score. Counts: F1, precision and recall of a text, 0 to 1; number of texts."""

    lowercase = True

    def __init__(self, name: str) -> None:
        """Load the package; raises UserError if it is not installed. name: metric, such as `rouge-2`"""
        super().__init__(_TYPES[name])
        self._scorer = load_package("rouge_score", "rouge_scorer").RougeScorer([self.kind], use_stemmer=True)

    def count_pair(self, hypothesis: str, reference: str) -> list[float]:
        """Return the counts of a text."""
        score = self._scorer.score(reference, hypothesis)[self.kind]
        return [score.fmeasure, score.precision, score.recall, 1.0]

    def scores(self, sums: Counts) -> Counts:
        """Return the mean F1."""
        return 100.0 * sums[..., 0] / np.maximum(sums[..., 3], 1.0)

    def describe(self, sums: Counts) -> str:
        """Return mean precision and recall."""
        _, precision, recall, texts = sums.tolist()
        return f"P {100 * precision / max(texts, 1):.2f}, R {100 * recall / max(texts, 1):.2f}"

    def signature_entries(self) -> dict[str, Any]:
        """Return the number of references, the tokenization and the version of rouge-score."""
        return {
            "refs": self.shown_num_refs,
            "stem": "porter",
            "tok": "a-z0-9",
            "sents": "nmt" if self.kind == "rougeLsum" else None,
            "version": f"rouge-score-{metadata.version('rouge-score')}",
        }

    def _preprocess_segment(self, sent: str) -> str:
        # rougeLsum compares each sentence of the reference with the whole text, and expects one sentence per line.
        return "\n".join(split_sentences(sent)) if self.kind == "rougeLsum" else sent


def warn_of_other_scripts(references: Sequence[Sequence[str]]) -> None:
    """Warn of references without the letters and digits that ROUGE reads."""
    texts = [text for stream in references for text in stream if text]
    lost = sum(_WORD.search(text) is None for text in texts)
    if lost > _MAX_LOST * len(texts):
        warn(
            f"ROUGE reads only the letters a to z and digits, which are absent in {lost:,} of {len(texts):,} "
            "references; use a metric such as chrf"
        )
