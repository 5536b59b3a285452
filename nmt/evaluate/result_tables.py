"""Evaluation results as tables and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from nmt.diagnostics.leaks import LeakCounts
from nmt.evaluate.breakdown import WordScore
from nmt.evaluate.differences import Difference
from nmt.evaluate.metrics import GroupScore, Score
from nmt.evaluate.significance import Comparison
from nmt.evaluate.tables import Table

_SIGNIFICANCE_LEVEL = 0.05
_P_VALUE_NOTE = (
    "p: probability that two systems of equal quality differ by at least as much on this test set; "
    f"* marks p < {_SIGNIFICANCE_LEVEL}. It is not corrected for multiple comparisons."
)
LEAK_HEADER = ("source", "reference", "both, in one pair", "any of these")
NEAR_LEAK_NOTE = "Near matches differ only in case, punctuation, spacing or Unicode form."


@dataclass
class Evaluation:
    """Results of `nmt evaluate`, by system name. Analyses that were not requested are empty or None.

    words:         description of the words of `by_frequency`
    ahead, behind: sentences on which the first of two systems is better, and worse
    """

    scores: Mapping[str, Sequence[Score]]
    by_length: Mapping[str, Sequence[GroupScore]] = field(default_factory=dict)
    by_frequency: Mapping[str, Sequence[WordScore]] = field(default_factory=dict)
    words: str = ""
    ahead: Sequence[Difference] | None = None
    behind: Sequence[Difference] | None = None

    def tables(self) -> list[Table]:
        """Return all results as tables, scores first."""
        tables = [_score_table(self.scores)]
        tables += [_length_table(name, groups) for name, groups in self.by_length.items()]
        if self.by_frequency:
            tables.append(_word_table(self.by_frequency, self.words))
        if self.ahead is not None and self.behind is not None:
            first, second, *_ = self.scores
            for better, differences in ((first, self.ahead), (second, self.behind)):
                tables += [
                    _difference_table((first, second), better, rank, difference)
                    for rank, difference in enumerate(differences, start=1)
                ]
        return tables

    def document(self) -> dict[str, Any]:
        """Return all results in full precision for JSON, without analyses that were not requested."""
        document: dict[str, Any] = {"systems": _dicts(self.scores)}
        if self.by_length:
            document["by_source_length"] = _dicts(self.by_length)
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


def metric_heading(name: str) -> str:
    """Return the name of a metric, with its direction if lower is better."""
    return f"{name} (lower is better)" if name in ("ter", "perplexity", "bits-per-byte") else name


def score_cell(score: Score) -> str:
    """Format a score with the half width of its interval."""
    digits = 4 if score.name in ("comet", "bits-per-byte") else 2
    interval = "" if score.interval is None else f" ± {score.interval:.{digits}f}"
    return f"{score.value:.{digits}f}{interval}"


def score_notes(scores: Sequence[Score]) -> tuple[str, ...]:
    """Explain intervals and metrics that are not comparable with the others."""
    notes = []
    offsets = [abs(score.value - score.mean) for score in scores if score.mean is not None]
    if offsets:
        notes.append(
            "±: half width of the 95% interval over bootstrap resamples (bs) of sentences. Its center, the mean of "
            f"the resamples, is within {max(offsets):.2f} of the score."
        )
    others = dict.fromkeys(score.name for score in scores if score.name.startswith("bleu-"))
    if others:
        notes.append(f"{', '.join(others)}: computed as in older papers; not comparable with bleu, which is sacreBLEU.")
    return tuple(notes)


def group_header(groups: Sequence[GroupScore], label: str) -> tuple[str, ...]:
    """Return the header of a table of groups."""
    return (label, "sentences", "exact match", *(metric_heading(score.name) for score in groups[0].scores))


def group_row(group: GroupScore) -> tuple[str, ...]:
    """Return the row of a group."""
    return group.group, f"{group.sentences:,}", f"{group.exact:.1f}%", *map(score_cell, group.scores)


def leak_rows(counts: LeakCounts) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the cells below `LEAK_HEADER` with their names: a row of exact matches, then one of near matches."""
    parts = counts.source, counts.reference, counts.both, counts.any
    return (
        ("exact", *(f"{part.exact:,}" for part in parts)),
        ("near", *(f"{part.near:,}" for part in parts)),
    )


def leak_table(sets: Mapping[str, LeakCounts]) -> Table:
    """Count the leaked sentences of each test set, by leaked side."""
    rows = []
    for name, counts in sets.items():
        exact, near = leak_rows(counts)
        rows += [(name, f"{counts.sentences:,}", *exact, f"{counts.clean:,}"), ("", "", *near, "")]
    return Table(
        title="",
        columns="lrlrrrrr",
        header=("", "sentences", "match", *LEAK_HEADER, "clean"),
        rows=tuple(rows),
        notes=(NEAR_LEAK_NOTE,),
    )


