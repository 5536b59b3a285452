"""Which checkpoint a run resumes from: the first process decides, and all others follow."""

from __future__ import annotations

from pathlib import Path

from nmt.checkpoint import Checkpoint, load_checkpoint, manifest_digest, newest_checkpoint, remove_leftovers
from nmt.data.fingerprint import outdated_splits, read_report
from nmt.data.tokenizer import Tokenizers
from nmt.distributed import World
from nmt.layout import checkpoint_directory, checkpoint_step, list_checkpoints
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


def require_same_text(recipe: Recipe) -> None:
    """Raise UserError where the run has checkpoints, but its prepared training text is no longer what the recipe makes.

    To be called before anything is prepared: a new tokenizer under old weights would destroy the run.
    """
    directory = recipe.data_directory
    if not list_checkpoints(recipe.directory) or read_report(directory) is None:
        return
    if "train" in outdated_splits(recipe, directory):
        raise UserError(_other_text(recipe, "its training text or a corpus file has changed since it was prepared"))


def require_same_identity(recipe: Recipe, position: Position, identity: str) -> None:
    """Raise UserError where a checkpoint was trained on another text; see `nmt.data.fingerprint.text_identity`."""
    if position.text and identity and position.text != identity:
        raise UserError(_other_text(recipe, "its prepared training text is not the one that the checkpoint knows"))


def require_same_tokenizers(recipe: Recipe, tokenizers: Tokenizers) -> None:
    """Raise UserError where the newest checkpoint of the run was trained with other tokenizers."""
    for checkpoint in list_checkpoints(recipe.directory)[-1:]:
        saved = {path.name: path.read_bytes() for path in checkpoint.glob("tokenizer*.model")}
        if saved and saved != tokenizers.files():
            raise UserError(_other_text(recipe, f"{checkpoint.name} was trained with another tokenizer"))


def _other_text(recipe: Recipe, what: str) -> str:
    return (
        f"{recipe.directory} cannot be resumed: {what}; a run keeps its text and its tokenizer; restore the files, "
        f"train under another name, or fine-tune: name=NEW train.start_from={recipe.directory}"
    )


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
