"""`nmt plan`: forecast of a run: updates, load balance, memory, disk and time."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import Annotated

import typer

from nmt.bench.forecast import finished_step, forecast_run, rejection
from nmt.cli.arguments import Overrides, RecipeArgument
from nmt.cli.metric_options import print_results
from nmt.data.corpus import require_files
from nmt.errors import CommandError, UserError
from nmt.evaluate.forecast import with_earlier_speed, write_forecast
from nmt.evaluate.forecast_table import forecast_table
from nmt.logs import is_first_rank, say, warn
from nmt.recipe import load_recipe
from nmt.storage.run_folder import require_own_files
from nmt.train.resume import require_same_text
from nmt.train.warm_start import with_start_model


def plan(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    processes: Annotated[str, typer.Option(help="Numbers of processes for the load balance forecast.")] = "1,2,4,8",
    seconds: Annotated[
        float, typer.Option(min=0, max=86_400, help="Duration of the measurement; 0 reuses an earlier one.")
    ] = 30,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Forecast a run before it starts: updates, epochs, load balance, memory, disk and time.

    Without subword sampling, early stopping and train.max_minutes, counts are exact, because the pairs of every update
    follow from the recipe and the prepared text. Time and memory come from a short run in a temporary directory on
    this machine, which must be otherwise idle. The time has a 95% confidence interval, which assumes that the speed
    does not change.

    Without prepared text, only model size and disk space are known; run `nmt prepare RECIPE` first. With it, the
    forecast is saved in the run directory, unless the run is finished or `nmt train` rejects the recipe; the report of
    `nmt run` compares it with the run.
    """
    loaded = with_start_model(load_recipe(recipe, overrides or ()))
    require_own_files(loaded.directory, ())
    numbers = _numbers(processes)
    problem = rejection(loaded)
    if problem and is_first_rank():
        warn(f"nmt train rejects this recipe, so the forecast is not saved: {problem}")
    forecast = forecast_run(loaded, numbers, seconds)
    if not is_first_rank():
        return
    forecast = with_earlier_speed(forecast, loaded.directory)
    print_results(asdict(forecast), [forecast_table(loaded, forecast)], "json" if as_json else "text")
    if problem:
        return
    if (step := finished_step(loaded)) is not None:
        say(f"{loaded.directory} is finished at step {step:,}, so the forecast is not saved")
        return
    if forecast.text is None:
        try:
            require_files([*loaded.data.train, *loaded.data.valid], loaded.data.root)
            require_same_text(loaded)
        except UserError as error:
            warn(f"only model size and disk space are forecast, because the text cannot be prepared: {error}")
            return
        call = shlex.join(["nmt", "prepare", str(recipe), *(overrides or ())])
        say(f"the text is not prepared; for a complete forecast: {call}, then rerun this command")
    else:
        say(f"wrote {write_forecast(forecast, loaded.directory)}")


def _numbers(text: str) -> list[int]:
    numbers = [int(part) if part.strip().isdecimal() else 0 for part in text.split(",")]
    if not 1 <= min(numbers) <= max(numbers) <= 4096:
        raise CommandError(f"--processes must be numbers from 1 to 4096, such as 1,2,4, got {text!r}; correct it")
    return numbers
