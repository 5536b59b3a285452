"""`nmt recipes`: list and copy the packaged recipes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.arguments import file_path, packaged_files
from nmt.errors import CommandError
from nmt.storage.sealed import write_file
from nmt.streams.output_checks import require_new_file


def recipes(
    name: Annotated[str | None, typer.Argument(help="A recipe to print (default: list all).")] = None,
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
