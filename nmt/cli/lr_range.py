"""`nmt lr-range`: learning rate range test."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from nmt.alignment.training import changed_alignment
from nmt.cli.arguments import Overrides, RecipeArgument, file_path, require_plot
from nmt.cli.metric_options import print_results
from nmt.data.corpus import require_files
from nmt.data.fingerprint import outdated_splits
from nmt.data.prepare import load_prepared
from nmt.data.shared import verify_data
from nmt.diagnostics.lr_range import RateRange, run_range_test
from nmt.errors import CommandError, UserError
from nmt.evaluate.tables import Table
from nmt.logs import say
from nmt.plots.rates import draw_rate_range
from nmt.processes.distributed import start_world
from nmt.recipe import Recipe, load_recipe
from nmt.train.warm_start import with_start_model


def lr_range(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    lowest: Annotated[float, typer.Option(help="First learning rate.")] = 1e-6,
    highest: Annotated[float, typer.Option(help="Last learning rate.")] = 1.0,
    updates: Annotated[int, typer.Option(min=20, help="Number of updates, one rate each.")] = 200,
    out: Annotated[
        Path, typer.Option("-o", "--out", parser=file_path, metavar="FILE", help="Plot: .png, .svg or .pdf.")
    ] = Path("lr-range.png"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the loss at each rate.")] = False,
) -> None:
    """Increase the learning rate at every update, and plot the loss (Smith 2017).

    A good peak rate is where the loss falls steeply, well below the rate with the lowest loss. The test trains from
    the initial weights, without the recipe's schedule, dropout ramp and subword sampling, until the loss diverges.
    With a long warm-up, training tolerates higher rates than the test.

    Needs prepared text (`nmt prepare RECIPE`); nothing is written to the run.
    """
    if not 0 < lowest < highest < math.inf:
        raise CommandError(f"--lowest must be positive and below a finite --highest, got {lowest:g} and {highest:g}")
    require_plot("-o", out)
    loaded = with_start_model(load_recipe(recipe, overrides or ()))
    prepared = load_prepared(loaded.data_directory)
    if "train" in outdated_splits(loaded, prepared.directory) or changed_alignment(loaded):
        require_files(loaded.data.train, loaded.data.root)
        raise UserError(
            f"{prepared.directory} was prepared from other text or with other options; it must match the recipe; run "
            "`nmt prepare` with the same recipe and overrides"
        )
    with start_world(loaded.train.device, "rerun the command") as world:
        verify_data(prepared, world)
        result = run_range_test(loaded, prepared, world, lowest, highest, updates)
    if not world.is_main:
        return
    if not result.points:
        raise UserError(f"the loss is not finite at the first rate; --lowest must be lower than {lowest:g}; lower it")
    table = Table("", "ll", (), tuple(_rows(loaded, result)))
    print_results(asdict(result), [table], "json" if as_json else "text")
    draw_rate_range(result, out, loaded.name)
    say(f"wrote {out}")


def _rows(recipe: Recipe, result: RateRange) -> Iterator[tuple[str, str]]:
    first, last = result.points[0].learning_rate, result.points[-1].learning_rate
    yield "updates", f"{len(result.points):,}, {first:.2g} to {last:.2g}"
    yield "steepest descent", _with_factor(recipe, result.steepest)
    yield "lowest loss", _with_factor(recipe, result.lowest)
    yield "diverged", f"at {last:.2g}" if result.diverged else "no; raise --highest"


def _with_factor(recipe: Recipe, rate: float) -> str:
    """Format a rate; for `noam`, add the factor whose schedule peaks at it."""
    train = recipe.train
    if train.schedule != "noam":
        return f"{rate:.2g}"
    factor = rate * math.sqrt(recipe.model.d_model * train.warmup_steps)
    return f"{rate:.2g} (the peak of noam with train.learning_rate={factor:.2g})"
