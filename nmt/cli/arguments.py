"""Arguments and checks that several commands share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer

from nmt.errors import UserError
from nmt.logs import is_first_rank, say
from nmt.plots.figure import PLOT_MARK, require_drawable
from nmt.recipe import NO_LANGUAGE
from nmt.recipe.packaged import packaged_files
from nmt.storage.model_metadata import read_model_metadata
from nmt.storage.run_folder import find_model
from nmt.streams.output_checks import require_not_input, require_output
from nmt.text.format_warnings import warn_of_pairs
from nmt.text.lines import STANDARD_STREAM, read_lines, require_lines, require_same_length


def find_recipe(name: str) -> Path:
    """Return the path of a recipe file, or of the packaged one of that name, even if a directory has the same name."""
    path = Path(name)
    if path.is_dir() or not path.exists():
        packaged = packaged_files()
        if name in packaged:
            if is_first_rank():
                say(f"{name} comes with nmt; to edit a copy: nmt recipes {name} -o {name}.toml")
            return packaged[name]
        if not path.exists() and (similar := get_close_matches(name, packaged, 1)):
            raise typer.BadParameter(f"{name} does not exist; did you mean {similar[0]}, which `nmt recipes` lists?")
    check_inputs([path])
    return path


def file_path(name: str | Path) -> Path:
    """Return the path of an output file; raises BadParameter if the name is empty or ends in a slash.

    Path turns an empty name into the current directory, and drops a final slash.
    """
    if not str(name):
        raise typer.BadParameter("the name is empty; it must be a file; name one")
    if str(name).endswith("/"):
        raise typer.BadParameter(f"{name} names a directory; it must be a file; name one in it")
    return Path(name)


def complete_recipe() -> list[str]:
    """Return the packaged recipes and the TOML files in this directory; shells complete other paths if none matches."""
    return [*packaged_files(), *map(str, Path().glob("*.toml"))]


RecipeArgument = Annotated[
    Path,
    typer.Argument(
        parser=find_recipe,
        metavar="RECIPE",
        help="A recipe: a TOML file, or a name that `nmt recipes` lists.",
        autocompletion=complete_recipe,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Options that override those of the recipe: section.key=value, e.g. train.max_steps=99."),
]
MAX_THREADS = 1_024  # the system aborts a process that starts too many
Threads = Annotated[int | None, typer.Option(min=1, max=MAX_THREADS, help="CPU threads (default: one per core).")]
SrcArgument = Annotated[Path, typer.Argument(help="Source sentences, one per line; - is standard input.")]
TgtArgument = Annotated[Path, typer.Argument(help="Their translations, one per line; - is standard input.")]
ModelArgument = Annotated[Path, typer.Argument(help="A model directory, checkpoint or run directory.")]
Device = Annotated[str, typer.Option(help="auto (a GPU if there is one), cpu, cuda or cuda:N.")]


def languages(model: Path) -> tuple[str, str]:
    """Return the source and target language of a model."""
    metadata = read_model_metadata(find_model(model))
    return metadata.src_lang, metadata.tgt_lang


def require_languages(option: str, model: Path, expected: tuple[str, str]) -> None:
    """Raise UserError unless the model given by an option has the expected source and target language."""
    src_lang, tgt_lang = languages(model)
    if (src_lang, tgt_lang) != expected:
        is_lm = src_lang == NO_LANGUAGE
        wrong = f"is a language model of {tgt_lang}" if is_lm else f"translates from {src_lang} to {tgt_lang}"
        raise UserError(f"{model} {wrong}; {option} must translate from {' to '.join(expected)}; choose another model")


def require_at_most_one(given: Mapping[str, bool]) -> None:
    """Raise BadParameter if more than one of several mutually exclusive options is given."""
    names = [option for option, is_given in given.items() if is_given]
    if len(names) > 1:
        raise typer.BadParameter(f"{' and '.join(names)} are mutually exclusive; give one of them")


def missing_option(option: str, needed: str) -> typer.BadParameter:
    """Return the error for an option that has no effect without another one."""
    return typer.BadParameter(f"{option} has no effect without {needed}; add {needed}, or leave out {option}")


def check_inputs(inputs: Iterable[Path | None]) -> None:
    """Raise UserError if standard output would overwrite or extend an input, or if two inputs are standard input."""
    inputs = list(inputs)
    require_not_input("standard output", STANDARD_STREAM, inputs)
    if sum(path == STANDARD_STREAM for path in inputs) > 1:
        raise UserError("- is given twice; standard input can be read only once; name a file instead of one of them")


def read_pairs(src: Path, tgt: Path | None) -> tuple[list[str], list[str]]:
    """Read two line-aligned files, or one file as both sides; raises UserError if empty or if line counts differ."""
    sources = list(read_lines(src, allow_pipe=True))
    targets = sources if tgt is None else list(read_lines(tgt, allow_pipe=True))
    require_same_length(src, len(sources), tgt or src, len(targets))
    require_lines(src, len(sources))
    warn_of_pairs(src, sources, tgt, targets)
    return sources, targets


def require_plot(option: str, out: Path, inputs: Iterable[Path | None] = ()) -> None:
    """Raise UserError or CommandError early if a plot cannot be drawn or written; see `require_output`."""
    require_output(option, out, inputs, PLOT_MARK)
    require_drawable(out)


def named_file(name: str) -> Path:
    """Return the path of a file; raises BadParameter as `file_path` does, and for `-` and a directory."""
    path = file_path(name)
    if path == STANDARD_STREAM:
        raise typer.BadParameter("- is not supported; it must be a file; name one")
    if path.is_dir():
        raise typer.BadParameter(f"{name} is a directory; it must be a file; name one in it")
    return path
