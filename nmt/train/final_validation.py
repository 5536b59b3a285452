"""Validation of the averaged model that a run ends with; training validates only the checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from nmt.checkpoint import load_model
from nmt.data.store import PairStore
from nmt.devices.precision import autocast, choose_precision
from nmt.logs import warn
from nmt.processes.distributed import World
from nmt.recipe import Recipe
from nmt.storage.run_folder import read_json_object
from nmt.storage.sealed import manifest_digest
from nmt.train.loss import TrainingLoss
from nmt.train.state import TrainState
from nmt.train.validate import validate

# In nats per token: runs that differ only in rounding or seed differ by 0.003 to 0.01.
_NOISE = 0.01


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
    nll = _validate(recipe, model, device, state.micro_batch_tokens) if known is None else float(known)
    best = state.best_validation.get("valid/nll")
    if best is not None and nll > best + _NOISE:
        warn(
            f"the average of {len(averaged)} checkpoints has a validation nll of {nll:.4f}, worse than that of step "
            f"{state.best_step:,} ({best:.4f}): the checkpoints are too far apart; rerun with a lower "
            "train.average_count, or train another run with a lower train.save_every"
        )
    return nll


def _validate(recipe: Recipe, model: Path, device: torch.device, micro_batch_tokens: int) -> float:
    """Return the nll in this process, with the precision of the training."""
    loss = TrainingLoss.from_recipe(load_model(model, device).model, recipe)
    with autocast(choose_precision(recipe.train.precision, device), device):
        valid = PairStore(recipe.data_directory, "valid")
        return validate(loss, valid, World(0, 1, device), micro_batch_tokens, lambda: None).nll
