"""Check of the disk space for the checkpoints of a run."""

from __future__ import annotations

import shutil

import torch

from nmt.model.transformer import Transformer
from nmt.recipe import Recipe, UserError
from nmt.storage.run_folder import list_checkpoints

BYTES_PER_ELEMENT = 4  # fp32
ADAM_MOMENTS = 2


def require_disk_space(recipe: Recipe, vocab_size: int) -> None:
    """Raise UserError unless the disk of the run directory has space for the checkpoints that the recipe keeps.

    Existing checkpoints of the run count as free space, since they will be removed. vocab_size: of each side.
    """
    checkpoint = checkpoint_bytes(recipe, vocab_size)
    count = recipe.train.keep_last + recipe.train.keep_best + 1  # one is written before another is removed
    needed = count * checkpoint + model_bytes(recipe, vocab_size)
    path = recipe.directory.absolute()
    free = shutil.disk_usage(next(folder for folder in (path, *path.parents) if folder.is_dir())).free
    files = (file for checkpoint in list_checkpoints(recipe.directory) for file in checkpoint.iterdir())
    occupied = sum(file.stat().st_size for file in files if file.is_file())
    if needed > free + occupied:
        raise UserError(
            f"{recipe.directory.absolute()}: {_gigabytes(free)} of disk space free; {count} checkpoints of "
            f"{_gigabytes(checkpoint)} need {_gigabytes(max(needed - occupied, 0))}; free disk space, lower "
            "train.keep_last or train.keep_best, or set run_dir to another disk"
        )


def model_bytes(recipe: Recipe, vocab_size: int) -> int:
    """Return the size of a saved model."""
    with torch.device("meta"):
        return BYTES_PER_ELEMENT * Transformer(recipe.model, vocab_size, vocab_size).num_parameters()


def checkpoint_bytes(recipe: Recipe, vocab_size: int) -> int:
    """Return the size of a checkpoint: parameters, Adam's moments, and the EMA if there is one."""
    copies = 1 + ADAM_MOMENTS + (1 if recipe.train.ema_decay else 0)
    return copies * model_bytes(recipe, vocab_size)


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:,.1f} MB"