def leak_list_table(sets: Sequence[Mapping[str, Any]]) -> Table:
    """List each leak: sentence, leaked side, match, first location, number of pairs and both texts.

    sets: as in the JSON of `nmt leaks`
    """
    header = ("sentence", "side", "match", "first location in the training text", "pairs", "test text", "training text")
    rows = tuple(
        (
            f"{searched['name']}:{leak['line']}",
            leak["part"],
            leak["kind"],
            leak["location"],
            f"{leak['times']:,}",
            leak["text"],
            leak["found"] if leak["kind"] == "near" else "",
        )
        for searched in sets
        for leak in searched["leaks"]
    )
    return Table(title="", columns="llllrpp", header=header, rows=rows)


def comparison_tables(comparisons: Sequence[Comparison]) -> list[Table]:
    """Return a table per metric: scores, differences from the baseline, intervals and p-values."""
    tables = [_comparison_table(comparison) for comparison in comparisons]
    if tables:
        tables[-1] = replace(tables[-1], notes=(_P_VALUE_NOTE,))
    return tables


def _score_table(systems: Mapping[str, Sequence[Score]]) -> Table:
    (first, *_) = systems.values()
    return Table(
        title="",
        columns="l" + "r" * len(first),
        header=("system", *(metric_heading(score.name) for score in first)),
        rows=tuple((name, *map(score_cell, scores)) for name, scores in systems.items()),
        signatures=tuple((score.name, score.signature) for score in first),
        notes=score_notes([score for scores in systems.values() for score in scores]),
    )


def _length_table(system: str, groups: Sequence[GroupScore]) -> Table:
    return Table(
        title=f"{system}, by words in the source sentence",
        columns="lrr" + "r" * len(groups[0].scores),
        header=group_header(groups, "words"),
        rows=tuple(map(group_row, groups)),
    )


def _word_table(systems: Mapping[str, Sequence[WordScore]], words: str) -> Table:
    by_system = [{score.frequency: score for score in scores} for scores in systems.values()]
    in_reference = {score.frequency: score.in_reference for scores in systems.values() for score in scores}
    order = sorted(in_reference, key=lambda frequency: int(frequency.split()[0].replace(",", "")))
    return Table(
        title="F-measure of words (percent), by frequency in the training text",
        columns="lr" + "r" * len(systems),
        header=("in training", "in the reference", *systems),
        rows=tuple(
            (
                frequency,
                f"{in_reference[frequency]:,}",
                *(f"{scores[frequency].f_measure:.2f}" if frequency in scores else "" for scores in by_system),
            )
            for frequency in order
        ),
        notes=(f"Words are {words}. Only the first reference counts.",),
    )


def _difference_table(names: tuple[str, str], better: str, rank: int, difference: Difference) -> Table:
    scores = " and ".join(f"{score:.2f}" for score in difference.scores)
    rows = [] if difference.src is None else [("source", difference.src)]
    for number, reference in enumerate(difference.references, start=1):
        rows.append((f"reference {number}" if len(difference.references) > 1 else "reference", reference))
    rows += zip(names, difference.translations, strict=True)
    return Table(
        title=f"{better} is ahead, rank {rank}: line {difference.line:,}, {difference.metric} {scores}",
        columns="lp",
        header=(),
        rows=tuple(rows),
    )


def _comparison_table(comparison: Comparison) -> Table:
    systems = comparison.systems
    columns = {
        "system": [row.system if row.difference is not None else f"{row.system} (baseline)" for row in systems],
        "score": [f"{row.score:.2f}" for row in systems],
        "difference": [f"{row.difference:+.2f}" if row.difference is not None else "" for row in systems],
        "mean and 95% interval": [
            f"{row.mean:.2f} ± {row.interval:.2f}" if row.interval is not None else "" for row in systems
        ],
        "p, bootstrap": [_p_cell(row.p_bootstrap, row.difference) for row in systems],
        "p, randomization": [_p_cell(row.p_randomization, row.difference) for row in systems],
    }
    shown = {heading: cells for heading, cells in columns.items() if any(cells)}  # omits a test that was not run
    return Table(
        title=metric_heading(comparison.metric),
        columns="l" + "r" * (len(shown) - 1),
        header=tuple(shown),
        rows=tuple(zip(*shown.values(), strict=True)),
        signatures=tuple((comparison.metric, signature) for signature in comparison.signatures),
    )


def _p_cell(p: float | None, difference: float | None) -> str:
    if p is None:
        return ""
    # The p-value of a difference of 0 may be small, so a difference is required too.
    return f"{p:.4f}{'*' if p < _SIGNIFICANCE_LEVEL and difference else ' '}"


def _dicts(results: Mapping[str, Sequence[Score]] | Mapping[str, Sequence[GroupScore]]) -> dict[str, Any]:
    return {name: [asdict(item) for item in items] for name, items in results.items()}
