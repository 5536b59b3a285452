"""What is found out about translations, as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nmt.data.leaks import LeakCounts
from nmt.evaluate.breakdown import WordScore
from nmt.evaluate.differences import Difference
from nmt.evaluate.metrics import GroupScore, Score
from nmt.evaluate.significance import Comparison
from nmt.evaluate.tables import Table

# Below this, a difference is called significant.
SIGNIFICANT = 0.05
P_VALUE_NOTE = (
    "p: how often chance alone would make two systems of equal quality differ by as much on this test set; "
    f"* marks p < {SIGNIFICANT}. It is not corrected for the number of comparisons."
)


def metric_heading(name: str) -> str:
    """The name of a metric, and its direction where that is not the usual one."""
    return "ter (lower is better)" if name == "ter" else name


def score_cell(score: Score) -> str:
    """A score with half of its interval, in as many digits as mean something."""
    digits = 4 if score.name == "comet" else 2
    interval = "" if score.interval is None else f" ± {score.interval:.{digits}f}"
    return f"{score.value:.{digits}f}{interval}"


LEAK_HEADER = ("source", "reference", "both, in one pair", "any of these")
NEARLY = "Nearly: only case, punctuation, spacing or Unicode form differ."


def leak_rows(counts: LeakCounts) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Numbers of test sentences in the training text under `LEAK_HEADER`: a line of exact ones, a line of near ones."""
    parts = counts.source, counts.reference, counts.both, counts.any
    return (
        ("exactly", *(f"{part.exact:,}" for part in parts)),
        ("nearly", *(f"{part.near:,}" for part in parts)),
    )


def leak_table(sets: Mapping[str, LeakCounts]) -> Table:
    """How many sentences of each set are in the training text, by what of them is there."""
    rows = []
    for name, counts in sets.items():
        exact, near = leak_rows(counts)
        rows += [(name, f"{counts.sentences:,}", *exact, f"{counts.clean:,}"), ("", "", *near, "")]
    return Table(
        title="",
        columns="lrlrrrrr",
        header=("", "sentences", "in the training text", *LEAK_HEADER, "clean"),
        rows=tuple(rows),
        notes=(NEARLY,),
    )


def leak_list_table(rows: Sequence[tuple[str, ...]]) -> Table:
    """Each leak: the place of the sentence, what of it is found and how, where first, how often, and both texts."""
    header = ("sentence", "found", "how", "first place in the training text", "pairs", "test text", "training text")
    return Table(title="", columns="llllrpp", header=header, rows=tuple(rows))


def score_notes(scores: Sequence[Score]) -> tuple[str, ...]:
    """What must be known to read these scores: what the sign ± means, and which figures are of another kind."""
    notes = []
    means = [abs(score.value - score.mean) for score in scores if score.mean is not None]
    if means:
        notes.append(
            "±: half of the 95 % interval over bootstrap resamples (bs) of sentences; its centre, their mean score, "
            f"is at most {max(means):.2f} away from the score."
        )
    if others := [name for name in dict.fromkeys(score.name for score in scores) if name.startswith("bleu-")]:
        notes.append(f"{', '.join(others)}: as older papers count, and not comparable with bleu, which is sacreBLEU's.")
    return tuple(notes)


def score_table(systems: Mapping[str, Sequence[Score]]) -> Table:
    """One line for each system, one column for each metric, the signatures below."""
    (first, *_) = systems.values()
    return Table(
        title="",
        columns="l" + "r" * len(first),
        header=("system", *(metric_heading(score.name) for score in first)),
        rows=tuple((name, *map(score_cell, scores)) for name, scores in systems.items()),
        signatures=tuple((score.name, score.signature) for score in first),
        notes=score_notes([score for scores in systems.values() for score in scores]),
    )


def length_table(system: str, groups: Sequence[GroupScore]) -> Table:
    """The scores of a system by length of the source sentence."""
    return Table(
        title=f"{system}, by words in the source sentence",
        columns="lrr" + "r" * len(groups[0].scores),
        header=("words", "sentences", "exactly right", *(metric_heading(score.name) for score in groups[0].scores)),
        rows=tuple(
            (group.group, f"{group.sentences:,}", f"{group.exact:.1f} %", *map(score_cell, group.scores))
            for group in groups
        ),
    )


def word_table(systems: Mapping[str, Sequence[WordScore]], words: str) -> Table:
    """The F-measure of words by their frequency in training, one column for each system; `words` says what they are."""
    of_system = [{score.frequency: score for score in scores} for scores in systems.values()]
    classes = {score.frequency: score for scores in systems.values() for score in scores}
    order = sorted(classes, key=lambda frequency: int(frequency.split()[0].replace(",", "")))
    return Table(
        title="F-measure of words (per cent), by how often training has them",
        columns="lr" + "r" * len(systems),
        header=("in training", "in the reference", *systems),
        rows=tuple(
            (
                frequency,
                f"{classes[frequency].in_reference:,}",
                *(f"{scores[frequency].f_measure:.2f}" if frequency in scores else "" for scores in of_system),
            )
            for frequency in order
        ),
        notes=(f"Words are {words}; of several references, the first counts here.",),
    )


def difference_tables(names: tuple[str, str], ahead: Sequence[Difference], behind: Sequence[Difference]) -> list[Table]:
    """The sentences on which one of two systems is most ahead, each with all that is said about it."""
    return [
        _difference_table(names, better, place, difference)
        for better, differences in zip(names, (ahead, behind), strict=True)
        for place, difference in enumerate(differences, start=1)
    ]


def _difference_table(names: tuple[str, str], better: str, place: int, difference: Difference) -> Table:
    scores = " and ".join(f"{score:.2f}" for score in difference.scores)
    src = [] if difference.src is None else [("source", difference.src)]
    number = len(difference.references)
    refs = [(f"reference {n}" if number > 1 else "reference", ref) for n, ref in enumerate(difference.references, 1)]
    return Table(
        title=f"{better} is ahead, {place}: line {difference.line:,}, {difference.metric} {scores}",
        columns="lp",
        header=(),
        rows=(*src, *refs, *zip(names, difference.translations, strict=True)),
    )


def comparison_tables(comparisons: Sequence[Comparison]) -> list[Table]:
    """A table for each metric: score, difference to the baseline, interval, and how probable that is by luck."""
    tables = [_comparison_table(comparison) for comparison in comparisons]
    return [*tables[:-1], *(replace(table, notes=(P_VALUE_NOTE,)) for table in tables[-1:])]


def _comparison_table(comparison: Comparison) -> Table:
    systems = comparison.systems
    intervals = [f"{row.mean:.2f} ± {row.interval:.2f}" if row.interval is not None else "" for row in systems]
    columns = {
        "system": [row.system if row.difference is not None else f"{row.system} (baseline)" for row in systems],
        "score": [f"{row.score:.2f}" for row in systems],
        "difference": [f"{row.difference:+.2f}" if row.difference is not None else "" for row in systems],
        "mean and 95 % interval": intervals,
        "p, bootstrap": [_p_cell(row.p_bootstrap, row.difference) for row in systems],
        "p, randomization": [_p_cell(row.p_randomization, row.difference) for row in systems],
    }
    shown = {heading: cells for heading, cells in columns.items() if any(cells)}  # without the test that was left out
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
    # sacreBLEU's bootstrap gives even equal outputs the least p there is, since no difference by chance exceeds none.
    return f"{p:.4f}{'*' if p < SIGNIFICANT and difference else ' '}"
