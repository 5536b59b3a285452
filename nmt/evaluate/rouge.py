"""ROUGE (Lin 2004) from the package rouge-score: n-grams or longest common subsequence shared with a reference.

The score of a test set is the mean F1 of its texts. The package lowercases text and keeps only the letters a to z and
digits, so it suits only English. It stems words (Porter 1980), as publications on summarization do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sacrebleu.metrics.base import Metric, Score, Signature

from nmt.export.packages import load_package
from nmt.logs import warn
from nmt.text.sentences import split_sentences

Counts = NDArray[np.float64]
"""(..., 4): sums of F1, precision and recall, and the number of texts."""

# The names of rouge-score.
_TYPES = {"rouge-1": "rouge1", "rouge-2": "rouge2", "rouge-l": "rougeL", "rouge-lsum": "rougeLsum"}

_WORD = re.compile("[a-z0-9]", re.IGNORECASE)
_MAX_LOST = 0.1  # fraction of references without words


class RougeScore(Score):
    """Mean F1 of a corpus, 0 to 100, with mean precision and recall in the verbose part."""

    def __init__(self, name: str, counts: Counts) -> None:
        super().__init__(name, float(mean_f1(counts)))
        _, precision, recall, texts = counts.tolist()
        self._verbose = f"P {100 * precision / max(texts, 1):.2f}, R {100 * recall / max(texts, 1):.2f}"


class _RougeSignature(Signature):
    def __init__(self, args: Mapping[str, Any]) -> None:
        self.info = {
            "refs": args["num_refs"] if args["num_refs"] >= 0 else "var",
            "stem": "porter",
            "tok": "a-z0-9",
            "sents": "nmt" if args["type"] == "rougeLsum" else None,  # None is omitted
            "bs": args["n_bootstrap"],
            "ar": None,
            "seed": args["seed"],
            "version": f"rouge-score-{metadata.version('rouge-score')}",
        }


class Rouge(Metric):
    """A sacreBLEU metric; with several references, it uses the one with the highest F1, as in rouge-score."""

    lowercase = True
    _SIGNATURE_TYPE = _RougeSignature

    def __init__(self, name: str) -> None:
        """Raises UserError if the package is not installed. name: of the metric, such as `rouge-2`."""
        Metric.__init__(self)
        self.type = _TYPES[name]
        self.num_refs = 1
        self._scorer = load_package("rouge_score", "rouge_scorer").RougeScorer([self.type], use_stemmer=True)

    def count(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Counts:
        """Return F1, precision, recall and 1 of each text against its best reference, (texts, 4)."""
        return np.array(self._extract_corpus_statistics(hypotheses, references), dtype=np.float64)

    def _preprocess_segment(self, sent: str) -> str:
        # rougeLsum compares each sentence of the reference with the whole text, and expects one sentence per line.
        return "\n".join(split_sentences(sent)) if self.type == "rougeLsum" else sent

    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
        return {"references": refs}

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict[str, Any]) -> list[float]:
        scores = [self._scorer.score(reference, hypothesis)[self.type] for reference in ref_kwargs["references"]]
        best = max(scores, key=lambda score: score.fmeasure)
        return [best.fmeasure, best.precision, best.recall, 1.0]

    def _compute_score_from_stats(self, stats: ArrayLike) -> RougeScore:
        return RougeScore(self.type, np.asarray(stats, dtype=np.float64))

    def _aggregate_and_compute(self, stats: Sequence[Sequence[float]]) -> RougeScore:
        return self._compute_score_from_stats(np.asarray(stats, dtype=np.float64).sum(axis=0))


def warn_of_other_scripts(references: Sequence[Sequence[str]]) -> None:
    """Warn of references without the letters and digits that ROUGE reads."""
    texts = [text for stream in references for text in stream if text]
    lost = sum(_WORD.search(text) is None for text in texts)
    if lost > _MAX_LOST * len(texts):
        warn(
            f"ROUGE reads only the letters a to z and digits, which are absent in {lost:,} of {len(texts):,} "
            "references; use a metric such as chrf"
        )


def mean_f1(counts: ArrayLike) -> Counts:
    """Return mean F1, 0 to 100, of counts (..., 4)."""
    total, _, _, texts = np.moveaxis(np.asarray(counts, dtype=np.float64), -1, 0)
    score: Counts = 100.0 * total / np.maximum(texts, 1.0)
    return score
