"""`nmt guide`: print the guide."""

from __future__ import annotations

import sys
from importlib.resources import files
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown

from nmt.errors import CommandError
from nmt.recipe.reference import option_reference


def guide(topic: Annotated[str | None, typer.Argument(help="A page (default: list the pages).")] = None) -> None:
    """Print a page of the guide, formatted on a terminal, otherwise as Markdown."""
    pages = guide_pages()
    if topic is None:
        width = max(map(len, pages))
        for name, text in pages.items():
            typer.echo(f"{name:{width}}  {text.splitlines()[0].lstrip('# ')}")
        return
    if topic not in pages:
        raise CommandError(f"nmt guide {topic}: no such page; it must be one of {', '.join(pages)}")
    if sys.stdout.isatty():
        Console().print(Markdown(pages[topic]))
    else:
        typer.echo(pages[topic], nl=False)


def guide_pages() -> dict[str, str]:
    """Return the Markdown of each page, by name."""
    folder = files("nmt.guide")
    pages = {
        page.name.removesuffix(".md"): page.read_text(encoding="utf-8")
        for page in folder.iterdir()
        if page.name.endswith(".md")
    }
    return dict(sorted({**pages, "options": option_reference()}.items()))
