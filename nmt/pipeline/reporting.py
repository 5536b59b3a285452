"""The steps after training: average, translate, score and report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from nmt.data.prepare import load_prepared
from nmt.decode.requirements import decoding_files
from nmt.devices.precision import choose_precision
from nmt.diagnostics.leaks import SetLeaks, begin_search, read_leaks, record_leaks
from nmt.errors import UserError
from nmt.evaluate.forecast import read_forecast
from nmt.evaluate.report import (
    DataSummary,
    RunReport,
    TrainingSummary,
    describe_machine,
    describe_software,
    find_git_commit,
    summarize,
    with_direction,
)
from nmt.evaluate.report_format import write_report
from nmt.evaluate.translated import output_name
from nmt.logs import say
from nmt.pipeline.averaging import update_model
from nmt.pipeline.scoring import score_texts, translate_tests, warn_of_outdated
from nmt.plots.curves import draw_curves
from nmt.processes.distributed import World
from nmt.recipe import Recipe, dump_choices
from nmt.storage.sealed import manifest_digest
from nmt.train.batching import Workload
from nmt.train.state import TrainState
from nmt.train.validate import validate_average


def finish(recipe: Recipe, world: World, state: TrainState) -> None:
    """Write the final model, translate and score the test sets, and write and print the report."""
    run_dir = recipe.directory
    averaged = update_model(recipe)
    average_nll = validate_average(recipe, state, averaged, world.device)
    prepared = load_prepared(recipe.data_directory).report
    record_leaks(recipe, prepared, begin_search(recipe))  # the test sets may have changed during training
    leaks = read_leaks(run_dir)
    files = {} if recipe.is_language_model else decoding_files(recipe.decode)
    score_tests = score_texts if recipe.is_language_model else translate_tests
    tests, num_parameters = score_tests(recipe, world, leaks)
    warn_of_outdated(run_dir / "translations", {output_name(recipe, test.name) for test in tests})
    curves, notes = _draw_curves(recipe)
    report = RunReport(
        name=recipe.name,
        summary=summarize(recipe),
        seed=recipe.seed,
        data=DataSummary.from_prepare_report(prepared, _valid_leaks(leaks)),
        parameters=num_parameters,
        model=manifest_digest(run_dir / "model"),
        training=_summarize_training(recipe, world, state, averaged, average_nll),
        tests=tuple(with_direction(test, recipe) for test in tests),
        machine=describe_machine(),
        versions=describe_software(),
        git_commit=find_git_commit(),
        recipe=dump_choices(recipe),
        curves=curves,
        notes=notes,
        changes=tuple(state.changes),
        forecast=read_forecast(run_dir),
        start_from=None if recipe.train.start_from is None else str(recipe.train.start_from),
        decoding_files=files,
    )
    markdown, _ = write_report(report, run_dir)
    print(markdown.read_text(encoding="utf-8"), flush=True)  # noqa: T201 - the report is the result of the command
    say(f"report: {markdown}, model: {run_dir / 'model'}")


def _valid_leaks(leaks: Mapping[str, SetLeaks]) -> int | None:
    """Return the number of validation pairs in the training text; None if unknown."""
    counts = [set_leaks.counts() for name, set_leaks in leaks.items() if name.startswith("data.valid.")]
    return sum(count.sentences - count.clean for count in counts) if counts else None


def _draw_curves(recipe: Recipe) -> tuple[str | None, tuple[str, ...]]:
    """Return the file name of the training curves, or None and the reason."""
    try:
        return draw_curves(recipe.directory, recipe.directory / "curves.png", recipe.name).name, ()
    except UserError as error:
        return None, (f"No training curves: {error}",)


def _summarize_training(
    recipe: Recipe, world: World, state: TrainState, averaged: Sequence[Path], average_nll: float | None
) -> TrainingSummary:
    work = Workload(**state.workload) if state.workload else None
    best = "valid/average_" if state.is_best_from_ema else "valid/"
    return TrainingSummary(
        steps=state.step,
        epochs=state.epochs,
        seconds=state.seconds,
        tgt_tokens=state.tgt_tokens,
        world_size=state.processes or world.size,
        device=state.device or str(world.device),
        precision=state.precision or choose_precision(recipe.train.precision, world.device),
        valid_nll=state.best_validation.get(f"{best}nll"),
        valid_bleu=state.best_validation.get(f"{best}bleu") if recipe.train.best_metric == "bleu" else None,
        valid_step=state.best_step or None,
        is_worse_than_start=state.best_score < (state.start_score or state.best_score),
        is_from_ema=state.is_best_from_ema,
        averaged=0 if recipe.train.average == "ema" else len(averaged),
        skipped=state.skipped,
        micro_batches=work.micro_batches if work else None,
        useful_fraction=work.efficiency if work else None,
        average_nll=average_nll,
        valid=state.valid,
    )
