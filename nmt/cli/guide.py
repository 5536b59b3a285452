"""`nmt guide`: print the guide."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from importlib.resources import files
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown

from nmt.errors import CommandError
from nmt.recipe.reference import option_reference


def guide_pages() -> dict[str, str]:
    """Return the Markdown of each page, by name."""
    folder = files("nmt.guide")
    pages = sorted(page.name for page in folder.iterdir() if page.name.endswith(".md"))
    return {name.removesuffix(".md"): (folder / name).read_text(encoding="utf-8") for name in pages}


def guide(
    topic: Annotated[
        str | None, typer.Argument(help="A page (default: list the pages).", autocompletion=guide_pages)
    ] = None,
) -> None:
    """Print a page of the guide, formatted on a terminal, otherwise as Markdown."""
    pages = guide_pages()
    if topic is None:
        width = max(map(len, pages))
        for name, text in pages.items():
            typer.echo(f"{name:{width}}  {text.splitlines()[0].lstrip('# ')}")
        return
    if topic not in pages:
        (hint,) = get_close_matches(topic.lower(), pages, 1) or [""]
        expected = f"did you mean {hint}?" if hint else f"it must be one of {', '.join(pages)}"
        raise CommandError(f"nmt guide {topic}: no such page; {expected}")
    text = option_reference() if topic == "options" else pages[topic]
    if sys.stdout.isatty():
        Console().print(Markdown(text))
    else:
        typer.echo(text, nl=False)
