"""`nmt guide`: print the guide."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from difflib import get_close_matches
from importlib.resources import files
from shutil import which
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
    """Print a page of the guide: as Markdown, or on a terminal formatted and in a pager (PAGER, by default less)."""
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
        _show(Markdown(text))
    else:
        typer.echo(text, nl=False)


def _show(page: Markdown) -> None:
    """Show a page in the pager, with the options that git gives to less; print it if there is no pager."""
    console = Console()
    pager = os.environ.get("PAGER", "less").split()
    if console.is_dumb_terminal or not os.isatty(0) or not pager or not which(pager[0]):
        console.print(page)
        return
    with console.capture() as formatted:
        console.print(page)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is a key of the pager
    subprocess.run(pager, input=formatted.get().encode(), env={"LESS": "FRX"} | os.environ, check=False)
