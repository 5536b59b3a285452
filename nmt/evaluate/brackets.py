"""Labeled bracket F1 of constituency trees, by the rules of EVALB (Sekine and Collins 1997).

Brackets match if label and span are equal, each at most once. Spans count words: the reference determines which leaves
are punctuation. Precision, recall and F1 are computed from sums over all sentences. A hypothesis that is malformed, or
whose number of leaves (words and punctuation marks) differs from that of its reference, has no predicted bracket. EVALB
identifies punctuation in each tree separately and skips sentences whose numbers of words differ, which favors systems
with many such sentences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np

from nmt.errors import UserError
from nmt.evaluate.counted_metric import CountedMetric
from nmt.rerank.corpus_counts import Counts
from nmt.text.trees import brackets, without_punctuation


class BracketF1(CountedMetric):
    """A metric of trees in either format of `nmt.text.trees`.

    Counts: matching, hypothesis and reference brackets; exact matches; malformed trees; sentences. A tree whose number
    of leaves differs from the reference counts as malformed.
    """

    lowercase = False

    def __init__(self) -> None:
        super().__init__("BracketF1")

    def count_pair(self, hypothesis: str, reference: str) -> list[float]:
        """Return the counts of a tree; raises ValueError for a malformed reference."""
        gold, is_word = brackets(reference)
        gold = without_punctuation(gold, is_word)
        malformed: list[float] = [0, 0, len(gold), 0, 1, 1]
        try:
            predicted, is_predicted_word = brackets(hypothesis)
        except ValueError:
            return malformed
        if len(is_predicted_word) != len(is_word):
            return malformed
        predicted = without_punctuation(predicted, is_word)
        matched = (Counter(predicted) & Counter(gold)).total()
        is_exact = Counter(predicted) == Counter(gold)
        return [matched, len(predicted), len(gold), int(is_exact), 0, 1]

    def scores(self, sums: Counts) -> Counts:
        """Return F1."""
        matched, predicted, gold = (sums[..., index] for index in range(3))
        return 200.0 * matched / np.maximum(predicted + gold, 1.0)

    def describe(self, sums: Counts) -> str:
        """Return precision, recall, exact matches and malformed trees."""
        matched, predicted, gold, exact, malformed, sentences = sums.tolist()
        precision = 100 * matched / max(predicted, 1)
        recall = 100 * matched / max(gold, 1)
        return (
            f"P {precision:.2f}, R {recall:.2f}, exact {100 * exact / max(sentences, 1):.1f}%, "
            f"malformed {malformed:,.0f} of {sentences:,.0f}"
        )

    def signature_entries(self) -> dict[str, Any]:
        """Return the rules, the version of nmt, and the number of references unless it is 1."""
        return {
            "refs": None if self.num_refs == 1 else self.shown_num_refs,  # absent from signatures of earlier versions
            "rules": "evalb",
            "punct": "ref",
            "malformed": "wrong",
            "version": f"nmt-{metadata.version('nmt')}",
        }

    def _cache_references(self, references: Sequence[Sequence[str]]) -> list[Any]:
        """Raise UserError for a malformed reference."""
        for stream in references:
            for line, reference in enumerate(stream, start=1):
                try:
                    if reference is not None:  # it is None if it is missing
                        brackets(reference)
                except ValueError as error:
                    raise UserError(
                        f"line {line} of the reference is not a tree: {error}; it must look like "
                        "(S (NP XX )NP (VP XX )VP )S or (S (NP (DT The) (NN dog)) (VP (VBZ sleeps)))"
                    ) from error
        return super()._cache_references(references)
