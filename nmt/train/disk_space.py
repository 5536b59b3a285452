"""Whether the disk has capacity for the checkpoints of a run, before the work begins."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from nmt.model.transformer import Transformer
from nmt.recipe import Recipe, UserError
from nmt.storage.run_folder import list_checkpoints

BYTES_PER_ELEMENT = 4  # everything is saved in fp32
ADAM_MOMENTS = 2


def require_disk_space(recipe: Recipe, vocab_size: int) -> None:
    """Raise UserError where the checkpoints that the recipe keeps do not fit on the disk of the run directory.

    vocab_size: tokens of each side. What the run's checkpoints of before occupy counts as free, since they are removed.
    """
    checkpoint = checkpoint_bytes(recipe, vocab_size)
    count = recipe.train.keep_last + recipe.train.keep_best + 1  # a new one is written before an old one is removed
    needed = count * checkpoint + model_bytes(recipe, vocab_size)
    free = shutil.disk_usage(_existing(recipe.directory)).free
    occupied = sum(_size(directory) for directory in list_checkpoints(recipe.directory))
    if needed > free + occupied:
        raise UserError(
            f"{recipe.directory.absolute()}: {_gigabytes(free)} of disk space free; {count} checkpoints of "
            f"{_gigabytes(checkpoint)} need {_gigabytes(max(needed - occupied, 0))}; free disk space, lower "
            "train.keep_last or train.keep_best, or set run_dir to another disk"
        )


def model_bytes(recipe: Recipe, vocab_size: int) -> int:
    """Size of the parameters as they are saved."""
    with torch.device("meta"):  # shapes alone, no memory
        return BYTES_PER_ELEMENT * Transformer(recipe.model, vocab_size, vocab_size).num_parameters()


def checkpoint_bytes(recipe: Recipe, vocab_size: int) -> int:
    """Size of a checkpoint: parameters, Adam's moments, and the EMA where one is kept."""
    copies = 1 + ADAM_MOMENTS + (1 if recipe.train.ema_decay else 0)
    return copies * model_bytes(recipe, vocab_size)


def _existing(path: Path) -> Path:
    """The nearest folder above a path that exists."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())


def _size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.iterdir() if file.is_file())


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:,.1f} MB"
