"""The page about a run: its facts as Markdown for people and JSON for programs."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nmt.data.leaks import LeakCounts
from nmt.evaluate.metrics import GroupScore
from nmt.evaluate.report import DataSummary, RunReport, ScoredTestSet, TrainingSummary
from nmt.evaluate.result_tables import LEAK_HEADER, NEARLY, leak_rows, metric_heading, score_cell, score_notes
from nmt.evaluate.tables import escape_markdown, markdown_rows
from nmt.logs import format_duration
from nmt.train.state import Change


def write_report(facts: RunReport, directory: Path) -> tuple[Path, Path]:
    """Write `report.md` and `report.json` into `directory`; returns their paths."""
    markdown, data = directory / "report.md", directory / "report.json"
    markdown.write_text(format_markdown(facts), encoding="utf-8")
    data.write_text(format_json(facts), encoding="utf-8")
    return markdown, data


def format_json(facts: RunReport) -> str:
    """Format the fields of `RunReport` and derived values as JSON, with null for non-finite numbers."""
    tree = dataclasses.asdict(facts)
    tree["training"]["tokens_per_second"] = facts.training.tokens_per_second
    tree["training"]["valid_perplexity"] = facts.training.valid_perplexity
    return json.dumps(_finite(tree), ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def format_markdown(facts: RunReport) -> str:
    """The report as Markdown: scores first, then how they came about, then samples."""
    lines = [f"# {escape_markdown(facts.name)}", "", f"{escape_markdown(facts.summary)}.", ""]
    for test in facts.tests:
        lines += [*_test_section(test), ""]
    lines += [*_training_section(facts), "", *_data_section(facts.data), ""]
    lines += [*_recipe_section(facts), *_origin_section(facts)]
    for test in facts.tests:
        lines += _samples_section(test)
    return "\n".join(lines) + "\n"


def _test_section(test: ScoredTestSet) -> Iterator[str]:
    rate = f", {test.sentences / test.seconds:,.1f} a second" if test.seconds else ""
    yield f"## Test set {escape_markdown(test.name)}: {test.sentences:,} sentences{rate}"
    yield ""
    yield from _score_table(test)
    for note in score_notes((*test.scores, *test.clean_scores)):
        yield ""
        yield escape_markdown(note)
    for score in test.scores:
        if score.detail:
            yield ""
            yield f"{score.name}: {score.detail}"
    yield ""
    yield from _leaks(test.leaks)
    if test.groups:
        yield ""
        yield from _group_table(test.groups)


def _score_table(test: ScoredTestSet) -> Iterator[str]:
    """The scores of all sentences, and beside them of those that are not in the training text where others are."""
    columns = {"score": test.scores}
    if test.leaks is not None and test.clean_scores:
        columns = {f"all {test.sentences:,}": test.scores, f"clean {test.leaks.clean:,}": test.clean_scores}
    rows = (
        (metric_heading(of_all.name), *map(score_cell, scores), f"`{of_all.signature}`")
        for of_all, scores in zip(test.scores, zip(*columns.values(), strict=True), strict=True)
    )
    return markdown_rows(("metric", *columns, "signature"), rows)


def _leaks(counts: LeakCounts | None) -> Iterator[str]:
    if counts is None:
        yield "It is unknown which of its sentences are in the training text, which could not be searched."
        return
    if counts.clean == counts.sentences:
        yield f"None of its sentences is in the training text, exactly or nearly. {NEARLY}"
        return
    yield from markdown_rows(("in the training text", *LEAK_HEADER), leak_rows(counts))
    yield ""
    yield f"{NEARLY} Clean sentences have neither side there. `nmt leaks RECIPE` lists the others."


def _samples_section(test: ScoredTestSet) -> Iterator[str]:
    if test.samples:
        yield ""
        yield f"## Samples of {escape_markdown(test.name)}"
    for number, sample in enumerate(test.samples, start=1):
        yield ""
        yield f"{number}. source: {escape_markdown(sample.src)}<br>"
        yield f"   reference: {escape_markdown(sample.ref)}<br>"
        yield f"   translation: {escape_markdown(sample.translation)}"


def _group_table(groups: Sequence[GroupScore]) -> Iterator[str]:
    header = ("label", "sentences", "exactly right", *(metric_heading(score.name) for score in groups[0].scores))
    rows = (
        (
            escape_markdown(group.group),
            f"{group.sentences:,}",
            f"{group.exact:.1f} %",
            *map(score_cell, group.scores),
        )
        for group in groups
    )
    return markdown_rows(header, rows)


def _training_section(facts: RunReport) -> Iterator[str]:
    training = facts.training
    processes = f", {training.world_size} processes" if training.world_size > 1 else ""
    yield "## Training"
    yield ""
    yield from _pairs(
        {
            "parameters": f"{facts.parameters:,}",
            "updates": _updates(training),
            "time": format_duration(training.seconds),
            "speed": f"{training.tokens_per_second:,.0f} target tokens a second",
            "computed in": f"{training.precision} on {training.device}{processes}",
            "micro-batches of an update": _micro_batches(training),
            "best validation": _validation(training),
            "averaged checkpoints": str(training.averaged),
            "seed": str(facts.seed),
        }
    )
    if facts.changes:
        yield ""
        yield from markdown_rows(
            ("option changed after update", "option", "before", "then"), map(_change, facts.changes)
        )
    if facts.curves:
        yield ""
        yield f"![Curves of the training run]({facts.curves})"
    for note in facts.notes:
        yield ""
        yield f"{escape_markdown(note)}."


def _change(change: Change) -> tuple[str, ...]:
    values = (escape_markdown(str(value)) for value in (change.before, change.now))
    return f"{change.step:,}", escape_markdown(change.option), *values


def _micro_batches(training: TrainingSummary) -> str:
    if training.micro_batches is None or training.work_share is None:
        return "unknown"
    processes = "process" if training.world_size == 1 else f"{training.world_size} processes"
    return f"{training.micro_batches:.3g}; {training.work_share:.1%} of the work of the {processes} counts"


def _updates(training: TrainingSummary) -> str:
    skipped = f"; {training.skipped:,} of them skipped, having no finite gradient" if training.skipped else ""
    return f"{training.steps:,} ({training.epochs:.1f} epochs){skipped}"


def _validation(training: TrainingSummary) -> str:
    if training.valid_nll is None:
        return "never measured"
    at = f" at update {training.valid_step:,}" if training.valid_step is not None else ""
    perplexity = training.valid_perplexity or math.nan
    shown = f"{perplexity:.2f}" if perplexity < 1e6 else f"{perplexity:.3g}"
    return f"nll {training.valid_nll:.4f}, perplexity {shown}{at}"


def _data_section(data: DataSummary) -> Iterator[str]:
    yield "## Data"
    yield ""
    yield from _pairs(
        {
            "training pairs": f"{data.train_pairs:,} of {data.train_read:,}",
            **{f"dropped: {escape_markdown(reason)}": f"{count:,}" for reason, count in data.dropped.items() if count},
            "training tokens": f"{data.src_tokens:,} source, {data.tgt_tokens:,} target",
            "development pairs": f"{data.valid_pairs:,}{_valid_leaks(data)}",
            "vocabulary": f"{data.src_vocab_size:,} source, {data.tgt_vocab_size:,} target pieces",
        }
    )


def _valid_leaks(data: DataSummary) -> str:
    return f", {data.valid_leaks:,} of them in the training text" if data.valid_leaks is not None else ""


def _recipe_section(facts: RunReport) -> Iterator[str]:
    if facts.recipe:
        yield "## Recipe"
        yield ""
        yield "All options that are not the default; `recipe.toml` beside this report has every one."
        yield ""
        yield "```toml"
        yield facts.recipe.rstrip("\n")
        yield "```"
        yield ""


def _origin_section(facts: RunReport) -> Iterator[str]:
    yield "## Machine and software"
    yield ""
    yield from _pairs(
        {
            "processor": f"{facts.machine.cpu}, {facts.machine.cores} cores",
            "GPUs": _count_equal(facts.machine.gpus) or "none",
            **facts.versions,
            "git commit": facts.git_commit or "unknown",
        }
    )


def _count_equal(names: Sequence[str]) -> str:
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _pairs(rows: dict[str, str]) -> Iterator[str]:
    return markdown_rows(("", ""), rows.items())


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
        case _:
            return value
