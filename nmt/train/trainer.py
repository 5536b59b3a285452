"""The training loop: from updates of sentence pairs to checkpoints (Vaswani et al. 2017, section 5)."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from nmt.checkpoint import Checkpoint, Tensors, load_tensors, model_tensors, prune_checkpoints, save_checkpoint
from nmt.data.epoch_plan import Ids
from nmt.data.loader import Place, TrainingBatches, Update
from nmt.devices.allocator import keep_freed_memory
from nmt.devices.precision import autocast
from nmt.logs import MetricsWriter, ProgressBar, format_duration, progress, say, warn
from nmt.model.transformer import Transformer
from nmt.processes.distributed import World
from nmt.recipe import Recipe, UserError, dump_recipe
from nmt.train.background_writer import BackgroundWriter
from nmt.train.batching import Batching
from nmt.train.compilation import compile_layers, is_one_graph
from nmt.train.data import TrainingData, TranslateValidation
from nmt.train.ema import ExponentialMovingAverage
from nmt.train.loss import TrainingLoss
from nmt.train.optimizer import load_optimizer_tensors, optimizer_tensors
from nmt.train.resume import (
    choose_checkpoint,
    forget_other_scores,
    note_what_changed,
    require_no_other_updates,
    require_same_identity,
    say_what_changed,
)
from nmt.train.running_metrics import RunningMetrics
from nmt.train.signals import Stopped, StopRequest, stop_requests
from nmt.train.state import TrainState, require_same_run
from nmt.train.update import Updater
from nmt.train.validate import perplexity, validate
from nmt.train.warm_start import freeze, load_start_optimizer, load_start_weights

# So many updates in a row without a finite gradient, and training is beyond saving.
MAX_SKIPPED_IN_A_ROW = 20
# Pairs that are named of an update that was skipped.
_PAIRS_SHOWN = 8

ModelFiles = Callable[[Tensors, int], Mapping[str, Any]]


class _BrokenOff(Exception):  # noqa: N818 - not an error: validation ends early because the run was asked to stop
    """Validation was broken off, on all processes at the same place."""


class Trainer:
    """One run: builds everything, goes on from the newest good checkpoint, and trains until the recipe says stop."""

    def __init__(
        self,
        recipe: Recipe,
        world: World,
        model: Transformer,
        text: TrainingData,
        model_files: ModelFiles,
        translate_validation: TranslateValidation | None = None,
    ) -> None:
        """`model_files` gives the files of a model directory for weights at a step; see `nmt.checkpoint`.

        Raises UserError when the run was begun with another recipe, when the model to start from does not fit, and when
        the largest micro-batch does not fit into memory.
        """
        self.recipe, self.train_recipe = recipe, recipe.train
        self.world = world
        self.text = text
        self.model_files = model_files
        self.translate_validation = translate_validation
        self.state = TrainState()
        self.writer = BackgroundWriter()
        self._use_cpu()
        self.model = model.to(world.device)
        start = load_start_weights(self.model, recipe.train.start_from) if recipe.train.start_from else None
        if start is not None and world.is_main:
            say(f"the weights are those of {start}, the optimizer state is {recipe.train.start_optimizer}")
        freeze(self.model, recipe.train.freeze)
        self.model.recompute_layers(recipe.train.recompute)
        self.loss = TrainingLoss(self.model, recipe.train.label_smoothing, recipe.train.rdrop)
        self.update = Updater(recipe, world, self.loss)
        if start is not None and recipe.train.start_optimizer == "kept":
            load_start_optimizer(self.update.optimizer, self.model, start)
        self.average = ExponentialMovingAverage(self.model, recipe.train.ema_decay) if recipe.train.ema_decay else None
        self._resume()
        averages = int(self.average is not None)
        self.batching = Batching.choose(recipe, world, text, self.update, averages, self.state)
        if world.is_main:
            self.batching.announce(recipe, self.state)
        self.state.text, self.state.valid = text.identity, text.valid_identity
        self.state.processes = world.size
        self.state.micro_batch_tokens = self.batching.micro_batch_tokens
        self.state.workload = asdict(self.batching.workload)
        if recipe.train.compile:
            if is_one_graph(recipe, world, self.update.precision):
                self.loss.compile_whole()
            else:
                compile_layers(self.model)

    # --- The loop -------------------------------------------------------------------------------------------------

    def run(self) -> TrainState:
        """Train to the end and return where that is; raises Stopped after a signal, with everything saved."""
        recipe, state, first = self.train_recipe, self.state, self.world.is_main
        if self._finished() and not state.validation_due:
            say(f"training is complete at step {state.step:,}; nothing to do")
            return state
        metrics = None
        if first:
            again = state.validation_due or state.step == 0
            metrics = MetricsWriter(self.recipe.directory, state.step, validates_again=again)
        bar = progress("training", recipe.max_steps, "updates", done=state.step) if first else nullcontext()
        try:
            with self.batches() as batches, stop_requests() as stop, self.writer, bar as shown:
                self._loop(batches, stop, metrics, shown)
        finally:
            if metrics is not None:
                metrics.close()
        if self.text.epochs is not None:
            self.text.epochs.remove_before(state.epoch + 2)  # with the one that was made ahead
        self.world.barrier()  # nobody goes on before the last checkpoint is written
        return state

    def batches(self) -> TrainingBatches:
        """What is still to be learned from, from the present state on."""
        return TrainingBatches(
            self.text.train,
            self.train_recipe.model_copy(update={"micro_batch_tokens": self.state.micro_batch_tokens}),
            seed=self.recipe.seed,
            start=Place(self.state.epoch, self.state.update, self.state.pair),
            rank=self.world.rank,
            world_size=self.world.size,
            multiple=self.batching.multiple,
            device=self.world.device,
            mixture=self.text.mixture,
            epochs=self.text.epochs,
            src_batch_tokens=self.batching.src_tokens,
            shape=self.batching.shape,
        )

    def _loop(
        self, batches: TrainingBatches, stop: StopRequest, metrics: MetricsWriter | None, bar: ProgressBar | None
    ) -> None:
        state = self.state
        interval = RunningMetrics(state.unlogged, self.world)
        self.loss.train()
        if state.validation_due:
            self._validate(stop, metrics)
            self._save(interval)
            self._leave_if_stopped(stop)
        if state.step == 0 and self.train_recipe.start_from is not None:
            self._measure_start(stop, metrics)
        self._clock = time.perf_counter()
        while not self._finished():
            update = next(batches)
            interval.add(update, self.update(update, state.step + 1))
            self._advance(update)
            self._agree_on_stopping(stop)
            if any(self._due()) or stop.agreed:
                self._settle(interval)
            log, measure, save = self._due()
            if log:
                self._show(interval, metrics, bar)
                interval = RunningMetrics({}, self.world)
            state.validation_due = measure
            is_kept = measure and not stop.agreed and self._validate(stop, metrics)
            if save or self._finished() or stop.agreed or is_kept:
                self._save(interval)
            if bar is not None:
                bar.advance(1)
            self._leave_if_stopped(stop)
            self.writer.check()
            if measure or save:  # which is no time of training
                self._clock = time.perf_counter()

    def _due(self) -> tuple[bool, bool, bool]:
        """Whether it is time to log, to validate, to save; at the end of the run it is time for all three."""
        step, recipe, is_last = self.state.step, self.train_recipe, self._finished()
        log, measure, save = recipe.log_every, recipe.validate_every, recipe.save_every
        return is_last or step % log == 0, is_last or step % measure == 0, is_last or step % save == 0

    def _agree_on_stopping(self, stop: StopRequest) -> None:
        """A signal to one process stops all of them, at the same update."""
        stop.agreed = self.world.max(stop.status)

    def _leave_if_stopped(self, stop: StopRequest) -> None:
        if stop.agreed:
            self.writer.wait()
            raise Stopped(stop.agreed)

    def _advance(self, update: Update) -> None:
        """Move on to the next update."""
        state = self.state
        state.step += 1
        state.tgt_tokens += update.tgt_tokens
        state.updates_in_epoch = update.updates_in_epoch
        state.epoch, state.update, state.pair = update.next.epoch, update.next.update, update.next.pair
        if self.average is not None:
            self.average.update(state.step)

    def _finished(self) -> bool:
        return bool(self.state.limits_reached(self.train_recipe))

    # --- What is measured -----------------------------------------------------------------------------------------

    def _settle(self, interval: RunningMetrics) -> None:
        """Wait for the device, count the time, and learn which updates were skipped."""
        state = self.state
        settled = interval.settle()
        # The clock of one process must not decide alone whether the time is up.
        seconds = self.world.max(round((time.perf_counter() - self._clock) * 1e3)) / 1e3
        self._clock = time.perf_counter()
        interval.seconds += seconds
        state.seconds += seconds
        for update, was_skipped in settled:
            state.skipped_in_a_row = state.skipped_in_a_row + 1 if was_skipped else 0
            if was_skipped:
                self._note_skipped(update.place, update.sentence_ids)

    def _note_skipped(self, place: str, sentence_ids: Ids) -> None:
        self.state.skipped += 1
        if self.state.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise UserError(
                f"{MAX_SKIPPED_IN_A_ROW} updates in a row had no finite gradient (last: {place}); it diverges; "
                "go on from the last checkpoint with a lower train.learning_rate, longer warm-up or clip_norm"
            )
        if self.world.is_main:
            first, others = sentence_ids[:_PAIRS_SHOWN], len(sentence_ids) - _PAIRS_SHOWN
            pairs = ", ".join(map(str, first)) + (f" and {others} more" if others > 0 else "")
            warn(f"skipped {place}: its gradient is not finite; pairs {pairs}")

    def _show(self, interval: RunningMetrics, metrics: MetricsWriter | None, bar: ProgressBar | None) -> None:
        """Write the means of the interval; the same on every process but for the speed."""
        sums, state = interval.sums(self.world), self.state
        if metrics is None or bar is None:
            return
        speed = sums["tokens"] / max(sums["seconds"], 1e-9)
        figures = {
            "train/learning_rate": self.update.rate,
            "train/gradient_norm": float(interval.grad_norm),
            "train/tokens_per_second": speed,
            "train/epoch": state.epoch,
            "train/skipped_updates": state.skipped,
        }
        shown = ""
        if sums["learned"]:  # otherwise every update of the interval was skipped
            loss, nll = sums["loss"] / sums["learned"], sums["nll"] / sums["learned"]
            figures |= {"train/loss": loss, "train/nll": nll, "train/perplexity": perplexity(nll)}
            shown = f", loss {loss:.3f}, nll {nll:.3f}"
        metrics.write(state.step, figures)
        bar.advance(0, f"training epoch {state.epoch + 1}{shown}, {speed:,.0f} tokens/s")

    def _validate(self, stop: StopRequest, metrics: MetricsWriter | None) -> bool:
        """Measure on the validation text; returns whether this is among the best, which are kept.

        Stays due when it is broken off.
        """
        state, by_average = self.state, self.train_recipe.average == "ema"
        try:
            figures = self._measure(stop, metrics, decodes=not by_average)
            if self.average is not None:
                with self.average.in_place_of_weights():
                    averaged = self._measure(stop, metrics, decodes=by_average)
                figures |= {key.replace("valid/", "valid/average_"): value for key, value in averaged.items()}
        except _BrokenOff:
            return False
        prefix = "valid/average_" if by_average else "valid/"
        score = -figures[f"{prefix}loss"] if math.isfinite(figures[f"{prefix}perplexity"]) else -math.inf
        if self.train_recipe.best_metric == "bleu":
            score = figures.get(f"{prefix}bleu", -math.inf)
        is_best = state.note_score(score, figures)
        state.validation_due = False
        if metrics is not None:
            places = {"valid/best_step": state.best_step}
            if state.scored_from:
                places["valid/scored_from"] = state.scored_from
            metrics.write(state.step, figures | places)
            say(_describe(state, figures) + (" (best)" if is_best else ""))
        return state.step in state.best_steps(self.train_recipe.keep_best)

    def _measure_start(self, stop: StopRequest, metrics: MetricsWriter | None) -> None:
        """Validate the weights that training starts from; they cannot be the best, since no checkpoint holds them."""
        with suppress(_BrokenOff):
            figures = self._measure(stop, metrics, decodes=True)
            if metrics is not None:
                metrics.write(0, figures)
                say(_describe(self.state, figures))
        self._leave_if_stopped(stop)

    def _measure(self, stop: StopRequest, metrics: MetricsWriter | None, *, decodes: bool) -> dict[str, float]:
        """Loss and, where it is time and `decodes`, BLEU of the present weights; raises _BrokenOff."""

        def between() -> None:
            self._agree_on_stopping(stop)
            if stop.agreed:
                raise _BrokenOff

        step, every = self.state.step, self.train_recipe.validate_bleu_every
        with autocast(self.update.precision, self.world.device):
            result = validate(self.loss, self.text.valid, self.world, self.state.micro_batch_tokens, between)
        figures = {"valid/loss": result.loss, "valid/nll": result.nll, "valid/perplexity": result.perplexity}
        if decodes and every and step % every == 0 and self.translate_validation is not None:
            self.model.eval()
            try:
                text = self.translate_validation(self.model, between)
            finally:
                self.model.train()
            bleu = torch.tensor([text.bleu if text else 0.0], dtype=torch.float64, device=self.world.device)
            figures["valid/bleu"] = float(self.world.sum(bleu))
            if metrics is not None and text is not None:
                metrics.text(step, "valid/samples", text.samples)
        return figures

    # --- Checkpoints ----------------------------------------------------------------------------------------------

    def _save(self, interval: RunningMetrics) -> None:
        """Copy everything to the host; the first process writes it to disk while training goes on."""
        state = self.state
        state.unlogged = interval.sums(self.world)
        state.loss_scale = self.update.loss_scaler.state_dict()
        if not self.world.is_main:
            return
        checkpoint = Checkpoint(
            model=model_tensors(self.model),
            optimizer=optimizer_tensors(self.update.optimizer, self.model),
            average=self.average.tensors() if self.average is not None else {},
            state=asdict(state),
        )
        best = state.best_steps(self.train_recipe.keep_best)
        self.writer.submit(partial(self._write, state.step, checkpoint, best))

    def _write(self, step: int, checkpoint: Checkpoint, best_steps: list[int]) -> None:
        """Write a checkpoint, then remove those that the recipe does not keep."""
        run_dir, files = self.recipe.directory, self.model_files(checkpoint.model, step)
        save_checkpoint(run_dir, step, checkpoint, files, dump_recipe(self.recipe))
        prune_checkpoints(run_dir, self.train_recipe.keep_last, best_steps)

    def _resume(self) -> None:
        """Resume from the newest checkpoint that is whole, if there is one."""
        found = choose_checkpoint(self.recipe.directory, self.world)
        if found is None:
            return
        directory, checkpoint = found
        require_same_run(self.recipe)
        self.state = TrainState.read(checkpoint.state, directory)
        require_same_identity(self.recipe, self.state, self.text.identity)
        if self.world.is_main:
            say(f"resuming from {directory}")
            say_what_changed(self.recipe, self.state, directory)
        is_finished = self._finished()
        if is_finished:
            require_no_other_updates(self.recipe, self.state, directory)
        valid = self.text.valid_identity
        told = forget_other_scores(self.recipe, self.state, directory, valid, is_finished)
        if told and self.world.is_main:
            say(told)
        if not self._finished() or self.state.validation_due:
            note_what_changed(self.recipe, self.state, directory)
        load_tensors(self.model, checkpoint.model)
        load_optimizer_tensors(self.update.optimizer, self.model, checkpoint.optimizer)
        if self.average is not None:
            self.average.load(checkpoint.average)
        self.update.loss_scaler.load_state_dict(self.state.loss_scale)

    # --- The machine ----------------------------------------------------------------------------------------------

    def _use_cpu(self) -> None:
        """Where it is what trains: all its cores, and memory that stays."""
        if self.world.device.type == "cpu":
            keep_freed_memory()
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            local_processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            torch.set_num_threads(self.train_recipe.threads or max(1, cores // local_processes))


def _describe(state: TrainState, figures: Mapping[str, float]) -> str:
    """One line for people."""
    parts = [f"step {state.step:,}", format_duration(state.seconds)]
    for prefix, name in (("valid/", "validation"), ("valid/average_", "moving average")):
        if f"{prefix}loss" in figures:
            loss, nll, ppl = (figures[f"{prefix}{one}"] for one in ("loss", "nll", "perplexity"))
            parts.append(f"{name} loss {loss:.4f}, nll {nll:.4f}, perplexity {ppl:.5g}")
        if f"{prefix}bleu" in figures:
            parts.append(f"BLEU {figures[f'{prefix}bleu']:.2f}")
    return ", ".join(parts)
