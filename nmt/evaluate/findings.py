"""All that `nmt evaluate` finds out about some systems, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from nmt.evaluate.breakdown import WordScore
from nmt.evaluate.differences import Difference
from nmt.evaluate.metrics import GroupScore, Score
from nmt.evaluate.result_tables import difference_tables, length_table, score_table, word_table
from nmt.evaluate.tables import Table


@dataclass(frozen=True)
class Findings:
    """What was found, by name of the system; what was not asked for is empty or None.

    scores:       over the whole test set
    by_length:    by length of the source sentence
    by_frequency: words by how often training has them
    words:        what a word of `by_frequency` is
    ahead, behind: sentences on which the first of two systems is most ahead, and most behind
    """

    scores: Mapping[str, Sequence[Score]]
    by_length: Mapping[str, Sequence[GroupScore]] = field(default_factory=dict)
    by_frequency: Mapping[str, Sequence[WordScore]] = field(default_factory=dict)
    words: str = ""
    ahead: Sequence[Difference] | None = None
    behind: Sequence[Difference] | None = None

    def tables(self) -> list[Table]:
        """Everything, the scores first."""
        tables = [score_table(self.scores)]
        tables += [length_table(name, groups) for name, groups in self.by_length.items()]
        if self.by_frequency:
            tables.append(word_table(self.by_frequency, self.words))
        if self.ahead is not None and self.behind is not None:
            first, second, *_ = self.scores
            tables += difference_tables((first, second), self.ahead, self.behind)
        return tables

    def document(self) -> dict[str, Any]:
        """Everything, in full precision, as JSON can hold it; what was not asked for is left out."""
        document: dict[str, Any] = {"systems": _plain(self.scores)}
        if self.by_length:
            document["by_source_length"] = _plain(self.by_length)
        if self.by_frequency:
            document["by_training_frequency"] = {
                name: [{**asdict(score), "f_measure": score.f_measure} for score in scores]
                for name, scores in self.by_frequency.items()
            }
            document["words"] = self.words
        for name, differences in (("first_ahead", self.ahead), ("second_ahead", self.behind)):
            if differences is not None:
                document[name] = [asdict(difference) for difference in differences]
        return document


def _plain(found: Mapping[str, Sequence[Score]] | Mapping[str, Sequence[GroupScore]]) -> dict[str, Any]:
    return {name: [asdict(item) for item in items] for name, items in found.items()}
