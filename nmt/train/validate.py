"""Validation loss: of checkpoints, distributed over the processes, and of the averaged model that a run ends with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from nmt.checkpoint import load_model
from nmt.data.epoch_plan import plan_by_length
from nmt.data.loader import make_batch
from nmt.data.store import PairStore
from nmt.devices.precision import autocast, choose_precision
from nmt.logs import warn
from nmt.processes.distributed import World
from nmt.recipe import Recipe
from nmt.storage.run_folder import read_json_object
from nmt.storage.sealed import manifest_digest
from nmt.train.loss import TrainingLoss
from nmt.train.state import TrainState

# Difference of two validation nll, in nats per token: runs that differ only in rounding or seed differ by 0.003 to
# 0.01.
_NOISE = 0.01


@dataclass(frozen=True)
class Validation:
    """Means over the target tokens of the validation set, in nats.

    loss: with label smoothing; nll: without
    """

    loss: float
    nll: float

    @property
    def perplexity(self) -> float:
        """exp(nll)."""
        return perplexity(self.nll)


def perplexity(nll: float) -> float:
    """Return exp(nll); infinity for NaN and for nll >= 50, which mean divergence.

    The nll of a uniform guess over 1e9 tokens is 20.7.
    """
    return math.exp(nll) if nll < 50 else math.inf


@torch.no_grad()
def validate(
    loss: TrainingLoss, store: PairStore, world: World, micro_batch_tokens: int, check_stop: Callable[[], None]
) -> Validation:
    """Return the loss on all pairs of `store` in evaluation mode, the same on every process.

    All processes call `check_stop` before each micro-batch; it may raise to stop.
    """
    was_training = loss.training
    loss.eval()
    plan = plan_by_length(store.src.lengths, store.tgt.lengths, micro_batch_tokens=micro_batch_tokens)
    sums = torch.zeros(3, dtype=torch.float64, device=world.device)
    try:
        for first in range(0, len(plan), world.size):
            check_stop()
            if first + world.rank < len(plan):
                batch = make_batch(store, plan[first + world.rank]).to(world.device)
                smoothed, nll = loss(batch)
                sums += torch.stack([smoothed.double(), nll.double(), sums.new_full((), batch.tgt_tokens)])
    finally:
        loss.train(was_training)
    smoothed_sum, nll_sum, tokens = world.sum(sums).tolist()
    return Validation(loss=smoothed_sum / tokens, nll=nll_sum / tokens)


def validate_average(recipe: Recipe, state: TrainState, averaged: Sequence[Path], device: torch.device) -> float | None:
    """Return the validation nll of the run's `model`; None if it is a single checkpoint or the EMA.

    Warns if the average is worse than the best checkpoint. The nll is read from the report of the run if that has it
    for the same model and validation set.

    averaged: the averaged checkpoints
    """
    if recipe.train.average == "ema" or len(averaged) < 2:
        return None
    model = recipe.directory / "model"
    report = read_json_object(recipe.directory / "report.json")
    reported = report["training"] if report.get("model") == manifest_digest(model) else {}
    known = reported.get("average_nll") if reported.get("valid", "") == state.valid else None
    if known is not None:
        nll = float(known)
    else:
        loss = TrainingLoss.from_recipe(load_model(model, device).model, recipe)
        store, tokens = PairStore(recipe.data_directory, "valid"), state.micro_batch_tokens
        with autocast(choose_precision(recipe.train.precision, device), device):  # as in training
            nll = validate(loss, store, World(0, 1, device), tokens, lambda: None).nll
    best = state.best_validation.get("valid/nll")
    if best is not None and nll > best + _NOISE:
        warn(
            f"the average of {len(averaged)} checkpoints has a validation nll of {nll:.4f}, worse than that of step "
            f"{state.best_step:,} ({best:.4f}): the checkpoints are too far apart; rerun with a lower "
            "train.average_count, or train another run with a lower train.save_every"
        )
    return nll
