"""The final model of a run: the average of checkpoints, or the EMA."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from nmt.checkpoint import average_checkpoints, average_origin, ema_origin, write_ema
from nmt.errors import UserError
from nmt.logs import counted, say
from nmt.recipe import DecodeRecipe, Recipe, load_saved_recipe
from nmt.storage.model_metadata import read_model_metadata
from nmt.storage.run_folder import checkpoint_step, list_checkpoints, require_own_model, require_run
from nmt.storage.sealed import CorruptError, require_new, verify_directory
from nmt.train.state import TrainState

AverageKind = Literal["last", "best", "ema"]


def average(run_dir: str | Path, out: str | Path, kind: AverageKind, count: int) -> list[Path]:
    """Write an averaged model of a run; return the averaged checkpoints.

    kind: `last` averages the newest `count` checkpoints, `best` those with the best validation results; `ema` is
        the EMA at the newest checkpoint

    Raises UserError if `out` exists, if there are too few checkpoints, or if there is no EMA.
    """
    run_dir, out = Path(run_dir), Path(out)
    require_new(out)
    checkpoints = _choose_checkpoints(run_dir, kind, count)
    saved_recipe = run_dir / "recipe.toml"
    # Not the search options of the checkpoints, which may be older.
    decode = load_saved_recipe(saved_recipe).decode if saved_recipe.is_file() else None
    _write_average(checkpoints, kind, out, decode)
    return checkpoints


def update_model(recipe: Recipe) -> list[Path]:
    """Write the average that the recipe requests to `model` in the run directory, unless it is up to date.

    Returns the averaged checkpoints.
    """
    kind = recipe.train.average
    out = recipe.directory / "model"
    checkpoints = _choose_checkpoints(recipe.directory, kind, recipe.train.average_count, accept_fewer=True)
    origin = ema_origin(checkpoints[-1]) if kind == "ema" else average_origin(checkpoints)
    try:
        verify_directory(out)
        metadata = read_model_metadata(out)
        if origin.items() <= metadata.origin.items() and metadata.decode.model_dump() == recipe.decode.model_dump():
            say(f"{out} is up to date")
            return checkpoints
    except CorruptError:
        pass
    require_own_model(recipe.directory)
    _write_average(checkpoints, kind, out, recipe.decode, replaces=True)
    first, last = checkpoints[0].name, checkpoints[-1].name
    if kind == "ema":
        content = f"the EMA at {last}"
    elif first == last:
        content = f"checkpoint {last}"
    else:
        content = f"the average of {len(checkpoints)} checkpoints, {first} to {last}"
    say(f"{out} is {content}")
    return checkpoints


def _choose_checkpoints(run_dir: Path, kind: AverageKind, count: int, *, accept_fewer: bool = False) -> list[Path]:
    """Return the checkpoints to average, oldest first."""
    require_run(run_dir)
    checkpoints = list_checkpoints(run_dir)
    if not checkpoints:
        raise UserError(f"{run_dir} has no checkpoints; train first")
    if kind == "ema":
        return checkpoints[-1:]
    noun, option = "checkpoint", "keep_last"
    if kind == "best":
        noun, option = "validated checkpoint", "keep_best"
        by_step = {checkpoint_step(checkpoint): checkpoint for checkpoint in checkpoints}
        best = TrainState.load(checkpoints[-1]).best_steps()
        missing = set(best[:count]) - by_step.keys()
        if missing and not accept_fewer:
            steps = ", ".join(map(str, sorted(missing)))
            raise UserError(
                f"{run_dir} lacks checkpoints that are among its {count} best (steps {steps}); average fewer, or train "
                "another run with a higher train.keep_best"
            )
        checkpoints = [by_step[step] for step in reversed(best) if step in by_step]
        if not checkpoints:
            raise UserError(
                f"{run_dir} has no validated checkpoint; the average of the best needs one; lower "
                "train.validate_every and train longer, or average the last checkpoints"
            )
    if len(checkpoints) < count and not accept_fewer:
        available = counted(len(checkpoints), noun)
        raise UserError(
            f"cannot average {count} checkpoints: {run_dir} has {available}; average fewer (--{kind} "
            f"{len(checkpoints)}); another run keeps more with train.{option} or a lower train.save_every"
        )
    return sorted(checkpoints[-count:])


def _write_average(
    paths: Sequence[Path], kind: AverageKind, out: Path, decode: DecodeRecipe | None, *, replaces: bool = False
) -> None:
    if kind == "ema":
        write_ema(paths[-1], out, decode, replaces=replaces)
    else:
        average_checkpoints(paths, out, decode, replaces=replaces)
