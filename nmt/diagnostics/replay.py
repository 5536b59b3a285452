"""Replay of one update of a run, bit for bit: loss of each pair, gradient norm, and digests of the training state.

Training is a pure function of the recipe, the prepared text and the checkpoint. A trainer that resumes in a temporary
run directory, from the checkpoint before an update, therefore repeats the update and leaves the run unchanged.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nmt.alignment.term_markup import MARKUP_FOLDER, training_identity
from nmt.alignment.training import LINKS_FOLDER
from nmt.checkpoint import load_checkpoint, model_tensors, state_digest
from nmt.data.epoch_plan import Ids, plan_by_length
from nmt.data.loader import TrainingBatches, Update, make_batch
from nmt.data.prepare import Prepared, load_prepared
from nmt.data.store import PairStore
from nmt.devices.precision import autocast
from nmt.errors import CommandError, UserError
from nmt.logs import progress, say, warn, warnings_only
from nmt.models import TranslationModel
from nmt.processes.distributed import World
from nmt.recipe import Recipe, load_saved_recipe
from nmt.storage.run_folder import checkpoint_step, list_checkpoints, require_run
from nmt.storage.sealed import verify_directory
from nmt.train.optimizer import optimizer_tensors
from nmt.train.state import TrainState
from nmt.train.trainer import Trainer, build_trainer
from nmt.train.validate import validate

# Small, because all log-probabilities of a batch are in memory.
_BATCH_TOKENS = 1_024


@dataclass(frozen=True)
class ReplaySource:
    """Checkpoint and recipe from which an update of a run is repeated.

    step:       update to replay, from 1
    checkpoint: newest checkpoint before `step`; None for the initial weights
    following:  oldest checkpoint at or after `step`; None if there is none
    recipe:     options of the update
    """

    run: Path
    step: int
    checkpoint: Path | None
    following: Path | None
    recipe: Recipe

    @classmethod
    def find(cls, run: Path, step: int) -> ReplaySource:
        """Select the checkpoints around an update; raises UserError if the run cannot have reached it."""
        require_run(run)
        checkpoints = list_checkpoints(run)
        before = [path for path in checkpoints if checkpoint_step(path) < step]
        after = [path for path in checkpoints if checkpoint_step(path) >= step]
        # Options may change whenever a run resumes, so the next checkpoint has those of `step`.
        recipe = load_saved_recipe(after[0] / "recipe.toml" if after else run / "recipe.toml")
        if step > recipe.train.max_steps:
            raise CommandError(f"--step must be at most {recipe.train.max_steps}, train.max_steps of {run}, got {step}")
        source = cls(run, step, before[-1] if before else None, after[0] if after else None, recipe)
        source._warn_of_changes()
        return source

    @property
    def start_step(self) -> int:
        """Updates completed before the replay starts."""
        return 0 if self.checkpoint is None else checkpoint_step(self.checkpoint)

    def _warn_of_changes(self) -> None:
        """Warn if the run may not have made the update, or made it with other options."""
        if self.following is None:
            reached = max([self.start_step, *(entry["step"] for entry in _read_metrics(self.run))])
            if self.step > reached:
                warn(f"{self.run} may not have reached update {self.step:,}; its last recorded update is {reached:,}")
            return
        last = checkpoint_step(self.following)
        changes = TrainState.load(self.following).changes
        changed = [change for change in changes if self.start_step < change.step <= last]
        if changed:
            options = ", ".join(sorted({change.option for change in changed}))
            warn(
                f"{options} changed after update {changed[-1].step:,}; the replay uses the later options, so the "
                "states may differ"
            )


@dataclass(frozen=True)
class Replay:
    """A repeated update.

    epoch, index:  epoch, and update within it, both from 0
    pairs:         (num_pairs,) indices in the token store, highest nll per token first
    pair_nll:      (num_pairs,) nats per target token before the update, without dropout
    pair_tokens:   (num_pairs,) target tokens, EOS included
    nll:           mean of the update in nats per token, with dropout
    before, after: digests of parameters, optimizer state and EMA
    skipped:       whether the gradient was not finite
    """

    step: int
    epoch: int
    index: int
    updates_in_epoch: int
    pairs: Ids
    pair_nll: NDArray[np.float64]
    pair_tokens: NDArray[np.int64]
    nll: float
    learning_rate: float
    gradient_norm: float
    before: str
    after: str
    skipped: bool


@dataclass(frozen=True)
class Verification:
    """Comparison of a replay with a saved state: the digests of both after `step`, equal if the replay is exact."""

    step: int
    replayed: str
    saved: str


class Replayer:
    """A trainer that resumes from the checkpoint before an update. Create it with `start_replay`."""

    def __init__(self, source: ReplaySource, trainer: Trainer, batches: TrainingBatches, prepared: Prepared) -> None:
        self.source, self.prepared = source, prepared
        self._trainer, self._batches = trainer, batches
        trainer.loss.train()
        if trainer.state.validation_due:
            self._validate()

    def replay(self) -> Replay:
        """Advance to the update and repeat it."""
        trainer, source = self._trainer, self.source
        self._advance(source.step - 1)
        update = next(self._batches)
        nll, tokens = self._pair_losses(update)
        before = self._digest()
        result = trainer.update(update)
        after = self._digest()
        self._validate()
        order = np.argsort(-nll, kind="stable")
        return Replay(
            step=source.step,
            epoch=update.epoch,
            index=update.index,
            updates_in_epoch=update.updates_in_epoch,
            pairs=update.sentence_ids[order],
            pair_nll=nll[order],
            pair_tokens=tokens[order],
            nll=float(result.nll) / update.tgt_tokens,
            learning_rate=trainer.updater.learning_rate,
            gradient_norm=float(result.grad_norm),
            before=before,
            after=after,
            skipped=bool(result.skipped),
        )

    def verify(self) -> Verification | None:
        """Advance from the update to the next checkpoint and compare both states; None without a later checkpoint."""
        if self.source.following is None:
            return None
        step = checkpoint_step(self.source.following)
        self._advance(step)
        saved = load_checkpoint(self.source.following)
        return Verification(step, self._digest(), state_digest(saved.model, saved.optimizer, saved.average))

    def _advance(self, step: int) -> None:
        state = self._trainer.state
        with progress("replaying", step, "updates", done=state.step) as bar:
            while state.step < step:
                self._trainer.update(next(self._batches))
                self._validate()
                bar.advance(1)

    def _validate(self) -> None:
        """Repeat a validation of the run if the learning rate depends on it."""
        trainer, state = self._trainer, self._trainer.state
        if trainer.train_recipe.schedule != "plateau" or state.step % trainer.train_recipe.validate_every:
            return
        with autocast(trainer.updater.precision, trainer.world.device):
            result = validate(trainer.loss, trainer.text.valid, trainer.world, state.micro_batch_tokens, lambda: None)
        state.record_plateau(result.nll, trainer.train_recipe)

    def _digest(self) -> str:
        trainer = self._trainer
        average = {} if trainer.average is None else trainer.average.tensors()
        return state_digest(
            model_tensors(trainer.model), optimizer_tensors(trainer.updater.optimizer, trainer.model), average
        )

    @torch.no_grad()
    def _pair_losses(self, update: Update) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return nll per target token and target tokens of each pair, (num_pairs,), in the order of the update."""
        trainer, text, ids = self._trainer, self._trainer.text, update.sentence_ids
        store = text.train if text.epochs is None else text.epochs.store(update.epoch)
        tokens = store.tgt.lengths[ids].astype(np.int64) + 1
        nll = np.empty(len(ids))
        trainer.loss.eval()
        for part in plan_by_length(store.src.lengths[ids], tokens - 1, micro_batch_tokens=_BATCH_TOKENS):
            with autocast(trainer.updater.precision, trainer.world.device):
                nll[part] = _sentence_nll(trainer.model, store, ids[part]) / tokens[part]
        trainer.loss.train()
        return nll, tokens


