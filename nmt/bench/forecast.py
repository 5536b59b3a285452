"""Forecast of a run: counts from the epoch plan, and time and memory from a short measurement."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from nmt.alignment.term_markup import training_identity
from nmt.bench.device import synchronize
from nmt.bench.model_specs import ModelSpec
from nmt.bench.training import TrainingBench
from nmt.data.fingerprint import outdated_splits
from nmt.data.prepare import Prepared, load_prepared
from nmt.data.reused_tokenizers import expected_vocab_sizes, is_vocab_size_known
from nmt.devices.precision import autocast
from nmt.errors import UserError
from nmt.evaluate.forecast import Forecast, SpeedForecast, TextForecast, WorkForecast
from nmt.evaluate.student_t import half_width
from nmt.logs import is_first_rank, progress, say, warn, warnings_only
from nmt.packing.shapes import UpdateStatistics
from nmt.processes.device_memory import available_memory
from nmt.processes.distributed import World, start_world
from nmt.recipe import Recipe, dump_choices, load_saved_recipe
from nmt.storage.run_folder import list_checkpoints
from nmt.storage.sealed import CorruptError
from nmt.train.batching import Workload, plan_of_epoch, update_statistics
from nmt.train.data import TrainingData
from nmt.train.disk_space import disk_need, model_parameters
from nmt.train.memory import MemoryProbe, checkpoint_copy_bytes, missing_moment_bytes
from nmt.train.resume import changed_learning_rate, require_same_identity, require_same_text, require_used_options
from nmt.train.state import TrainState, require_same_run
from nmt.train.trainer import Trainer
from nmt.train.validate import validate

REPETITIONS = 6


def forecast_run(recipe: Recipe, processes: Sequence[int], seconds: float) -> Forecast:
    """Forecast a run on this machine, without writing to the run directory.

    processes: numbers of processes for which to forecast the load balance
    seconds:   approximate duration of the measurement; 0 to measure nothing

    Without an up-to-date prepared corpus, the forecast has only model and disk. Raises UserError for a damaged corpus.
    """
    prepared = _prepared(recipe)
    sizes = expected_vocab_sizes(recipe)
    if prepared is not None:
        sizes = prepared.tokenizers.src.vocab_size, prepared.tokenizers.tgt.vocab_size
    disk = disk_need(recipe, sizes)
    forecast = Forecast(
        dump_choices(recipe), model_parameters(recipe, *sizes), disk.checkpoint, disk.total, disk.available
    )
    if prepared is None:
        if not is_vocab_size_known(recipe) and is_first_rank():
            warn("the vocabulary is unknown without prepared text; model and disk sizes assume tokenizer.vocab_size")
        return forecast
    # Counts and speed are for the prepared text, without subword sampling or guided alignment.
    changes = {"subword_sampling": 0.0, "guided_alignment": False}
    plain = recipe.model_copy(update={"train": recipe.train.model_copy(update=changes)})
    world = World(0, 1, torch.device("cpu"))
    text = TrainingData.from_prepared(prepared, plain, world)
    statistics = update_statistics(plain, text)
    counts = count_run(plain, text, statistics)
    if not seconds:
        tokens = recipe.train.micro_batch_tokens
        work = () if tokens == "auto" else forecast_work(plain, text, statistics, tokens, processes)
        return replace(forecast, text=counts, work=work)
    return _measure(replace(forecast, text=counts), plain, text, statistics, sizes, processes, seconds)


def rejection(recipe: Recipe) -> str:
    """Return the error with which training would reject a recipe for an existing run, or ""."""
    directory = recipe.data_directory
    try:
        require_same_run(recipe)
        is_prepared = "train" not in outdated_splits(recipe, directory, warns=False)
        for checkpoint in list_checkpoints(recipe.directory)[-1:]:
            state = TrainState.load(checkpoint)
            if is_prepared:
                report = load_prepared(directory).report
                require_same_identity(recipe, state, training_identity(report, directory, recipe))
                require_same_text(recipe)  # its alignment files
            if state.limits_reached(recipe.train):
                require_used_options(recipe, state, checkpoint)
            changed_learning_rate(recipe, load_saved_recipe(checkpoint / "recipe.toml"), state)
    except CorruptError:  # training resumes from an earlier checkpoint
        return ""
    except UserError as error:
        return str(error)
    return ""


def finished_step(recipe: Recipe) -> int | None:
    """Return the step at which the run of a recipe is finished; None if it is not, or if its state is unreadable."""
    with suppress(CorruptError):  # training resumes from an earlier checkpoint
        for checkpoint in list_checkpoints(recipe.directory)[-1:]:
            state = TrainState.load(checkpoint)
            return state.step if state.limits_reached(recipe.train) else None
    return None


def _prepared(recipe: Recipe) -> Prepared | None:
    """Return the prepared corpus of a recipe; None if it is missing or outdated. Raises UserError if it is damaged."""
    if "train" in outdated_splits(recipe, recipe.data_directory):
        return None
    prepared = load_prepared(recipe.data_directory)
    prepared.verify()
    return prepared


def count_run(recipe: Recipe, text: TrainingData, statistics: UpdateStatistics) -> TextForecast:
    """Count epochs and target tokens of a run by planning every epoch."""
    train = recipe.train
    updates = updates_in_first_epoch = tokens = epoch = 0
    epochs = 0.0
    with progress("planning", train.max_steps, "updates") as bar:
        while updates < train.max_steps and (train.max_epochs is None or epoch < train.max_epochs):
            plan = plan_of_epoch(recipe, text, statistics, multiple=1, epoch=epoch)
            used = min(len(plan), train.max_steps - updates)
            pairs = plan.order[: plan.starts[used]]
            tokens += int(plan.tgt_lengths[pairs].sum(dtype=np.int64)) + len(pairs)
            if epoch == 0:
                updates_in_first_epoch = len(plan)
            updates += used
            epochs = epoch + used / len(plan)
            epoch += 1
            bar.advance(used)
    return TextForecast(len(text.train), updates, epochs, updates_in_first_epoch, tokens)


def forecast_work(
    recipe: Recipe,
    text: TrainingData,
    statistics: UpdateStatistics,
    micro_batch_tokens: int,
    processes: Sequence[int],
    *,
    has_one_shape: bool = False,
) -> tuple[WorkForecast, ...]:
    """Return the useful fraction of the work for each number of processes that can train the recipe.

    has_one_shape: whether all micro-batches are padded to one shape
    """
    requested = recipe.train.micro_batches
    work = []
    for number in processes:
        multiple = number if requested == "auto" else requested
        if multiple % number:
            say(f"--processes {number} is left out, because train.micro_batches ({multiple}) is not a multiple of it")
            continue
        plan = replace(plan_of_epoch(recipe, text, statistics, multiple), micro_batch_tokens=micro_batch_tokens)
        if has_one_shape or recipe.train.shapes == "fixed":
            plan = replace(plan, shape=statistics.shape(micro_batch_tokens, multiple))
        load = Workload.from_plan(plan, number)
        work.append(WorkForecast(number, load.micro_batches, load.efficiency))
    return tuple(work)


def _measure(
    forecast: Forecast,
    recipe: Recipe,
    text: TrainingData,
    statistics: UpdateStatistics,
    sizes: tuple[int, int],
    processes: Sequence[int],
    seconds: float,
) -> Forecast:
    """Train for about `seconds` in a temporary directory and add speed, memory and load balance."""
    with start_world(recipe.train.device, "rerun the command") as world, tempfile.TemporaryDirectory() as folder:
        if world.is_main:
            say(f"measuring for about {seconds:.0f} s")
        spec = ModelSpec(recipe.model_copy(update={"run_dir": Path(folder)}), *sizes)
        with warnings_only():
            bench = TrainingBench(spec, world, text.train, text)
        with bench:
            trainer = bench.trainer
            memory = _memory(trainer, statistics)
            first = bench.run(1).seconds
            updates = max(1, round(seconds / REPETITIONS / max(bench.run(1).seconds, first / 100, 1e-6)))
            repetitions = [bench.run(updates) for _ in range(REPETITIONS)]
            validation = _validation_seconds(trainer)
            work = forecast_work(
                recipe,
                text,
                statistics,
                bench.micro_batch_tokens,
                processes,
                has_one_shape=trainer.batching.shape is not None,
            )
    assert forecast.text is not None
    costs = np.array([repetition.seconds / repetition.tgt_tokens for repetition in repetitions])
    mean = float(costs.mean())
    half = half_width(costs)
    total = forecast.text.tgt_tokens
    validations = math.ceil(forecast.text.updates / recipe.train.validate_every)
    validations += int(recipe.train.start_from is not None)  # one of the initial model
    speed = SpeedForecast(
        device=str(world.device),
        precision=trainer.updater.precision,
        processes=world.size,
        micro_batch_tokens=bench.micro_batch_tokens,
        measured_updates=updates * REPETITIONS,
        tgt_tokens_per_second=1 / mean,
        seconds=total * mean,
        low=total * max(mean - half, 0.0),
        high=total * (mean + half),
        validations=validations,
        validation_seconds=validations * validation,
        memory=memory,
        available=available_memory(world.device),
    )
    return replace(forecast, work=work, speed=speed)


def _memory(trainer: Trainer, statistics: UpdateStatistics) -> int | None:
    """Return the bytes of parameters, EMA, gradients, optimizer, checkpoint copies and the largest micro-batch.

    None if the step is compiled, because other shapes would be compiled for the measurement, and on a system without
    /proc, which cannot be measured.
    """
    recipe, batching, device = trainer.recipe, trainer.batching, trainer.world.device
    if recipe.train.compile or available_memory(device) is None:
        return None
    averages = int(trainer.average is not None)
    reserve = missing_moment_bytes(trainer.updater.optimizer) + checkpoint_copy_bytes(trainer.model, averages, device)
    plan = plan_of_epoch(recipe, trainer.text, statistics, batching.multiple)
    shape = batching.shape
    fixed = None if shape is None else (lambda budget: shape)
    probe = MemoryProbe(trainer.loss, plan, trainer.world, trainer.updater.precision, reserve, fixed)
    parameters = sum(parameter.numel() * parameter.element_size() for parameter in trainer.model.parameters())
    return round(probe.needed(batching.micro_batch_tokens) + reserve + (1 + averages) * parameters)


def _validation_seconds(trainer: Trainer) -> float:
    """Return the seconds per validation: a timed pass over the validation set, doubled with an EMA."""
    device = trainer.world.device
    started = perf_counter()
    with autocast(trainer.updater.precision, device):
        validate(trainer.loss, trainer.text.valid, trainer.world, trainer.state.micro_batch_tokens, lambda: None)
    synchronize(device)
    return (perf_counter() - started) * (1 if trainer.average is None else 2)
