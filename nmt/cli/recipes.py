"""The commands that list, print and run recipes.

Those that run a recipe import `nmt.pipeline` when they run: help, completion, `nmt config` and recipe errors do not
need torch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.arguments import MAX_THREADS, Overrides, RecipeArgument, file_path, require_at_most_one
from nmt.errors import CommandError
from nmt.logs import say
from nmt.recipe import Recipe, describe_recipe, load_any_recipe, load_recipe
from nmt.recipe.packaged import packaged_files
from nmt.storage.run_folder import require_own_recipe, warn_of_divergence
from nmt.storage.sealed import write_file
from nmt.streams.output_checks import require_new_file

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


def recipes(
    name: Annotated[
        str | None, typer.Argument(help="A recipe to print (default: list all).", autocompletion=packaged_files)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", parser=file_path, metavar="FILE", help="Copy the recipe to this new file."),
    ] = None,
) -> None:
    """List the recipes and sweeps that come with nmt; print or copy one."""
    packaged = packaged_files()
    if name is None:
        if out is not None:
            raise CommandError("nmt recipes -o FILE needs the name of a recipe; give one, such as quickstart")
        width = max(map(len, packaged))
        for recipe_name, path in packaged.items():
            typer.echo(f"{recipe_name:{width}}  {_title(path)}")
        return
    if name not in packaged:
        raise CommandError(f"nmt recipes {name}: no such recipe; it must be one of {', '.join(packaged)}")
    text = packaged[name].read_text(encoding="utf-8")
    if out is not None:
        write_file(require_new_file(out), text.encode())
    typer.echo(text if out is None else f"{out}\n", nl=False)


def _title(path: Path) -> str:
    """Return the title in the first comment of a recipe."""
    first_line = path.read_text(encoding="utf-8").partition("\n")[0]
    return re.split(r"[:,(;]|\. (?=[A-Z])", first_line.removeprefix("# "))[0].strip()
