"""`nmt plan`: forecast of a run: updates, load balance, memory, disk and time."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer

from nmt.bench.forecast import forecast_run, rejection
from nmt.cli.arguments import Overrides, RecipeArgument
from nmt.cli.metric_options import print_results
from nmt.data.corpus import require_files
from nmt.errors import CommandError, UserError
from nmt.evaluate.forecast import Forecast, SpeedForecast, write_forecast
from nmt.evaluate.tables import Table
from nmt.logs import counted, format_duration, is_first_rank, say, warn
from nmt.recipe import Recipe, load_recipe
from nmt.storage.run_folder import require_own_files
from nmt.train.disk_space import format_bytes
from nmt.train.resume import require_same_text
from nmt.train.schedule import schedule_problems
from nmt.train.warm_start import with_start_model


def plan(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    processes: Annotated[str, typer.Option(help="Numbers of processes for the load balance forecast.")] = "1,2,4,8",
    seconds: Annotated[float, typer.Option(min=0, max=86_400, help="Duration of the measurement, 0 for none.")] = 30,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Forecast a run before it starts: updates, epochs, load balance, memory, disk and time.

    Without subword sampling, early stopping and train.max_minutes, counts are exact, because the pairs of every update
    follow from the recipe and the prepared text. Time and memory come from a short run in a temporary directory on
    this machine, which must be otherwise idle. The time has a 95% confidence interval, which assumes that the speed
    does not change.

    Without prepared text, only model size and disk space are known; run `nmt prepare RECIPE` first. A full forecast is
    saved in the run directory, unless `nmt train` rejects the recipe; the report of `nmt run` compares it with the run.
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
    table = Table("", "ll", (), tuple(_rows(loaded, forecast)), notes=tuple(_notes(loaded, forecast)))
    print_results(asdict(forecast), [table], "json" if as_json else "text")
    if problem:
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


def _rows(recipe: Recipe, forecast: Forecast) -> Iterator[tuple[str, str]]:
    yield "run", f"{recipe.name}, {forecast.parameters:,} parameters"
    text = forecast.text
    if text is not None:
        yield "training pairs", f"{text.train_pairs:,}"
        yield "updates", f"{text.updates:,}; {text.updates_in_first_epoch:,} in the first epoch"
        yield "epochs", f"{text.epochs:.2f}, {text.tgt_tokens:,} target tokens"
    else:
        yield "updates", f"at most {recipe.train.max_steps:,}"
    if forecast.work:
        yield "processes", ", ".join(str(work.processes) for work in forecast.work)
        yield "micro-batches per update", ", ".join(f"{work.micro_batches:.3g}" for work in forecast.work)
        yield "useful fraction of the work", ", ".join(f"{work.useful:.1%}" for work in forecast.work)
    disk = f"{format_bytes(forecast.disk)} at most, {format_bytes(forecast.disk_free)} available"
    yield "disk", f"{disk}; {format_bytes(forecast.checkpoint)} per checkpoint"
    if forecast.speed is not None:
        yield from _speed_rows(forecast.speed)


def _speed_rows(speed: SpeedForecast) -> Iterator[tuple[str, str]]:
    if speed.memory is not None:
        available = "" if speed.available is None else f", {format_bytes(speed.available)} available"
        largest = f"micro-batches of {speed.micro_batch_tokens:,} tokens"
        per_process = " per process" if speed.processes > 1 else ""
        memory = f"{format_bytes(speed.memory)}{per_process}"
        yield "memory", f"{memory} at most, in addition to the program, with {largest}{available}"
    where = f"{speed.device}, {speed.precision}"
    if speed.processes > 1:
        where += f", {speed.processes} processes"
    yield "speed", f"{speed.tgt_tokens_per_second:,.0f} target tokens per second ({where})"
    low, high = format_duration(speed.low), format_duration(speed.high)
    yield "training time", f"{format_duration(speed.seconds)} ({low} to {high})"
    yield "validation", f"{counted(speed.validations, 'time')}, {format_duration(speed.validation_seconds)} in total"


def _notes(recipe: Recipe, forecast: Forecast) -> Iterator[str]:
    train = recipe.train
    if forecast.disk > forecast.disk_free:
        yield "The disk is too small: lower train.keep_last or train.keep_best, or set run_dir to another disk."
    for problem in schedule_problems(train, train.max_steps if forecast.text is None else forecast.text.updates):
        yield f"Warning: {problem}."
    if forecast.text is not None and (train.patience or (train.max_minutes is not None and forecast.speed is None)):
        yield f"{'train.patience' if train.patience else 'train.max_minutes'} may end the run earlier."
    if forecast.text is not None and forecast.speed is None and train.micro_batch_tokens == "auto":
        yield "The load balance needs a measurement (--seconds), because train.micro_batch_tokens is auto."
    if forecast.speed is not None and train.max_minutes is not None and forecast.speed.high > train.max_minutes * 60:
        yield f"train.max_minutes ends the run after {format_duration(train.max_minutes * 60)}."
    if forecast.text is not None and train.subword_sampling:
        yield "Subword sampling is not included: sampled text has more tokens."
    if forecast.speed is not None and train.guided_alignment:
        yield "The speed does not include guided alignment."
    if forecast.speed is not None and train.validate_bleu_every:
        yield "The validation time does not include BLEU."
