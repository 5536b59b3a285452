"""Scores of one or more systems on a test set: as a whole, by length, by word frequency, and by sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nmt.evaluate.breakdown import WordScore, length_classes, score_words
from nmt.evaluate.comet import comet_scores
from nmt.evaluate.differences import Difference, largest_differences
from nmt.evaluate.metrics import GroupScore, Score, Scorer, score_groups
from nmt.logs import say
from nmt.text.words import has_spaces


@dataclass(frozen=True)
class EvaluatedSystems:
    """Translations of a test set, with the metrics to compute.

    systems:      lines by system name
    references:   one or more streams of lines
    sources:      lines; None if unknown, which `scores` with COMET and `by_length` do not allow
    ignores_case: whether translations that differ only in case are equal
    """

    systems: Mapping[str, Sequence[str]]
    references: Sequence[Sequence[str]]
    sources: Sequence[str] | None
    scorers: Sequence[Scorer]
    ignores_case: bool

    def scores(self, resamples: int = 0, comet: str | None = None) -> dict[str, list[Score]]:
        """Score the whole test set with each metric, and with the `comet` command last; see `Scorer.score`."""
        by_comet: dict[str, Score] = {}
        if comet is not None:
            say(f"scoring {len(self.systems)} x {len(self.references[0]):,} sentences with {comet}")
            by_comet = comet_scores(comet, self.systems, self._known_sources, self._first_references)
        scores = {}
        for name, lines in self.systems.items():
            scores[name] = [scorer.score(lines, self.references, resamples=resamples) for scorer in self.scorers]
            if comet is not None:
                scores[name].append(by_comet[name])
        return scores

    def by_sentence(self) -> tuple[str, list[str]]:
        """Return the scores of each sentence as TSV with a header, and the signatures of the metrics."""
        lines = ["\t".join(["system", "line", *(scorer.name for scorer in self.scorers)])]
        signatures: tuple[str, ...] = ()
        for name, hypotheses in self.systems.items():
            results = [scorer.score_sentences(hypotheses, self.references) for scorer in self.scorers]
            columns, signatures = zip(*results, strict=True)
            for number, row in enumerate(zip(*columns, strict=True), start=1):
                lines.append("\t".join([name, str(number), *(f"{score:.4f}" for score in row)]))
        return "\n".join(lines) + "\n", list(signatures)

    def by_length(self) -> dict[str, list[GroupScore]]:
        """Score by length of the source sentence; log a hint if its words are not separated by spaces."""
        if not has_spaces(self._known_sources):
            say("hint: the source has no spaces between words, so --by-length counts whole clauses as words")
        classes = length_classes(self._known_sources)
        return {
            name: score_groups(lines, self.references, classes, self.scorers, lowercase=self.ignores_case)
            for name, lines in self.systems.items()
        }

    def by_frequency(
        self, frequencies: Mapping[str, int], words: Callable[[str], Sequence[str]]
    ) -> dict[str, list[WordScore]]:
        """Score words by training frequency, against the first reference; see `score_words`."""
        return {
            name: score_words(lines, self._first_references, frequencies, words) for name, lines in self.systems.items()
        }

    def differences(self, number: int) -> tuple[list[Difference], list[Difference]]:
        """Return up to `number` sentences on which the first of two systems is most ahead, and most behind."""
        first, second = self.systems.values()
        return largest_differences(first, second, self.references, self.sources, number, lowercase=self.ignores_case)

    @property
    def _first_references(self) -> list[str]:
        """The first reference of each sentence that is not blank; "" if all are."""
        return [next(filter(str.strip, refs), "") for refs in zip(*self.references, strict=True)]

    @property
    def _known_sources(self) -> Sequence[str]:
        assert self.sources is not None, "checked by the caller"
        return self.sources
