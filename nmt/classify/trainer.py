"""Training of a classifier: one process, examples in memory, resumed exactly from the newest checkpoint."""

from __future__ import annotations

import math
import time
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from nmt.checkpoint import Checkpoint, load_tensors, model_tensors, prune_checkpoints, save_checkpoint
from nmt.classify.examples import Examples
from nmt.classify.text_classifier import TextClassifier, classify
from nmt.data.epoch_plan import EpochPlan, plan_epoch
from nmt.devices.precision import autocast, choose_precision
from nmt.devices.transfer import to_device
from nmt.errors import UserError
from nmt.logs import ProgressBar, format_duration, progress, say, warn
from nmt.recipe import ClassificationRecipe, TrainRecipe, dump_recipe
from nmt.train.metrics_writer import MetricsWriter
from nmt.train.optimizer import build_optimizer, load_optimizer_tensors, optimizer_tensors
from nmt.train.resume import log_resuming, record_changes, require_used_options
from nmt.train.schedule import learning_rate, schedule_problems
from nmt.train.signals import Stopped, StopRequest, stop_requests
from nmt.train.state import Change, TrainState, require_equal_options
from nmt.train.update import dropout_seed

_KEEP_LAST = 2


class ClassifierTrainer:
    """Trains a classifier until a limit of the recipe is reached.

    `state.best_step` is the step with the lowest validation nll.
    """

    def __init__(
        self,
        recipe: ClassificationRecipe,
        classifier: TextClassifier,
        train: Examples,
        valid: Examples,
        device: torch.device,
        resumed: tuple[Path, Checkpoint] | None = None,
    ) -> None:
        """Build a run, or resume it from a checkpoint; raises UserError if the examples are not those of the run."""
        self.recipe = recipe
        self.classifier = classifier
        self.model = classifier.model
        self.train = train
        self.valid = valid
        self.device = device
        self.precision = choose_precision(recipe.train.precision, device)
        self.optimizer = build_optimizer(self.model, recipe.train)
        self.state = TrainState(text=train.digest(), valid=valid.digest())
        if resumed is not None:
            self._resume(*resumed)

    def run(self) -> TrainState:
        """Train and return the final state; raises Stopped after a signal, once a checkpoint is saved."""
        state, limit = self.state, self.recipe.train.max_steps
        if self._is_finished() and not state.validation_due:
            say(f"training is complete at step {state.step:,}{state.end_reason(self.recipe.train)}; nothing to do")
            return state
        device = str(self.device)
        if device != state.device:
            if state.device:  # not at the first start
                state.changes.append(Change(state.step, "device", state.device, device))
                say(f"the device is now {device}, was {state.device}")
            state.device = device
        metrics = MetricsWriter(self.recipe.directory, state.step, validates_again=state.validation_due)
        try:
            with progress("training", limit, "updates", done=state.step) as bar, stop_requests() as stop:
                self._loop(metrics, bar, stop)
        finally:
            metrics.close()
        if reason := state.end_reason(self.recipe.train):
            say(f"training ended at step {state.step:,}{reason}")
        return state

    def _loop(self, metrics: MetricsWriter, bar: ProgressBar, stop: StopRequest) -> None:
        state, options = self.state, self.recipe.train
        if state.validation_due:
            self._validate(metrics)
            self._save()
        plan = self._plan()
        in_epochs = options.max_steps if options.max_epochs is None else options.max_epochs * len(plan)
        for problem in schedule_problems(options, min(options.max_steps, in_epochs)):
            warn(problem)
        while not self._is_finished():
            started = time.perf_counter()
            loss = self._update(plan, state.step + 1)
            state.step += 1
            state.update += 1
            state.updates_in_epoch = len(plan)
            if state.update == len(plan):
                state.epoch += 1
                state.update = 0
                plan = self._plan()
            state.seconds += time.perf_counter() - started
            state.validation_due = self._is_finished() or state.step % options.validate_every == 0
            if state.validation_due or state.step % options.log_every == 0:  # a validation may end the run
                rate = self.optimizer.param_groups[0]["lr"]
                values = {"train/loss": loss, "train/learning_rate": rate, "train/epoch": state.epochs}
                metrics.write(state.step, values)
                bar.advance(0, f"training epoch {math.ceil(state.epochs)}, loss {loss:.3f}")
            is_validated = state.validation_due and not stop.status
            if is_validated:
                self._validate(metrics)
            if is_validated or stop.status or state.step % options.save_every == 0:
                self._save()
            bar.advance(1)
            if stop.status:
                raise Stopped(stop.status)

    def _plan(self) -> EpochPlan:
        """Return the updates of the epoch, as a pure function of the lengths, the seed and the epoch."""
        lengths, options = self.train.lengths - 1, self.recipe.train  # `plan_epoch` adds one token to each length
        assert isinstance(options.micro_batch_tokens, int)
        return plan_epoch(
            lengths,
            lengths,
            batch_tokens=options.batch_tokens,
            micro_batch_tokens=options.micro_batch_tokens,
            seed=self.recipe.seed,
            epoch=self.state.epoch,
        )

    def _update(self, plan: EpochPlan, step: int) -> float:
        """Perform update number `step` and return its loss: the mean cross-entropy of its examples."""
        self.model.train()
        self.optimizer.zero_grad()
        num_examples = len(plan.sentences(self.state.update))
        total = 0.0
        for number, ids in enumerate(plan.micro_batches(self.state.update)):
            torch.manual_seed(dropout_seed(self.recipe.seed, step, number))
            with autocast(self.precision, self.device):
                logits = classify(self.model, self.train.gather(ids), self.precision, self.device)
            labels = to_device(self.train.labels[ids], self.device)
            loss = F.cross_entropy(logits, labels, reduction="sum") / num_examples
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.train.clip_norm or np.inf)
        if not torch.isfinite(norm):
            # A checkpoint without a finite score has parameters that no option can repair.
            action = "train under another name" if self.state.scores and not self.state.best_step else "resume"
            raise UserError(
                f"the gradient of update {step:,} is not finite: training has diverged; {action} with a lower "
                "train.learning_rate, a longer warm-up, or gradient clipping (train.clip_norm)"
            )
        rate = learning_rate(self.recipe.train, self.recipe.model.d_model, step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        return total

    def _is_finished(self) -> bool:
        return bool(self.state.limits_reached(self.recipe.train))

    def _validate(self, metrics: MetricsWriter) -> None:
        state, score = self.state, self.classifier.score(self.valid)
        state.validation_due = False
        values = {
            "valid/nll": score.nll,
            "valid/accuracy": score.accuracy,
            "valid/macro_f1": score.macro_f1,
            "valid/calibration_error": score.calibration,
        }
        is_best = state.record_score(-score.nll, values)
        metrics.write(state.step, values)
        say(
            f"step {state.step:,}, {format_duration(state.seconds)}, validation nll {score.nll:.4f}, accuracy "
            f"{score.accuracy:.4f}, macro F1 {score.macro_f1:.4f}, calibration error {score.calibration:.4f}"
            + (" (best)" if is_best else "")
        )

    def _save(self) -> None:
        tensors, run = model_tensors(self.model), self.recipe.directory
        checkpoint = Checkpoint(tensors, optimizer_tensors(self.optimizer, self.model), {}, asdict(self.state))
        save_checkpoint(run, self.state.step, checkpoint, self.classifier.files(tensors), dump_recipe(self.recipe))
        prune_checkpoints(run, _KEEP_LAST, [self.state.best_step])

    def _resume(self, directory: Path, checkpoint: Checkpoint) -> None:
        state = TrainState.read(checkpoint.state, directory)
        if (state.text, state.valid) != (self.state.text, self.state.valid):
            raise UserError(
                f"the examples of data.train or data.valid have changed since {directory}; a run must keep its text; "
                "restore it, or choose another name"
            )
        self.state = state
        if self._is_finished():
            require_used_options(self.recipe, state, directory)
        log_resuming(self.recipe, state, directory)
        if self._is_finished() and str(state.step) not in state.scores:  # an interrupted run ends here
            state.validation_due = True
        is_finished = self._is_finished() and not state.validation_due
        record_changes(self.recipe, state, directory, is_finished=is_finished)
        load_tensors(self.model, checkpoint.model)
        load_optimizer_tensors(self.optimizer, self.model, checkpoint.optimizer)


def require_same_recipe(recipe: ClassificationRecipe, saved: dict[str, Any]) -> None:
    """Raise UserError if options that must not change during a run differ from those of its saved recipe."""
    sections = {"data", "tokenizer", "model", "train"}
    in_train = {"optimizer", "batch_tokens", "micro_batch_tokens"}  # the others may change, such as `max_steps`
    free = {"data.root", "data.test", *(f"train.{key}" for key in TrainRecipe.model_fields if key not in in_train)}

    def fixed(tree: dict[str, Any]) -> dict[str, object]:
        named = {f"{name}.{key}": value for name in sections for key, value in tree.get(name, {}).items()}
        return {"seed": tree.get("seed")} | {key: value for key, value in named.items() if key not in free}

    now, then = fixed(tomllib.loads(dump_recipe(recipe))), fixed(saved)
    require_equal_options(recipe.directory, now, then)