def _sentence_nll(model: TranslationModel, store: PairStore, ids: Ids) -> NDArray[np.float64]:
    """Return the negative log-likelihood of each target sentence, (num_sentences,)."""
    batch = make_batch(store, ids).to(next(model.parameters()).device)
    log_probs = model.log_probs(model(batch.src, batch.tgt))  # (total, vocab)
    token_nll = -log_probs.gather(1, batch.labels[:, None])[:, 0].double()
    sentence_of = torch.arange(len(ids), device=token_nll.device).repeat_interleave(batch.tgt.lengths)
    sums = token_nll.new_zeros(len(ids)).index_add_(0, sentence_of, token_nll)
    return np.asarray(sums.cpu().numpy(), dtype=np.float64)


@contextmanager
def start_replay(source: ReplaySource, world: World) -> Iterator[Replayer]:
    """Build the trainer of a run in the state of a checkpoint, for a `with` block; nothing is written to the run."""
    run, recipe = source.run, source.recipe
    prepared = load_prepared(run / "data")
    prepared.verify()
    identity = training_identity(prepared.report, prepared.directory, recipe)
    checkpoints = [path for path in (source.checkpoint, source.following) if path is not None]
    if any(TrainState.load(path).text not in ("", identity) for path in checkpoints):
        raise UserError(
            f"{run} cannot be replayed: the text in {prepared.directory} is not that of its checkpoints; restore the "
            "corpora and rerun nmt prepare"
        )
    if source.checkpoint is not None:
        verify_directory(source.checkpoint)
    say(f"replaying update {source.step:,} from {source.checkpoint or 'the initial weights'}")
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder)
        _link_files(run / "data", temporary / "data")
        if source.checkpoint is not None:
            (temporary / "checkpoints").mkdir()
            (temporary / "checkpoints" / source.checkpoint.name).symlink_to(source.checkpoint.absolute())
        prepared = load_prepared(temporary / "data")
        recipe = _single_process_recipe(source, temporary)
        with warnings_only():
            trainer = build_trainer(recipe, prepared, world)
        start = "" if source.following is None else TrainState.load(source.following).start
        if start not in ("", trainer.state.start):
            warn(f"{recipe.train.start_from} has changed since {run} started from it, so the states differ")
        with trainer.batches() as batches:
            yield Replayer(source, trainer, batches, prepared)


