"""The commands that run a recipe, from text to a scored model.

They import `nmt.pipeline` when they run: help, completion, `nmt config` and recipe errors do not need torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.arguments import MAX_THREADS, Overrides, RecipeArgument, require_at_most_one
from nmt.logs import say
from nmt.recipe import Recipe, describe_recipe, load_any_recipe, load_recipe
from nmt.storage.run_folder import require_own_recipe, warn_of_divergence

Seed = Annotated[int | None, typer.Option(help="Seed of weights, dropout and data order; same as the override seed=N.")]
Threads = Annotated[int | None, typer.Option(min=1, max=MAX_THREADS, help="CPU threads; same as train.threads=N.")]


def run(recipe: RecipeArgument, overrides: Overrides = None, seed: Seed = None, threads: Threads = None) -> None:
    """Prepare, train, average, translate the test sets, score them and report; skip steps that are up to date.

    To resume an interrupted run, rerun the command.

    On several GPUs: torchrun --nproc-per-node 8 -m nmt run RECIPE
    """
    plan = _load_for_training(recipe, overrides or (), seed, threads)
    from nmt import pipeline  # noqa: PLC0415

    pipeline.run(plan)


def prepare(recipe: RecipeArgument, overrides: Overrides = None) -> None:
    """Clean the corpora, train the subword tokenizer, and write the token store."""
    plan = load_recipe(recipe, overrides or ())
    from nmt import pipeline  # noqa: PLC0415

    pipeline.prepare(plan)


def train(recipe: RecipeArgument, overrides: Overrides = None, seed: Seed = None, threads: Threads = None) -> None:
    """Train, resuming from the newest checkpoint of the run; prepare the corpora first if necessary.

    On several GPUs: torchrun --nproc-per-node 8 -m nmt train RECIPE
    """
    plan = _load_for_training(recipe, overrides or (), seed, threads)
    from nmt import pipeline  # noqa: PLC0415

    pipeline.train(plan)


def _load_for_training(path: Path, overrides: Sequence[str], seed: int | None, threads: int | None) -> Recipe:
    """Load the recipe; raises UserError if training would overwrite it, or another file, with the saved recipe."""
    options = {"seed": seed, "train.threads": threads}
    recipe = load_recipe(path, [*overrides, *(f"{key}={value}" for key, value in options.items() if value is not None)])
    require_own_recipe(recipe.directory)
    return recipe


def average(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    last: Annotated[int | None, typer.Option(min=1, help="Average the newest N checkpoints (default: 5).")] = None,
    best: Annotated[int | None, typer.Option(min=1, help="Average the N best checkpoints by validation.")] = None,
    ema: Annotated[bool, typer.Option("--ema", help="Use the EMA of training (see train.ema_decay).")] = False,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="New model directory (default: in RUN).")] = None,
) -> None:
    """Average the weights of several checkpoints of a run into one model directory."""
    require_at_most_one({"--last": last is not None, "--best": best is not None, "--ema": ema})
    from nmt import pipeline  # noqa: PLC0415

    kind: pipeline.AverageKind = "last" if best is None else "best"
    count = best or last or 5
    name = f"average-{kind}-{count}"
    if ema:
        kind, count, name = "ema", 1, "average-ema"
    target = out or run_dir / name
    checkpoints = pipeline.average(run_dir, target, kind, count)
    warn_of_divergence(run_dir)
    say(f"{'saved the EMA at' if ema else 'averaged'} {', '.join(checkpoint.name for checkpoint in checkpoints)}")
    typer.echo(target)


def config(recipe: RecipeArgument, overrides: Overrides = None) -> None:
    """Print the resolved recipe, with the documentation of each option."""
    typer.echo(describe_recipe(load_any_recipe(recipe, overrides or ())), nl=False)
