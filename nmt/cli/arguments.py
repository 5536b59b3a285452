"""Arguments that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from nmt.recipe import UserError

RecipeArgument = Annotated[Path, typer.Argument(help="A recipe: one TOML file, such as recipes/quickstart.toml.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Options that replace the recipe's: section.key=value, e.g. train.max_steps=99."),
]
ModelArgument = Annotated[Path, typer.Argument(help="A model directory, a checkpoint, or a run directory.")]
Device = Annotated[str, typer.Option(help="auto (a GPU if there is one), cpu, cuda or cuda:N.")]


class Precision(StrEnum):
    """Choices of --precision."""

    auto = "auto"
    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"
    int8 = "int8"


def require_folder(out: Path | None) -> None:
    """Raise UserError, before work that may take minutes, where the folder of the file it ends in is not there."""
    if out is not None and not out.parent.is_dir():
        raise UserError(f"cannot write {out}: {out.parent} is no folder; choose a place that can be written to")


class Engine(StrEnum):
    """Choices of --engine."""

    auto = "auto"
    torch = "torch"
    ctranslate2 = "ctranslate2"
