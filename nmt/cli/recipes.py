"""The commands that list, print and run recipes.

Those that run a recipe import `nmt.pipeline` when they run: help, completion, `nmt config` and recipe errors do not
need torch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from nmt.cli.arguments import MAX_THREADS, Overrides, RecipeArgument, file_path, require_at_most_one
from nmt.errors import CommandError
from nmt.logs import say
from nmt.recipe import Recipe, describe_recipe, load_any_recipe, load_recipe
from nmt.recipe.packaged import packaged_files
from nmt.storage.model_metadata import read_model_metadata, warn_of_run
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
    paths: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="A run directory, or several runs, models and checkpoints.")
    ],
    last: Annotated[int | None, typer.Option(min=1, help="Average the newest N checkpoints (default: 5).")] = None,
    best: Annotated[int | None, typer.Option(min=1, help="Average the N best checkpoints by validation.")] = None,
    ema: Annotated[bool, typer.Option("--ema", help="Use the EMA of training (see train.ema_decay).")] = False,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="New model directory (default: in RUN).")] = None,
) -> None:
    """Average the weights of several checkpoints of a run into one model directory.

    Several models can also be averaged if they have a common initial model, such as a model before and after
    fine-tuning.
    """
    of_run = {"--last": last is not None, "--best": best is not None, "--ema": ema}
    require_at_most_one(of_run)
    if len(paths) > 1:
        target = _average_models(paths, out, [option for option, is_given in of_run.items() if is_given])
    else:
        target = _average_run(paths[0], "ema" if ema else "last" if best is None else "best", best or last or 5, out)
    typer.echo(target)


def _average_models(paths: Sequence[Path], out: Path | None, of_run: Sequence[str]) -> Path:
    if of_run:
        raise typer.BadParameter(f"{of_run[0]} averages checkpoints of one run, got {len(paths)} paths; give one run")
    if out is None:
        raise typer.BadParameter("the average of several models needs -o DIR; add a new directory")
    from nmt.checkpoint import average_models  # noqa: PLC0415

    models = average_models(paths, out)
    for path, model in zip(paths, models, strict=True):
        warn_of_run(path, read_model_metadata(model))
    say(f"averaged {', '.join(map(str, models))}")
    return out


def _average_run(run_dir: Path, kind: Literal["last", "best", "ema"], count: int, out: Path | None) -> Path:
    from nmt import pipeline  # noqa: PLC0415

    target = out or run_dir / ("average-ema" if kind == "ema" else f"average-{kind}-{count}")
    checkpoints = pipeline.average(run_dir, target, kind, 1 if kind == "ema" else count)
    warn_of_divergence(run_dir)
    say(f"{'saved the EMA at' if kind == 'ema' else 'averaged'} {', '.join(path.name for path in checkpoints)}")
    return target


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
