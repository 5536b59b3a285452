"""`nmt repeat`: run a recipe in several variants and with several seeds, and compare the scores."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, get_args

import typer

from nmt.cli.arguments import Overrides, RecipeArgument, find_recipe, require_at_most_one
from nmt.cli.metric_options import Format, FormatOption, JsonOption, output_format, print_results
from nmt.errors import CommandError, UserError
from nmt.evaluate.result_tables import metric_heading
from nmt.evaluate.tables import format_tables
from nmt.experiments.launch import command, execute, is_complete, prepare_data
from nmt.experiments.results import (
    TestResult,
    as_document,
    describe_runs,
    notes_on_training,
    read_results,
    require_comparable,
    require_same_test_sets,
    result_tables,
    runs_section,
    warn_of_replaced,
    warn_of_unpinned,
)
from nmt.experiments.sweep import Run, Sweep, is_sweep, load_sweep, make_sweep, require_own_folder, require_translations
from nmt.logs import counted, say, warn
from nmt.plots.scores import VariantScores, draw_scores
from nmt.recipe import Metric
from nmt.storage.sealed import write_file
from nmt.text.lines import STANDARD_STREAM

_VARY = "Values of an option. If repeated, all combinations are run. The first value is the baseline."
_SEEDS = "Runs per variant, with consecutive seeds (default: the number in the sweep, or 3)."
_JOBS = "Parallel runs, which share the GPUs or cores (default: one per GPU, else one)."
_ONLY = "Execute only this run, by its number in --list; for job arrays, after --prepare-only."


def repeat(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    vary: Annotated[list[str] | None, typer.Option(metavar="KEY=A,B", help=_VARY)] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help=_SEEDS)] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="Directory of all runs (default: runs/NAME-repeat for NAME.toml)."),
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help=_JOBS)] = None,
    metric: Annotated[str | None, typer.Option(help="Metric to compare (default: the first of the recipe).")] = None,
    only: Annotated[int | None, typer.Option(min=1, metavar="NUMBER", help=_ONLY)] = None,
    prepare_only: Annotated[bool, typer.Option("--prepare-only", help="Prepare all data, then exit.")] = False,
    list_runs: Annotated[bool, typer.Option("--list", help="List the runs and their commands, then exit.")] = False,
    output: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a recipe with several seeds, and optionally in several variants, and compare the scores.

    RECIPE may also be a sweep: a TOML file with recipe, seeds, overrides and variants. Rerun the command to resume
    interrupted runs; complete runs are skipped.

    nmt repeat quickstart --seeds 5 --vary model.num_heads=2,4 --vary model.d_ff=256,512 --jobs 2
    """
    output = output_format(output, as_json)
    require_at_most_one({"--jobs": jobs is not None, "--list": list_runs, "--prepare-only": prepare_only})
    require_at_most_one({"--jobs": jobs is not None, "--only": only is not None})
    if metric is not None and metric not in get_args(Metric):
        raise CommandError(f"--metric {metric}: unknown metric; it must be one of {', '.join(get_args(Metric))}")
    sweep = _load(recipe, overrides or (), vary or (), seeds)
    if out == STANDARD_STREAM:
        raise CommandError("-o - is not supported; it must be a directory; name one")
    folder = out or Path("runs") / f"{recipe.stem}-repeat"
    runs = sweep.runs(folder)
    if not list_runs:
        require_own_folder(folder, runs)
    require_translations(runs)
    has_report = not (list_runs or prepare_only or only)
    if has_report:
        _check_report(runs, metric, folder)
    elif metric is not None or output != "text":
        raise CommandError(
            "--metric, --format and --json have no effect without a report; leave them out, or execute all runs"
        )
    elif not list_runs:  # the table of these runs is printed later
        require_same_test_sets(runs)
    chosen = runs if only is None else [_numbered(runs, only)]
    if list_runs:
        _list(chosen)
        return
    failed = prepare_data(chosen) if prepare_only else execute(chosen, jobs)
    if has_report and len(failed) < len(runs):
        _report(runs, read_results(runs, metric), folder, output)
    if failed:
        raise UserError(
            f"{len(failed)} of {counted(len(chosen), 'run')} failed: {'; '.join(run.name for run in failed)}; the "
            "lines above say why; fix the cause and rerun the command"
        )


def _check_report(runs: Sequence[Run], metric: str | None, folder: Path) -> None:
    """Raise UserError, before training, unless the runs can be compared; warn of an empty table and lost results."""
    require_comparable(runs, metric)
    if not runs[0].recipe.data.test:
        warn(f"{runs[0].recipe_file} has no test set; the table will be empty; add a test set to data.test")
    warn_of_replaced(folder, runs, metric)


def _load(recipe: Path, overrides: Sequence[str], vary: Sequence[str], seeds: int | None) -> Sweep:
    """Load a sweep, or make one of a recipe and the variants of the command line."""
    if not is_sweep(recipe):
        return make_sweep(recipe, seeds or 3, overrides, vary)
    if vary:
        raise CommandError(f"{recipe} is a sweep, which defines its variants; leave out --vary, or give a recipe")
    return load_sweep(recipe, find_recipe, seeds, overrides)


def _numbered(runs: Sequence[Run], number: int) -> Run:
    if number > len(runs):
        raise CommandError(f"--only {number}: the last is {len(runs)}; give a number that --list shows")
    return runs[number - 1]


def _list(runs: Sequence[Run]) -> None:
    for run in runs:
        state = "complete" if is_complete(run) else ""
        typer.echo(f"{run.number}\t{run.name}\t{state}\t{shlex.join(['nmt', *command(run)])}")


def _report(runs: Sequence[Run], results: Sequence[TestResult], folder: Path, output: Format) -> None:
    """Write the results to the directory of the runs, and print them."""
    warn_of_unpinned(runs)
    notes = list(notes_on_training(runs))
    for note in notes:
        warn(note)
    tables = result_tables(results)
    described = describe_runs(runs)
    document = as_document(results) | {"notes": notes, "runs": described}
    title = f"# {folder.name}\n\n{counted(len(runs), 'run')} of {runs[0].recipe_file}.\n\n"
    title += "".join(f"{note}.\n\n" for note in notes)
    markdown = f"{title}{format_tables(tables, 'markdown').rstrip()}\n\n{runs_section(described)}"
    write_file(folder / "report.md", markdown.encode())
    write_file(folder / "report.json", (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())
    for result in results:
        variants = [VariantScores(v.name, v.scores, v.mean.value, v.mean.half_width) for v in result.variants]
        try:
            draw_scores(f"{result.test}: {metric_heading(result.metric)}", variants, folder / f"{result.test}.png")
        except UserError as error:
            warn(f"no plot: {error}")
    print_results(document, tables, output)
    say(f"report: {folder / 'report.md'}")
