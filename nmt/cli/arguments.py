"""Arguments that several commands share."""

from __future__ import annotations

import os
from collections.abc import Iterable
from enum import StrEnum
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

import typer

from nmt.logs import say
from nmt.recipe import UserError
from nmt.storage.model_facts import read_model_facts
from nmt.storage.run_folder import find_model
from nmt.streams.output import STANDARD_STREAM, require_no_input
from nmt.text.lines import input_name, read_lines


def packaged_recipes() -> dict[str, Path]:
    """The recipes that come with nmt, by name."""
    with as_file(files("nmt").joinpath("recipes")) as folder:
        return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def packaged_sweeps() -> dict[str, Path]:
    """The sweeps that come with nmt, by name; see `nmt repeat`."""
    with as_file(files("nmt").joinpath("recipes", "sweeps")) as folder:
        return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def find_recipe(given: str) -> Path:
    """The file that the user names, or else the packaged recipe or sweep of that name."""
    path = Path(given)
    if path.exists() or given not in (packaged := packaged_recipes() | packaged_sweeps()):
        return path
    say(f"{given} is the recipe that comes with nmt; to change it: nmt recipes {given} -o {given}.toml")
    return packaged[given]


RecipeArgument = Annotated[
    Path,
    typer.Argument(
        parser=find_recipe, metavar="RECIPE", help="A recipe: one TOML file, or the name of one of `nmt recipes`."
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Options that replace the recipe's: section.key=value, e.g. train.max_steps=99."),
]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads on a CPU (default: one for each core).")]
SrcArgument = Annotated[Path, typer.Argument(help="Source sentences, one a line; - is standard input.")]
TgtArgument = Annotated[Path, typer.Argument(help="Their translations, one a line; - is standard input.")]
ModelArgument = Annotated[Path, typer.Argument(help="A model directory, a checkpoint, or a run directory.")]
Device = Annotated[str, typer.Option(help="auto (a GPU if there is one), cpu, cuda or cuda:N.")]


class Precision(StrEnum):
    """Choices of --precision."""

    auto = "auto"
    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"
    int8 = "int8"


def languages(model: Path) -> tuple[str, str]:
    """Source and target language of a model."""
    facts = read_model_facts(find_model(model))
    return facts.src_lang, facts.tgt_lang


def require_languages(option: str, model: Path, expected: tuple[str, str]) -> None:
    """Raise UserError unless the model that an option names is of these languages, source and target."""
    if languages(model) != expected:
        found, wanted = " to ".join(languages(model)), " to ".join(expected)
        raise UserError(f"{model} translates from {found}; as {option} it must from {wanted}; give another model")


def require_one_reader(inputs: Iterable[Path | None]) -> None:
    """Raise UserError where standard input is given twice: whoever reads it second would find it empty."""
    if sum(path == STANDARD_STREAM for path in inputs) > 1:
        raise UserError("- is given twice; standard input can be read only once; name a file instead of one of them")


def read_pairs(src: Path, tgt: Path) -> tuple[list[str], list[str]]:
    """The lines of two files, pipes or `-`; UserError where they do not match line by line, or are empty."""
    sources, targets = list(read_lines(src, once=True)), list(read_lines(tgt, once=True))
    if len(sources) != len(targets):
        raise UserError(
            f"{input_name(src)} has {len(sources):,} lines and {input_name(tgt)} has {len(targets):,}; they must match "
            "line by line; check both"
        )
    if not sources:
        raise UserError(f"{input_name(src)} is empty; it must hold one sentence a line; check the file")
    return sources, targets


def require_output(
    option: str, out: Path | None, inputs: Iterable[Path | None] = (), replaces: bytes | None = None
) -> None:
    """Raise UserError, before work that may take minutes, where the file that an option names cannot be written.

    That is where its folder is not there, and where it is a folder or one of the inputs; see `require_no_input`.

    replaces: what each output of the command has in its first 1,000 bytes; another file with content is not replaced
    """
    if out is None:
        return
    folder = Path(os.path.realpath(out)).parent
    if not folder.is_dir():
        raise UserError(f"cannot write {out}: {folder} is no folder; choose a place that can be written to")
    if out.is_dir():
        raise UserError(f"cannot write {out}: it is a folder; {option} must be a file; name one in it")
    if out == STANDARD_STREAM:
        raise UserError(f"{option} - is not possible; it must be a file; name one")
    require_no_input(option, out, inputs)
    if replaces is not None and out.is_file():
        with out.open("rb") as file:
            start = file.read(1_000)
        if start and replaces not in start:
            raise UserError(f"{out} is another kind of file; {option} replaces only what it wrote; name a new file")


def write_new(out: Path, text: str) -> None:
    """Write the file that -o names; UserError where it is there already."""
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise UserError(f"{out} exists already; -o must be a new file; give another name") from error


class Engine(StrEnum):
    """Choices of --engine."""

    auto = "auto"
    torch = "torch"
    ctranslate2 = "ctranslate2"
