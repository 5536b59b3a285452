"""Disk space check for the checkpoints of a run."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

import torch

from nmt.data.reused_tokenizers import expected_vocab_sizes
from nmt.errors import UserError
from nmt.models import build_uninitialized
from nmt.recipe import Recipe
from nmt.storage.run_folder import list_checkpoints

BYTES_PER_ELEMENT = 4  # fp32
ADAM_MOMENTS = 2


@dataclass(frozen=True)
class DiskNeed:
    """Disk space that a run needs and has, in bytes.

    checkpoint: maximum size of one checkpoint
    count:      maximum number of checkpoints at a time
    total:      checkpoints and the averaged model
    free:       free space on the disk of the checkpoints
    occupied:   existing checkpoints of the run, which are part of `total`
    """

    checkpoint: int
    count: int
    total: int
    free: int
    occupied: int

    @property
    def available(self) -> int:
        """Bytes that the run can use."""
        return self.free + self.occupied


def disk_need(recipe: Recipe, vocab_sizes: tuple[int, int]) -> DiskNeed:
    """Return the disk space that the checkpoints of a recipe need, and the space available."""
    checkpoint = checkpoint_bytes(recipe, vocab_sizes)
    count = recipe.train.keep_last + recipe.train.keep_best + 1  # one is written before another is removed
    path = recipe.directory.absolute() / "checkpoints"  # may be a link to another disk
    free = shutil.disk_usage(next(folder for folder in (path, *path.parents) if folder.is_dir())).free
    files = (file for directory in list_checkpoints(recipe.directory) for file in directory.iterdir())
    occupied = sum(file.stat().st_size for file in files if file.is_file())
    return DiskNeed(checkpoint, count, count * checkpoint + model_bytes(recipe, vocab_sizes), free, occupied)


def require_disk_space(recipe: Recipe) -> None:
    """Raise UserError unless the disk of the checkpoints has space for those that the recipe keeps."""
    need = disk_need(recipe, expected_vocab_sizes(recipe))
    if need.total > need.available:
        existing = f", of which existing checkpoints use {format_bytes(need.occupied)}" if need.occupied else ""
        raise UserError(
            f"{recipe.directory.absolute()}: {format_bytes(need.free)} of disk space free; {need.count} checkpoints of "
            f"{format_bytes(need.checkpoint)} and a model need {format_bytes(need.total)}{existing}; "
            "free disk space, lower train.keep_last or train.keep_best, or set run_dir to a directory on another disk"
        )


def model_parameters(recipe: Recipe, src_vocab_size: int, tgt_vocab_size: int) -> int:
    """Return the number of parameters of a model."""
    return build_uninitialized(recipe.model, src_vocab_size, tgt_vocab_size, torch.device("meta")).num_parameters()


def model_bytes(recipe: Recipe, vocab_sizes: tuple[int, int]) -> int:
    """Return the size of a saved model."""
    return BYTES_PER_ELEMENT * model_parameters(recipe, *vocab_sizes)


def checkpoint_bytes(recipe: Recipe, vocab_sizes: tuple[int, int]) -> int:
    """Return the maximum size of a checkpoint: parameters, Adam's moments, and the EMA if there is one.

    Frozen parameters may have no moments, which is not taken into account.
    """
    copies = 1 + ADAM_MOMENTS + (1 if recipe.train.ema_decay else 0)
    return copies * model_bytes(recipe, vocab_sizes)


def format_bytes(size: int) -> str:
    """Format bytes as GB or MB."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:,.1f} MB"
