"""Sentences on which two systems differ most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics.chrf import CHRF

from nmt.evaluate.metrics import mask_missing


@dataclass(frozen=True)
class Difference:
    """One sentence translated by two systems.

    line:   line number, from 1
    metric: metric of `scores`
    scores: sentence scores of the first and the second system; higher is better
    src:    source sentence, None if unknown
    """

    line: int
    metric: str
    scores: tuple[float, float]
    src: str | None
    references: tuple[str, ...]
    translations: tuple[str, str]


def largest_differences(
    first: Sequence[str],
    second: Sequence[str],
    references: Sequence[Sequence[str]],
    sources: Sequence[str] | None,
    number: int,
    *,
    lowercase: bool = False,
) -> tuple[list[Difference], list[Difference]]:
    """Return up to `number` sentences on which the first system is better, and as many for the second.

    Both lists are sorted by descending difference in chrF2, lowercased if `lowercase`.
    """
    chrf = CHRF(lowercase=lowercase)
    metric = "lowercased chrF2" if lowercase else "chrF2"
    differences = []
    for index, (line, other_line, *masked) in enumerate(zip(first, second, *mask_missing(references), strict=True)):
        refs = [reference for reference in masked if reference is not None]
        if line != other_line:
            scores = (chrf.sentence_score(line, refs).score, chrf.sentence_score(other_line, refs).score)
            src = None if sources is None else sources[index]
            differences.append(Difference(index + 1, metric, scores, src, tuple(refs), (line, other_line)))
    differences.sort(key=lambda difference: difference.scores[1] - difference.scores[0])
    ahead = [difference for difference in differences if difference.scores[0] > difference.scores[1]]
    behind = [difference for difference in reversed(differences) if difference.scores[0] < difference.scores[1]]
    return ahead[:number], behind[:number]
