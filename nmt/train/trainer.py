"""The training loop: from updates of sentence pairs to checkpoints (Vaswani et al. 2017, section 5)."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from nmt.checkpoint import (
    Checkpoint,
    load_tensors,
    model_tensors,
    newest_checkpoint,
    prune_checkpoints,
    save_checkpoint,
)
from nmt.data.loader import TrainingBatches, Update
from nmt.data.store import PairStore
from nmt.distributed import World
from nmt.logs import MetricsWriter, ProgressBar, format_duration, progress, say
from nmt.model.transformer import Transformer
from nmt.precision import autocast, choose_precision
from nmt.recipe import Recipe, UserError, dump_recipe, load_recipe
from nmt.train.loss import TrainingLoss
from nmt.train.optimizer import build_optimizer, load_optimizer_tensors, optimizer_tensors
from nmt.train.schedule import learning_rate
from nmt.train.signals import Stopped, StopRequest, stop_requests
from nmt.train.validate import Validation, validate

# So many updates in a row without a finite gradient, and training is beyond saving.
MAX_SKIPPED_IN_A_ROW = 20

ModelFiles = Callable[[Transformer, int], Mapping[str, Any]]


@dataclass(frozen=True)
class ValidationText:
    """What decoding the development text gave: its BLEU, and some translations to look at."""

    bleu: float
    samples: str


TranslateValidation = Callable[[Transformer], ValidationText]


@dataclass
class Position:
    """Where a run is: all that a checkpoint must hold besides tensors.

    step: updates done; epoch, update: the next update to do; scores: what each validated step scored, higher is better
    """

    step: int = 0
    epoch: int = 0
    update: int = 0
    updates_in_epoch: int = 0
    tgt_tokens: int = 0
    seconds: float = 0.0
    skipped: int = 0
    skipped_in_a_row: int = 0
    validations_without_best: int = 0
    best_step: int = 0
    scores: dict[str, float] = field(default_factory=dict)
    best_validation: dict[str, float] = field(default_factory=dict)

    @classmethod
    def load(cls, checkpoint: Path) -> Position:
        """The position that a checkpoint directory holds, unverified."""
        return cls(**json.loads((checkpoint / "state.json").read_bytes()))

    @property
    def epochs(self) -> float:
        """Passes over the training pairs, a begun one as its share."""
        return self.epoch + (self.update / self.updates_in_epoch if self.updates_in_epoch else 0.0)

    @property
    def best_score(self) -> float:
        """The best score so far."""
        return self.scores.get(str(self.best_step), -math.inf)


@dataclass
class _Sums:
    """Figures since the last line of metrics; `loss` and `nll` stay on the device, so that nothing waits for them."""

    loss: Tensor
    nll: Tensor
    tokens: int = 0
    seconds: float = 0.0
    grad_norm: float = 0.0


class Trainer:
    """One run: builds everything, goes on from the newest good checkpoint, and trains until the recipe says stop."""

    def __init__(
        self,
        recipe: Recipe,
        world: World,
        model: Transformer,
        train: PairStore,
        valid: PairStore,
        model_files: ModelFiles,
        translate_validation: TranslateValidation | None = None,
    ) -> None:
        """`model_files` gives the files of a model directory for the model at a step; see `nmt.checkpoint`."""
        self.recipe, self.train_recipe = recipe, recipe.train
        self.world = world
        self.model = model.to(world.device)
        self.loss = TrainingLoss(self.model, recipe.train.label_smoothing)
        self.optimizer = build_optimizer(self.model, recipe.train)
        self.precision = choose_precision(recipe.train.precision, world.device)
        self.train_store, self.valid_store = train, valid
        self.model_files = model_files
        self.translate_validation = translate_validation
        self.run_dir = recipe.directory
        self.position = Position()
        self._resume()
        if recipe.train.compile:
            self._compile_layers()
        self.parallel_loss: torch.nn.Module = self.loss
        if world.size > 1:
            self.parallel_loss = DistributedDataParallel(self.loss, gradient_as_bucket_view=True)

    # --- The loop -------------------------------------------------------------------------------------------------

    def run(self) -> Position:
        """Train to the end and return where that is; raises Stopped after a signal, with everything saved."""
        if self._finished():
            say(f"training is complete at step {self.position.step:,}; nothing to do")
            return self.position
        self._use_threads()
        writer = MetricsWriter(self.run_dir, after_step=self.position.step) if self.world.is_first else None
        bar = progress("training", self.train_recipe.max_steps, "updates") if self.world.is_first else nullcontext()
        batches = TrainingBatches(
            self.train_store,
            self.train_recipe,
            seed=self.recipe.seed,
            start_epoch=self.position.epoch,
            start_update=self.position.update,
            rank=self.world.rank,
            world_size=self.world.size,
            device=self.world.device,
        )
        try:
            with stop_requests() as stop, batches, bar as shown:
                self._loop(batches, stop, writer, shown)
        finally:
            if writer is not None:
                writer.close()
        return self.position

    def _loop(
        self, batches: TrainingBatches, stop: StopRequest, writer: MetricsWriter | None, bar: ProgressBar | None
    ) -> None:
        position, recipe = self.position, self.train_recipe
        self.loss.train()
        if bar is not None:
            bar.advance(position.step)
        sums = self._fresh_sums()
        clock = time.perf_counter()
        for update in batches:
            self._update(update, sums)
            seconds = time.perf_counter() - clock  # waiting for data counts, validating and saving do not
            self._advance(update, sums, seconds)
            stop_status = self.world.max(stop.status)  # a signal to one process stops all of them at the same update
            finished = self._finished() or stop_status != 0
            if position.step % recipe.log_every == 0 or finished:
                self._show(self._figures(sums), writer, bar)
                sums = self._fresh_sums()
            is_best = False
            if (position.step % recipe.validate_every == 0 or finished) and not stop_status:
                is_best = self._validate(writer)
                finished = finished or self._finished()
            if position.step % recipe.save_every == 0 or finished or (is_best and recipe.keep_best):
                self._save()
            if bar is not None:
                bar.advance(1)
            if stop_status:
                raise Stopped(stop_status)
            if finished:
                return
            clock = time.perf_counter()

    def _update(self, update: Update, sums: _Sums) -> None:
        """One optimiser update: forward and backward over the micro-batches, then one step along the mean gradient."""
        step = self.position.step + 1
        self.optimizer.zero_grad(set_to_none=True)
        for place, micro in enumerate(update.micro_batches):
            is_last = place == len(update.micro_batches) - 1
            torch.manual_seed(_stream_seed(self.recipe.seed, step, micro.number))
            with self._gradient_exchange(is_last):
                with autocast(self.precision, self.world.device):
                    loss, nll = self.parallel_loss(micro.batch.to(self.world.device))
                # DDP divides by the number of processes; what is wanted is the mean over all tokens of the update.
                weight = self.world.size / update.tgt_tokens if micro.counts else 0.0
                (loss * weight).backward()
            if micro.counts:
                sums.loss += loss.detach()
                sums.nll += nll.detach()
        norm = self._clip_gradients()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.train_recipe, self.recipe.model.d_model, step)
        if math.isfinite(norm):
            self.optimizer.step()
            self.position.skipped_in_a_row = 0
        else:
            self._skip_update(update)
        sums.grad_norm = norm
        sums.tokens += update.tgt_tokens

    def _gradient_exchange(self, is_last: bool) -> AbstractContextManager[object]:
        """Processes exchange gradients once per update, during the last backward pass."""
        if isinstance(self.parallel_loss, DistributedDataParallel) and not is_last:
            return self.parallel_loss.no_sync()
        return nullcontext()

    def _clip_gradients(self) -> float:
        """Scale the gradient down to `clip_norm` where it is longer (0: never); returns its norm before that."""
        limit = self.train_recipe.clip_norm or math.inf
        return float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit))

    def _skip_update(self, update: Update) -> None:
        """Leave the weights as they are; every process sees the same summed gradient and so does the same."""
        self.position.skipped += 1
        self.position.skipped_in_a_row += 1
        place = f"epoch {update.epoch}, update {update.index}"
        if self.position.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise UserError(
                f"{MAX_SKIPPED_IN_A_ROW} updates in a row had no finite gradient (last: {place}); it diverges; "
                "go on from the last checkpoint with a lower train.learning_rate, longer warm-up or clip_norm"
            )
        if self.world.is_first:
            say(f"update {self.position.step + 1} ({place}) skipped: its gradient is not finite")

    def _advance(self, update: Update, sums: _Sums, seconds: float) -> None:
        """Move on to the next update; `seconds` is what this one took."""
        position = self.position
        position.step += 1
        position.tgt_tokens += update.tgt_tokens
        position.seconds += seconds
        sums.seconds += seconds
        position.updates_in_epoch = update.updates_in_epoch
        at_end = update.index + 1 == update.updates_in_epoch
        position.epoch, position.update = (update.epoch + 1, 0) if at_end else (update.epoch, update.index + 1)

    def _finished(self) -> bool:
        position, recipe = self.position, self.train_recipe
        too_long = recipe.max_minutes is not None and self.world.max(position.seconds >= recipe.max_minutes * 60) > 0
        return (
            position.step >= recipe.max_steps
            or (recipe.max_epochs is not None and position.epoch >= recipe.max_epochs)
            or (recipe.patience > 0 and position.validations_without_best >= recipe.patience)
            or too_long
        )

    # --- What is measured -----------------------------------------------------------------------------------------

    def _fresh_sums(self) -> _Sums:
        zero = torch.zeros((), dtype=torch.float64, device=self.world.device)
        return _Sums(loss=zero, nll=zero.clone())

    def _figures(self, sums: _Sums) -> dict[str, float]:
        """Means since the last line of metrics; the same on every process but for the speed."""
        loss, nll = (self.world.sum(torch.stack([sums.loss, sums.nll])) / sums.tokens).tolist()
        return {
            "train/loss": loss,
            "train/perplexity": math.exp(min(nll, 700.0)),
            "train/learning_rate": self.optimizer.param_groups[0]["lr"],
            "train/gradient_norm": sums.grad_norm,
            "train/tokens_per_second": sums.tokens / sums.seconds,
            "train/epoch": self.position.epoch,
            "train/skipped_updates": self.position.skipped,
        }

    def _show(self, figures: dict[str, float], writer: MetricsWriter | None, bar: ProgressBar | None) -> None:
        if writer is None or bar is None:
            return
        writer.write(self.position.step, figures)
        speed, loss = figures["train/tokens_per_second"], figures["train/loss"]
        bar.advance(0, f"training epoch {self.position.epoch + 1}, loss {loss:.3f}, {speed:,.0f} tokens/s")

    def _validate(self, writer: MetricsWriter | None) -> bool:
        """Measure on the development text; returns whether this is the best so far."""
        position, recipe = self.position, self.train_recipe
        with autocast(self.precision, self.world.device):
            result = validate(self.loss, self.valid_store, self.world, recipe.micro_batch_tokens)
        figures = {"valid/loss": result.loss, "valid/nll": result.nll, "valid/perplexity": result.perplexity}
        if recipe.validate_bleu_every and position.step % recipe.validate_bleu_every == 0:
            figures["valid/bleu"] = self._validate_by_decoding(writer)
        score = figures.get("valid/bleu", -math.inf) if recipe.best_metric == "bleu" else -result.loss
        is_best = score > position.best_score
        position.scores[str(position.step)] = score
        position.validations_without_best = 0 if is_best else position.validations_without_best + 1
        if is_best:
            position.best_step, position.best_validation = position.step, figures
        if writer is not None:
            writer.write(position.step, figures)
            self._say_validation(result, figures.get("valid/bleu"), is_best)
        return is_best

    def _validate_by_decoding(self, writer: MetricsWriter | None) -> float:
        """BLEU of the development text, decoded by the first process and told to all."""
        bleu = torch.zeros(1, dtype=torch.float64, device=self.world.device)
        if self.world.is_first and self.translate_validation is not None:
            self.model.eval()
            text = self.translate_validation(self.model)
            self.model.train()
            bleu += text.bleu
            if writer is not None:
                writer.text(self.position.step, "valid/samples", text.samples)
        return float(self.world.sum(bleu))

    def _say_validation(self, result: Validation, bleu: float | None, is_best: bool) -> None:
        parts = [
            f"step {self.position.step:,}",
            f"{format_duration(self.position.seconds)}",
            f"validation loss {result.loss:.4f}",
            f"perplexity {result.perplexity:.3f}",
        ]
        parts += [f"BLEU {bleu:.2f}"] if bleu is not None else []
        say(", ".join(parts) + (" (best)" if is_best else ""))

    # --- Checkpoints ----------------------------------------------------------------------------------------------

    def _save(self) -> None:
        """Write a checkpoint from the first process, then remove those that the recipe does not keep."""
        if self.world.is_first:
            checkpoint = Checkpoint(
                model_tensors(self.model), optimizer_tensors(self.optimizer, self.model), asdict(self.position)
            )
            files = self.model_files(self.model, self.position.step)
            save_checkpoint(self.run_dir, self.position.step, checkpoint, files, dump_recipe(self.recipe))
            prune_checkpoints(self.run_dir, self.train_recipe.keep_last, self._best_steps())
        self.world.barrier()

    def _best_steps(self) -> list[int]:
        scores = self.position.scores
        return [int(step) for step in sorted(scores, key=lambda step: -scores[step])[: self.train_recipe.keep_best]]

    def _resume(self) -> None:
        """Go on from the newest checkpoint that is whole, if there is one."""
        found = newest_checkpoint(self.run_dir, say if self.world.is_first else lambda _: None)
        if found is None:
            return
        directory, checkpoint = found
        _require_same_run(self.recipe, load_recipe(directory / "recipe.toml"), self.run_dir)
        load_tensors(self.model, checkpoint.model)
        load_optimizer_tensors(self.optimizer, self.model, checkpoint.optimizer)
        self.position = Position(**checkpoint.state)
        if self.world.is_first:
            say(f"going on from {directory}")

    # --- The machine ----------------------------------------------------------------------------------------------

    def _use_threads(self) -> None:
        if self.world.device.type == "cpu":
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            local_processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            torch.set_num_threads(self.train_recipe.threads or max(1, cores // local_processes))

    def _compile_layers(self) -> None:
        """Compile layer by layer: all encoder layers share one graph, all decoder layers another."""
        for layer in (*self.model.encoder.layers, *self.model.decoder.layers):
            layer.compile(dynamic=True)


def _require_same_run(recipe: Recipe, begun: Recipe, run_dir: Path) -> None:
    """Raise UserError when what a run was begun with is not what it shall go on with; the rest may change."""

    def identity(given: Recipe) -> dict[str, Any]:
        data = given.data.model_dump(exclude={"root", "workers", "test", "valid"})
        sections = {"data": data, "tokenizer": given.tokenizer.model_dump(), "model": given.model.model_dump()}
        return {"seed": given.seed} | {
            f"{s}.{key}": value for s, part in sections.items() for key, value in part.items()
        }

    now, then = identity(recipe), identity(begun)
    if differences := [key for key in now if now[key] != then[key]]:
        raise UserError(
            f"{run_dir} holds a run that was begun with another {', '.join(differences)}; a run goes on as it began; "
            "choose another name or run_dir, or remove that folder"
        )


def _stream_seed(seed: int, step: int, micro_batch: int) -> int:
    """The seed of one micro-batch's dropout: it depends on nothing else, least of all on the number of processes."""
    return int(np.random.SeedSequence([seed % (1 << 64), step, micro_batch]).generate_state(1, np.uint64)[0] >> 1)