def logged_metrics(run: Path, step: int) -> dict[str, float]:
    """Return the training metrics that a run logged at an update; empty if it logged none."""
    metrics: dict[str, float] = {}
    for entry in _read_metrics(run):
        if entry["step"] == step:
            for name, value in entry.items():
                if name.startswith("train/") and isinstance(value, int | float | None):
                    metrics[name] = math.nan if value is None else value
    return metrics


def _read_metrics(run: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of `metrics.jsonl` that have a step; skips damaged lines."""
    path = run / "metrics.jsonl"
    if not path.is_file():
        return
    for line in path.read_bytes().splitlines():
        with suppress(ValueError):  # incomplete after a crash
            entry = json.loads(line)
            if isinstance(entry, dict) and isinstance(entry.get("step"), int):
                yield entry


def _single_process_recipe(source: ReplaySource, directory: Path) -> Recipe:
    """Return the recipe of the update with the micro-batches that the run had, for one process."""
    recipe = source.recipe
    changes: dict[str, object] = {}
    saved = source.following or source.checkpoint
    state = TrainState() if saved is None else TrainState.load(saved)
    if recipe.train.micro_batch_tokens == "auto" and state.micro_batch_tokens:
        changes["micro_batch_tokens"] = state.micro_batch_tokens
    if state.processes > 1:
        warn(
            f"the run used {state.processes} processes and the replay uses one: the order of sums differs, so the "
            "states may differ by rounding"
        )
        if recipe.train.micro_batches == "auto":
            changes["micro_batches"] = state.processes
        if recipe.train.shapes == "auto":
            changes["shapes"] = "packed"  # jobs of several processes never use one graph, see `is_one_graph`
    train = recipe.train.model_copy(update=changes)
    return recipe.model_copy(update={"run_dir": directory, "train": train})


def _link_files(source: Path, target: Path) -> None:
    target.mkdir()
    for path in source.iterdir():
        if path.is_file() or path.name in (LINKS_FOLDER, MARKUP_FOLDER):
            (target / path.name).symlink_to(path.absolute())
