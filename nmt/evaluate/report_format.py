"""The report of a run as Markdown and JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from nmt.diagnostics.leaks import LeakCounts
from nmt.evaluate.forecast import Forecast
from nmt.evaluate.report import DataSummary, Machine, RunReport, ScoredTestSet, TrainingSummary
from nmt.evaluate.result_tables import (
    LEAK_HEADER,
    NEAR_LEAK_NOTE,
    group_header,
    group_row,
    leak_rows,
    metric_heading,
    score_cell,
    score_notes,
)
from nmt.evaluate.tables import escape_markdown, markdown_rows
from nmt.logs import counted, format_duration
from nmt.storage.finite import finite
from nmt.storage.sealed import write_file
from nmt.train.validate import perplexity


def write_report(report: RunReport, directory: Path) -> tuple[Path, Path]:
    """Write `report.md` and `report.json`; return their paths."""
    markdown, data = directory / "report.md", directory / "report.json"
    write_file(markdown, format_markdown(report).encode())
    write_file(data, format_json(report).encode())
    return markdown, data


def format_json(report: RunReport) -> str:
    """Format the fields of `RunReport` and derived values as JSON, with null for non-finite numbers."""
    tree = dataclasses.asdict(report)
    tree["training"]["tokens_per_second"] = report.training.tokens_per_second
    tree["training"]["valid_perplexity"] = report.training.valid_perplexity
    return json.dumps(finite(tree), ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def format_markdown(report: RunReport) -> str:
    """Format the report as Markdown: test scores, training, data, recipe, machine, samples."""
    blocks = [f"# {escape_markdown(report.name)}", f"{escape_markdown(report.summary)}."]
    for test in report.tests:
        blocks += _test_section(test, report.start_from)
    blocks += [*_training_section(report), *_data_section(report.data)]
    if report.recipe:
        blocks += [
            "## Recipe",
            "Non-default options. `recipe.toml` beside this report has all options.",
            f"```toml\n{report.recipe.rstrip()}\n```",
        ]
    blocks += _machine_section(report)
    for test in report.tests:
        blocks += _samples_section(test)
    return "\n\n".join(blocks) + "\n"


def _test_section(test: ScoredTestSet, start_from: str | None) -> Iterator[str]:
    rate = f", {test.sentences / test.seconds:,.1f} per second" if test.seconds else ""
    languages = f" ({test.languages})" if test.languages else ""
    yield f"## Test set {escape_markdown(test.name)}{languages}: {counted(test.sentences, 'sentence')}{rate}"
    if test.tag:
        yield f"Tag of the sources: `{test.tag}`."
    if test.search:
        yield f"Translated with {test.search}; other engines and precisions change some translations."
    yield _score_table(test)
    yield from map(escape_markdown, score_notes((*test.scores, *test.clean_scores)))
    yield from (f"{score.name}: {score.detail}" for score in test.scores if score.detail)
    if test.baseline_scores:
        yield f"{test.baseline}: {test.baseline_description}."
    yield from _leaks(test.leaks)
    if test.leaks is not None and start_from is not None:
        yield f"The training text of the initial model, {escape_markdown(start_from)}, was not searched."
    if test.groups:
        rows = [[escape_markdown(cell) for cell in group_row(group)] for group in test.groups]
        yield _table(group_header(test.groups, "label"), rows)
        shown = {score.name for score in test.scores}
        yield from (f"{score.name}: `{score.signature}`" for score in test.groups[0].scores if score.name not in shown)


def _score_table(test: ScoredTestSet) -> str:
    """Show scores of all sentences, of the clean ones if some are in the training text, and of the baseline."""
    columns = {"score": test.scores}
    if test.leaks is not None and test.clean_scores:
        columns = {f"all {test.sentences:,}": test.scores, f"clean {test.leaks.clean:,}": test.clean_scores}
    if test.baseline_scores:
        columns[test.baseline] = test.baseline_scores
    rows = (
        (metric_heading(scores[0].name), *map(score_cell, scores), f"`{scores[0].signature}`")
        for scores in zip(*columns.values(), strict=True)
    )
    return _table(("metric", *columns, "signature"), rows)


def _leaks(counts: LeakCounts | None) -> Iterator[str]:
    if counts is None:
        yield "Overlap with the training text is unknown, because the training text could not be searched."
    elif counts.clean == counts.sentences:
        yield f"No sentence has an exact or near match in the training text. {NEAR_LEAK_NOTE}"
    else:
        yield _table(("match in the training text", *LEAK_HEADER), leak_rows(counts))
        yield f"{NEAR_LEAK_NOTE} Clean sentences have no match on either side. `nmt leaks RECIPE` lists the others."


def _samples_section(test: ScoredTestSet) -> Iterator[str]:
    if test.samples:
        yield f"## Samples of {escape_markdown(test.name)}"
    for number, sample in enumerate(test.samples, start=1):
        src, ref, translation = map(escape_markdown, (sample.src, sample.ref, sample.translation))
        yield f"{number}. source: {src}<br>\n   reference: {ref}<br>\n   translation: {translation}"


def _training_section(report: RunReport) -> Iterator[str]:
    training = report.training
    processes = f", {training.world_size} processes" if training.world_size > 1 else ""
    skipped = f"; {training.skipped:,} skipped because of non-finite gradients" if training.skipped else ""
    yield "## Training"
    yield _pairs(
        {
            "parameters": f"{report.parameters:,}",
            "updates": f"{training.steps:,} ({training.epochs:.1f} epochs){skipped}",
            "time": format_duration(training.seconds),
            "speed": f"{training.tokens_per_second:,.0f} target tokens per second",
            "precision": f"{training.precision} on {training.device}{processes}",
            "micro-batches per update": _micro_batches(training),
            "best validation": _validation(training),
            "averaged checkpoints": _averaged(training),
            "seed": str(report.seed),
        }
    )
    if report.changes:
        rows = [
            (f"{change.step:,}", _option(change.option), _option(change.before), _option(change.now))
            for change in report.changes
        ]
        yield _table(("changed after update", "option", "before", "after"), rows)
    if report.forecast is not None:
        yield from _forecast(report, report.forecast)
    if report.curves:
        yield f"![Curves of the training run]({report.curves})"
    yield from (f"{escape_markdown(note)}." for note in report.notes)


def _option(value: object) -> str:
    return "not set" if value is None else escape_markdown(str(value))


def _forecast(report: RunReport, forecast: Forecast) -> Iterator[str]:
    """Compare the forecast of `nmt plan` with the run."""
    training, text, speed = report.training, forecast.text, forecast.speed
    rows = []
    if text is not None:
        rows += [
            ("updates", f"{text.updates:,}", f"{training.steps:,}"),
            ("epochs", f"{text.epochs:.2f}", f"{training.epochs:.2f}"),
            ("target tokens", f"{text.tgt_tokens:,}", f"{training.tgt_tokens:,}"),
        ]
    for work in forecast.work:
        if work.processes == training.world_size and training.useful_fraction is not None:
            rows.append(("useful fraction of the work", f"{work.useful:.1%}", f"{training.useful_fraction:.1%}"))
    if speed is not None:
        low, high = format_duration(speed.low), format_duration(speed.high)
        forecast_time = f"{format_duration(speed.seconds)} ({low} to {high})"
        rows.append(("training time", forecast_time, format_duration(training.seconds)))
    if not rows:
        return
    yield _table(("", "forecast of `nmt plan`", "run"), rows)
    if forecast.options != report.recipe:
        yield "The forecast was made with different options than the run."
    if speed is not None and (speed.processes, speed.device) != (training.world_size, training.device):
        yield f"The time forecast is for {speed.device} and a world size of {speed.processes}."


def _micro_batches(training: TrainingSummary) -> str:
    if training.micro_batches is None or training.useful_fraction is None:
        return "unknown"
    return f"{training.micro_batches:.3g}; {training.useful_fraction:.1%} of the computation is useful"


def _validation(training: TrainingSummary) -> str:
    if training.valid_nll is None:
        return "none has a finite score"
    at = f" at update {training.valid_step:,}" if training.valid_step is not None else ""
    worse = "; worse than the initial model" if training.is_worse_than_start else ""
    model = "EMA " if training.is_from_ema else ""
    bleu = f"BLEU {training.valid_bleu:.2f}, by which it was chosen, " if training.valid_bleu is not None else ""
    return f"{model}{bleu}{_nll(training.valid_nll)}{at}{worse}"


def _averaged(training: TrainingSummary) -> str:
    if not training.averaged:
        return "none; the model is the EMA"
    return f"{training.averaged}" + ("" if training.average_nll is None else f"; {_nll(training.average_nll)}")


def _nll(nll: float) -> str:
    value = perplexity(nll)
    shown = f"{value:.2f}" if value < 1e6 else f"{value:.3g}"
    return f"nll {nll:.4f}, perplexity {shown}"


def _data_section(data: DataSummary) -> Iterator[str]:
    valid, searched = f"{data.valid_pairs:,}", "them"
    if data.valid_read not in (None, data.valid_pairs):
        valid += f" of {data.valid_read:,}"
        searched = f"all {data.valid_read:,}"
    if data.valid_leaks is not None:
        valid += f", {data.valid_leaks:,} of {searched} with a match in the training text"
    yield "## Data"
    yield _pairs(
        {
            "training pairs": f"{data.train_pairs:,} of {data.train_read:,}",
            **{f"dropped: {escape_markdown(reason)}": f"{count:,}" for reason, count in data.dropped.items() if count},
            "training tokens": f"{data.src_tokens:,} source, {data.tgt_tokens:,} target",
            "validation pairs": valid,
            "vocabulary": f"{data.src_vocab_size:,} source, {data.tgt_vocab_size:,} target tokens",
        }
    )


def _machine_section(report: RunReport) -> Iterator[str]:
    yield "## Machine and software"
    yield _pairs(
        {
            "processor": f"{report.machine.cpu}, {counted(report.machine.cores, 'core')}",
            "GPUs": _gpus(report.machine),
            **report.versions,
            "git commit": report.git_commit or "unknown",
        }
    )


def _gpus(machine: Machine) -> str:
    return ", ".join(f"{machine.gpus.count(name)} x {name}" for name in dict.fromkeys(machine.gpus)) or "none"


def _pairs(rows: dict[str, str]) -> str:
    return _table(("", ""), rows.items())


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(markdown_rows(header, rows))
