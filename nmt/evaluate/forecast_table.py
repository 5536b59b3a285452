"""The forecast of a run as a table, with notes on its limits."""

from __future__ import annotations

from collections.abc import Iterator

from nmt.evaluate.forecast import Forecast, SpeedForecast
from nmt.evaluate.tables import Table
from nmt.logs import counted, format_duration
from nmt.recipe import Recipe
from nmt.train.disk_space import format_bytes
from nmt.train.schedule import schedule_problems


def forecast_table(recipe: Recipe, forecast: Forecast) -> Table:
    """Return a forecast as a table of names and values."""
    return Table("", "ll", (), tuple(_rows(recipe, forecast)), notes=tuple(_notes(recipe, forecast)))


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
        yield from speed_rows(forecast.speed)


def speed_rows(speed: SpeedForecast) -> Iterator[tuple[str, str]]:
    """Yield the rows of a measured speed."""
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
        yield (
            "The disk is too small: lower train.keep_last or train.keep_best, or set run_dir to a directory on another "
            "disk."
        )
    for problem in schedule_problems(train, train.max_steps if forecast.text is None else forecast.text.updates):
        yield f"Warning: {problem}."
    ends = {"train.patience": train.patience, "train.max_minutes": train.max_minutes if forecast.speed is None else 0}
    if forecast.text is not None and any(ends.values()):
        yield f"{' or '.join(option for option, value in ends.items() if value)} may end the run earlier."
    if forecast.text is not None and forecast.speed is None and train.micro_batch_tokens == "auto":
        yield "The load balance needs a measurement (--seconds), because train.micro_batch_tokens is auto."
    if forecast.speed is not None and train.max_minutes is not None and forecast.speed.high > train.max_minutes * 60:
        ends_run = "ends" if forecast.speed.low > train.max_minutes * 60 else "may end"
        yield f"train.max_minutes {ends_run} the run after {format_duration(train.max_minutes * 60)}."
    if forecast.text is not None and train.subword_sampling:
        yield "Subword sampling is not included: sampled text has more tokens."
    if forecast.speed is not None and train.guided_alignment:
        yield "The speed does not include guided alignment."
    if forecast.speed is not None and train.validate_bleu_every:
        yield "The validation time does not include BLEU."
