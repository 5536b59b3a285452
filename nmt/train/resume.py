"""Which checkpoint a run resumes from: the first process decides, and all others follow."""

from __future__ import annotations

from pathlib import Path

from nmt.checkpoint import Checkpoint, load_checkpoint, manifest_digest, newest_checkpoint, remove_leftovers
from nmt.distributed import World
from nmt.layout import checkpoint_directory, checkpoint_step
from nmt.logs import say
from nmt.recipe import Recipe, UserError, load_recipe
from nmt.train.position import Position


def choose_checkpoint(run_dir: Path, world: World) -> tuple[Path, Checkpoint] | None:
    """The newest checkpoint that the first process finds whole, on every process; None where there is none.

    The first process alone renames what is corrupt and removes what is half written. Raises UserError on a process that
    sees another checkpoint of this step, or none, and CorruptError where what it reads is not what was saved.
    """
    found, chosen = None, ""
    if world.is_first:
        remove_leftovers(run_dir)
        found = newest_checkpoint(run_dir, say)
        if found is not None:
            chosen = f"{checkpoint_step(found[0])} {manifest_digest(found[0])}"
    chosen = world.tell(chosen)
    if not chosen or found is not None:
        return found
    step, _, digest = chosen.partition(" ")
    directory = checkpoint_directory(run_dir, int(step))
    if manifest_digest(directory) != digest:
        raise UserError(
            f"{directory} is missing or differs from what the first process sees there; all processes must see the "
            "same files; put run_dir on a file system that they share"
        )
    return directory, load_checkpoint(directory)


def say_what_changed(recipe: Recipe, position: Position, checkpoint: Path) -> None:
    """Tell which sizes of an update are others than when a checkpoint was saved; UserError where they must not be."""
    try:
        before = load_recipe(checkpoint / "recipe.toml").train.batch_tokens
    except UserError:  # written by another version, whose options this one does not know
        return
    now = recipe.train.batch_tokens
    if before == now:
        return
    if position.update and not position.pair:
        raise UserError(
            f"train.batch_tokens is {now}, but {checkpoint} was saved within an epoch of updates of {before} tokens by "
            f"an earlier version of nmt; it must be {before} until the epoch ends; set it to that"
        )
    say(f"train.batch_tokens is now {now:,}, was {before:,}; the rest of the epoch is split into updates of this size")
