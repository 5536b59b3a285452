"""The training loop: updates, validation and checkpoints (Vaswani et al. 2017, section 5)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from nmt.checkpoint import Checkpoint, Tensors, load_tensors, model_tensors, prune_checkpoints, save_checkpoint
from nmt.data.loader import DataPosition, TrainingBatches, Update
from nmt.data.prepare import Prepared
from nmt.devices.allocator import keep_freed_memory
from nmt.devices.precision import autocast
from nmt.errors import UserError
from nmt.logs import ProgressBar, format_duration, progress, say, warn
from nmt.models import TranslationModel, build_model
from nmt.processes.cores import cores_per_process
from nmt.processes.distributed import World
from nmt.recipe import Recipe, dump_recipe
from nmt.storage.sealed import manifest_digest
from nmt.train.background_writer import BackgroundWriter
from nmt.train.batching import Batching, warn_of_long_pairs
from nmt.train.compilation import compile_layers, is_one_graph
from nmt.train.data import TrainingData, TranslateValidation
from nmt.train.ema import ExponentialMovingAverage
from nmt.train.loss import TrainingLoss
from nmt.train.metrics_writer import MetricsWriter
from nmt.train.optimizer import load_optimizer_tensors, optimizer_tensors
from nmt.train.resume import (
    choose_checkpoint,
    discard_other_scores,
    log_resuming,
    record_changes,
    require_same_identity,
    require_used_options,
)
from nmt.train.running_metrics import PendingUpdate, RunningMetrics
from nmt.train.schedule import schedule_problems
from nmt.train.signals import Stopped, StopRequest, stop_requests
from nmt.train.state import Change, TrainState, interim_steps, require_same_run
from nmt.train.update import Updater, UpdateResult
from nmt.train.validate import perplexity, validate
from nmt.train.warm_start import (
    changed_start_model,
    freeze,
    load_start_optimizer,
    load_start_weights,
    text_differences,
)

# Training has diverged after this many consecutive updates without a finite gradient.
MAX_SKIPPED_IN_A_ROW = 20
# Sentence pairs listed in the warning about a skipped update.
_MAX_LISTED_PAIRS = 8

ModelFiles = Callable[[Tensors, int], Mapping[str, Any]]


class _ValidationInterrupted(Exception):  # noqa: N818 - not an error
    """The run was asked to stop during validation; raised by all processes at the same point."""


class Trainer:
    """One run: builds all parts, resumes from the newest valid checkpoint, and trains to the limits of the recipe."""

    def __init__(
        self,
        recipe: Recipe,
        world: World,
        model: TranslationModel,
        text: TrainingData,
        model_files: ModelFiles,
        translate_validation: TranslateValidation | None = None,
    ) -> None:
        """Build or resume a run.

        Args:
            model_files: returns the files of a model directory for parameters and a step; see `nmt.checkpoint`.

        Raises:
            UserError: the run has another recipe, the initial model does not fit, or a micro-batch exceeds the memory.
        """
        self.recipe, self.train_recipe = recipe, recipe.train
        self.world = world
        self.text = text
        self.model_files = model_files
        self.translate_validation = translate_validation
        self.state = TrainState()
        self.writer = BackgroundWriter()
        if world.device.type == "cpu":
            keep_freed_memory()
        if recipe.train.threads:
            torch.set_num_threads(recipe.train.threads)
        elif world.device.type == "cpu":
            torch.set_num_threads(cores_per_process())
        self.model = model.to(world.device)
        resumed = choose_checkpoint(recipe.directory, world)
        start = self._load_start_model() if resumed is None else None
        freeze(self.model, recipe.train.freeze)
        self.model.use_activation_checkpointing(recipe.train.activation_checkpointing)
        self.loss = TrainingLoss.from_recipe(self.model, recipe)
        self.updater = Updater(recipe, world, self.loss)
        if start is not None and recipe.train.start_optimizer == "kept":
            load_start_optimizer(self.updater.optimizer, self.model, start)
        self.average = ExponentialMovingAverage(self.model, recipe.train.ema_decay) if recipe.train.ema_decay else None
        if resumed is not None:
            self._resume(*resumed)
        state, schedule = self.state, self.updater.schedule  # not `self`: a reference cycle would keep text files open
        self.updater.schedule = lambda step: schedule(step) * state.rate_factor
        self.batching = Batching.choose(recipe, world, text, self.updater, self.state)
        self._record_start()
        if recipe.train.compile:
            if is_one_graph(recipe, world, self.updater.precision):
                self.loss.compile_step()
            else:
                compile_layers(self.model, self.loss.guidance)

    def _record_start(self) -> None:
        """Log and record micro-batches, text and hardware; a finished run keeps the hardware that trained it."""
        state, batching = self.state, self.batching
        if not self._is_finished():
            if self.world.is_main:
                batching.announce(self.recipe, state)
                warn_of_long_pairs(self.recipe, self.text)
            self._record("processes", self.world.size)
            self._record("device", str(self.world.device))
            self._record("precision", self.updater.precision)
            state.workload = asdict(batching.workload)
        state.text, state.valid = self.text.identity, self.text.valid_identity
        state.micro_batch_tokens = batching.micro_batch_tokens

    def _record(self, name: str, now: int | str) -> None:
        """Store a property of this session in the state; record a change unless the recipe requests the new value."""
        before = getattr(self.state, name)
        setattr(self.state, name, now)
        is_requested = now == getattr(self.train_recipe, name, None)
        if before and now != before and not is_requested:  # 0 or "" is unknown
            self.state.changes.append(Change(self.state.step, name, before, now))
            if self.world.is_main and name != "processes":  # `Batching.announce` logs those
                say(f"the {name} is now {now}, was {before}")

    # --- Loop ---------------------------------------------------------------------------------------------------------

    def run(self) -> TrainState:
        """Train to the end and return the final state; after a signal, saves a checkpoint and raises Stopped."""
        state, recipe, is_main = self.state, self.train_recipe, self.world.is_main
        if self._is_finished() and not state.validation_due:
            if is_main:
                say(f"training is complete at step {state.step:,}{state.end_reason(recipe)}; nothing to do")
            return state
        metrics = None
        if is_main:
            validates_again = state.validation_due or state.step == 0
            metrics = MetricsWriter(self.recipe.directory, state.step, validates_again=validates_again)
        bar = progress("training", recipe.max_steps, "updates", done=state.step, silent=not is_main)
        try:
            with self.batches() as batches, stop_requests() as stop, self.writer, bar as progress_bar:
                for problem in schedule_problems(recipe, batches.last_update(state.step)) if is_main else ():
                    warn(problem)
                self._loop(batches, stop, metrics, progress_bar)
        finally:
            if metrics is not None:
                metrics.close()
        if self.text.epochs is not None:
            self.text.epochs.remove_before(state.epoch + 2)  # includes the prefetched epoch
        self.world.barrier()  # until the last checkpoint is written
        if is_main and (reason := state.end_reason(recipe)):
            say(f"training ended at step {state.step:,}{reason}")
        return state

    def batches(self) -> TrainingBatches:
        """Return the remaining batches, from the current state on."""
        return TrainingBatches(
            self.text.train,
            self.train_recipe.model_copy(update={"micro_batch_tokens": self.state.micro_batch_tokens}),
            seed=self.recipe.seed,
            start=DataPosition(self.state.epoch, self.state.update, self.state.pair),
            rank=self.world.rank,
            world_size=self.world.size,
            multiple=self.batching.multiple,
            device=self.world.device,
            mixture=self.text.mixture,
            epochs=self.text.epochs,
            links=self.text.links,
            src_batch_tokens=self.batching.src_tokens,
            shape=self.batching.shape,
        )

    def _loop(
        self, batches: TrainingBatches, stop: StopRequest, metrics: MetricsWriter | None, bar: ProgressBar
    ) -> None:
        state, recipe = self.state, self.train_recipe
        running = RunningMetrics(state.unlogged, self.world)
        self.loss.train()
        if state.validation_due:
            is_kept = self._validate(stop, metrics)
            if self._is_finished():  # because of `patience`, or of a lower limit
                self._log(running, metrics, bar)
                running = RunningMetrics({}, self.world)
            self._save(running, is_interim=not (is_kept or self._is_due(recipe.save_every)))
            self._exit_if_stopped(stop)
        if state.step == 0 and recipe.start_from is not None:
            self._validate_start(stop, metrics)
        self._clock = time.perf_counter()
        while not self._is_finished():
            update = next(batches)
            running.add(update, self.update(update), state.step)
            self._agree_on_stop(stop)
            if stop.agreed or any(map(self._is_due, (recipe.log_every, recipe.validate_every, recipe.save_every))):
                self._synchronize(running)  # may end the run because of `max_minutes`
            state.validation_due = self._is_due(recipe.validate_every)
            is_kept = False
            if state.validation_due and not stop.agreed:
                is_kept = self._validate(stop, metrics)  # may end the run because of `patience`
            if self._is_due(recipe.log_every):
                self._log(running, metrics, bar)
                running = RunningMetrics({}, self.world)
            is_regular = is_kept or self._is_due(recipe.save_every)
            if is_regular or stop.agreed:
                self._save(running, is_interim=not is_regular)
            bar.advance(1)
            self._exit_if_stopped(stop)
            self.writer.check()
            if self._is_due(recipe.validate_every) or self._is_due(recipe.save_every):
                self._clock = time.perf_counter()  # validating and saving are not part of the training time
        self._wait_for_write()
        self._agree_on_stop(stop)  # on a signal during the last validation or write
        self._exit_if_stopped(stop)

    def _is_due(self, interval: int) -> bool:
        """Return whether the step is a multiple of `interval`, or the last one."""
        return self._is_finished() or self.state.step % interval == 0

    def _agree_on_stop(self, stop: StopRequest) -> None:
        """All-reduce the stop request, so all ranks stop after the same update."""
        stop.agreed = self.world.max(stop.status)

    def _exit_if_stopped(self, stop: StopRequest) -> None:
        if stop.agreed:
            self.writer.wait()
            self.world.barrier_without_timeout()  # launchers kill the job soon after the first process has exited
            raise Stopped(stop.agreed)

    def update(self, update: Update) -> UpdateResult:
        """Perform the next update and advance the state."""
        state = self.state
        state.restart_plateau(self.train_recipe)
        result = self.updater(update, state.step + 1)
        state.step += 1
        state.tgt_tokens += update.tgt_tokens
        state.updates_in_epoch = update.updates_in_epoch
        state.epoch, state.update, state.pair = update.next.epoch, update.next.update, update.next.pair
        if self.average is not None:
            self.average.update(state.step)
        return result

    def _is_finished(self) -> bool:
        return bool(self.state.limits_reached(self.train_recipe))

    # --- Metrics and validation ---------------------------------------------------------------------------------------

    def _synchronize(self, running: RunningMetrics) -> None:
        """Synchronize with the device, and count the time and the skipped updates."""
        state = self.state
        updates = running.synchronize()
        # The same on all processes, which must agree on `max_minutes`.
        seconds = self.world.max(round((time.perf_counter() - self._clock) * 1e3)) / 1e3
        self._clock = time.perf_counter()
        running.seconds += seconds
        state.seconds += seconds
        for update, is_skipped in updates:
            state.skipped_in_a_row = state.skipped_in_a_row + 1 if is_skipped else 0
            if is_skipped:
                state.skipped += 1
                self._report_skipped(update)

    def _report_skipped(self, update: PendingUpdate) -> None:
        if self.state.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise UserError(
                f"{MAX_SKIPPED_IN_A_ROW} consecutive updates had no finite gradient (last: {update.name}): training "
                "has diverged; remove their checkpoints, and resume with a lower train.learning_rate, a longer "
                "warm-up, or gradient clipping (train.clip_norm)"
            )
        if self.world.is_main:
            pairs = ", ".join(map(str, update.sentence_ids[:_MAX_LISTED_PAIRS]))
            unlisted = len(update.sentence_ids) - _MAX_LISTED_PAIRS
            if unlisted > 0:
                pairs += f" and {unlisted} more"
            warn(f"skipped {update.name}: the gradient is not finite; pairs {pairs}")

    def _log(self, running: RunningMetrics, metrics: MetricsWriter | None, bar: ProgressBar) -> None:
        """Write the means since the last log line."""
        sums, state = running.sums(self.world), self.state
        if metrics is None or not sums["tokens"]:
            return
        speed = sums["tokens"] / max(sums["seconds"], 1e-9)
        values = {
            "train/tokens_per_second": speed,
            "train/epoch": state.epochs,
            "train/skipped_updates": state.skipped,
        }
        if running.grad_norm is not None:
            values["train/learning_rate"] = self.updater.learning_rate
            values["train/gradient_norm"] = float(running.grad_norm)
        losses = ""
        if sums["learned"]:  # not every update was skipped
            loss, nll = sums["loss"] / sums["learned"], sums["nll"] / sums["learned"]
            values |= {"train/loss": loss, "train/nll": nll, "train/perplexity": perplexity(nll)}
            losses = f", loss {loss:.3f}, nll {nll:.3f}"
        metrics.write(state.step, values)
        bar.advance(0, f"training epoch {math.ceil(state.epochs)}{losses}, {speed:,.0f} tokens/s")

    def _validate(self, stop: StopRequest, metrics: MetricsWriter | None) -> bool:
        """Validate; return whether the step is among the `keep_best` best. An interrupted validation remains due."""
        state, uses_average = self.state, self.train_recipe.average == "ema"
        try:
            values = self._evaluate(stop, metrics, translates=not uses_average)
            if self.average is not None:
                with self.average.applied():
                    averaged = self._evaluate(stop, metrics, translates=uses_average)
                values |= {key.replace("valid/", "valid/average_"): value for key, value in averaged.items()}
        except _ValidationInterrupted:
            return False
        prefix = "valid/average_" if uses_average else "valid/"
        score = self._score(values, prefix)
        is_best = state.record_score(score, values)
        state.validation_due = False
        is_lowered = state.record_plateau(values["valid/nll"], self.train_recipe)
        if is_lowered and self.world.is_main:
            say(f"validation nll did not improve; the rate is now {state.rate_factor:.3g} times train.learning_rate")
        if metrics is not None:
            steps = {"valid/best_step": state.best_step}
            if state.scored_from:
                steps["valid/scored_from"] = state.scored_from
            metrics.write(state.step, values | steps)
            line = _describe(state, values)
            if is_best and state.start_score is not None and score < state.start_score:
                line += " (best, but worse than the initial model)"
            elif is_best:
                line += " (best)"
            say(line)
            nll = values[f"{prefix}nll"]
            if not math.isfinite(perplexity(nll)):
                warn(
                    f"the validation nll of step {state.step:,} is {nll:.5g}: training has diverged; train under "
                    "another name with a lower train.learning_rate, a longer warm-up, or gradient clipping "
                    "(train.clip_norm)"
                )
        return state.step in state.best_steps(self.train_recipe.keep_best)

    def _score(self, values: Mapping[str, float], prefix: str) -> float:
        """Return the score of a validation, which selects the best checkpoints; higher is better."""
        if self.train_recipe.best_metric == "bleu":
            return values.get(f"{prefix}bleu", -math.inf)
        has_diverged = not math.isfinite(values[f"{prefix}perplexity"])
        return -math.inf if has_diverged else -values[f"{prefix}{self.train_recipe.best_metric}"]

    def _validate_start(self, stop: StopRequest, metrics: MetricsWriter | None) -> None:
        """Validate the initial model, which has no checkpoint in this run and cannot be the best."""
        with suppress(_ValidationInterrupted):
            values = self._evaluate(stop, metrics, translates=True)
            self.state.start_score = self._score(values, "valid/")
            if metrics is not None:
                metrics.write(0, values)
                say(_describe(self.state, values))
        self._exit_if_stopped(stop)

    def _evaluate(self, stop: StopRequest, metrics: MetricsWriter | None, *, translates: bool) -> dict[str, float]:
        """Return validation loss and, if due and `translates`, BLEU; raises _ValidationInterrupted."""

        def check_stop() -> None:
            self._agree_on_stop(stop)
            if stop.agreed:
                raise _ValidationInterrupted

        step, every = self.state.step, self.train_recipe.validate_bleu_every
        by_bleu = self.train_recipe.best_metric == "bleu"  # also in the last validation, which is due at any step
        with autocast(self.updater.precision, self.world.device):
            result = validate(self.loss, self.text.valid, self.world, self.state.micro_batch_tokens, check_stop)
        values = {"valid/loss": result.loss, "valid/nll": result.nll, "valid/perplexity": result.perplexity}
        if translates and every and (by_bleu or step % every == 0) and self.translate_validation is not None:
            self.model.eval()
            try:
                text = self.translate_validation(self.model, check_stop)
            finally:
                self.model.train()
            bleu = torch.tensor([text.bleu if text else 0.0], dtype=torch.float64, device=self.world.device)
            values["valid/bleu"] = float(self.world.sum(bleu))
            if metrics is not None and text is not None:
                metrics.text(step, "valid/samples", text.samples)
        return values

    # --- Checkpoints --------------------------------------------------------------------------------------------------

    def _save(self, running: RunningMetrics, *, is_interim: bool) -> None:
        """Copy the checkpoint to the host; rank 0 writes it in the background."""
        state = self.state
        state.is_interim = is_interim
        state.unlogged = running.sums(self.world)
        state.loss_scale = self.updater.loss_scaler.state_dict()
        self._wait_for_write()  # memory is reserved for one copy
        if not self.world.is_main:
            return
        average = self.average.tensors() if self.average is not None else {}
        optimizer = optimizer_tensors(self.updater.optimizer, self.model)
        checkpoint = Checkpoint(model_tensors(self.model), optimizer, average, asdict(state))
        self.writer.submit(partial(self._write, state.step, checkpoint, state.best_steps(self.train_recipe.keep_best)))

    def _wait_for_write(self) -> None:
        """Wait on all ranks for the pending write of rank 0, which may take longer than NMT_TIMEOUT_SECONDS."""
        self.world.run_on_main(self.writer.wait)

    def _write(self, step: int, checkpoint: Checkpoint, best_steps: list[int]) -> None:
        run_dir = self.recipe.directory
        files = self.model_files(checkpoint.model, step)
        save_checkpoint(run_dir, step, checkpoint, files, dump_recipe(self.recipe))
        prune_checkpoints(run_dir, self.train_recipe.keep_last, best_steps, interim_steps(run_dir, step))

    def _load_start_model(self) -> Path | None:
        """Load the weights of the initial model, if there is one, and return its directory."""
        if self.train_recipe.start_from is None:
            return None
        start = load_start_weights(self.model, self.train_recipe.start_from)
        self.state.start = manifest_digest(start)
        if self.world.is_main:
            say(f"initial weights: {start}; optimizer state: {self.train_recipe.start_optimizer}")
            if differences := text_differences(start, self.recipe):
                warn(f"the initial model was trained on different text: {differences}")
        return start

    def _resume(self, directory: Path, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint."""
        require_same_run(self.recipe)
        self.state = TrainState.read(checkpoint.state, directory)
        require_same_identity(self.recipe, self.state, self.text.identity)
        was_finished = self._is_finished()
        if was_finished:
            require_used_options(self.recipe, self.state, directory)
        if self.world.is_main:
            log_resuming(self.recipe, self.state, directory)
            if problem := changed_start_model(self.recipe, self.state):
                warn(problem)
        message = discard_other_scores(self.recipe, self.state, directory, self.text.valid_identity, was_finished)
        if message and self.world.is_main:
            say(message)
        if self._is_finished() and str(self.state.step) not in self.state.scores:  # an interrupted run ends here
            self.state.validation_due = True
        is_finished = self._is_finished() and not self.state.validation_due  # discarding scores may resume training
        record_changes(self.recipe, self.state, directory, is_finished=is_finished)
        load_tensors(self.model, checkpoint.model)
        load_optimizer_tensors(self.updater.optimizer, self.model, checkpoint.optimizer)
        if self.average is not None:
            self.average.load(checkpoint.average)
        if self.state.loss_scale:  # empty if the last session did not use fp16: keep the initial scale
            self.updater.loss_scaler.load_state_dict(self.state.loss_scale)


def build_trainer(recipe: Recipe, prepared: Prepared, world: World) -> Trainer:
    """Build a trainer for single updates in a scratch run directory; its checkpoints would have no model files."""
    tokenizers = prepared.tokenizers
    torch.manual_seed(recipe.seed)
    model = build_model(recipe.model, tokenizers.src.vocab_size, tokenizers.tgt.vocab_size)
    return Trainer(recipe, world, model, TrainingData.from_prepared(prepared, recipe, world), lambda tensors, step: {})


def _describe(state: TrainState, values: Mapping[str, float]) -> str:
    """Return a log line about a validation."""
    parts = [f"step {state.step:,}", format_duration(state.seconds)]
    for prefix, name in (("valid/", "validation"), ("valid/average_", "EMA")):
        if f"{prefix}loss" in values:
            parts.append(f"{name} loss {values[f'{prefix}loss']:.4f}, nll {values[f'{prefix}nll']:.4f}")
            parts.append(f"perplexity {values[f'{prefix}perplexity']:.5g}")
        if f"{prefix}bleu" in values:
            parts.append(f"BLEU {values[f'{prefix}bleu']:.2f}")
    return ", ".join(parts)
