"""The sentences on which two systems differ most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics.chrf import CHRF


@dataclass(frozen=True)
class Difference:
    """One sentence in the words of two systems.

    line: where it stands in the test set, from 1
    metric: what `scores` are
    scores: of this sentence, of the first system and of the second; higher is better
    src: the source sentence, None where it is not known
    references, translations: what each reference and each of the two systems says
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
    """At most `number` sentences on which the first system is most ahead, and as many for the second, widest first.

    They are judged by chrF2, with `lowercase` without regard to case.
    """
    chrf, metric = CHRF(lowercase=lowercase), "lower-cased chrF2" if lowercase else "chrF2"
    found = []
    for index, (one, other, *refs) in enumerate(zip(first, second, *references, strict=True)):
        if one != other:
            scores = (chrf.sentence_score(one, refs).score, chrf.sentence_score(other, refs).score)
            src = sources[index] if sources is not None else None
            found.append(Difference(index + 1, metric, scores, src, tuple(refs), (one, other)))
    found.sort(key=lambda difference: difference.scores[1] - difference.scores[0])
    ahead = [difference for difference in found if difference.scores[0] > difference.scores[1]]
    behind = [difference for difference in reversed(found) if difference.scores[0] < difference.scores[1]]
    return ahead[:number], behind[:number]
