"""`nmt plot`: pictures of runs and models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nmt.plots.curves import draw_curves

app = typer.Typer(help="Draw pictures, by matplotlib (pip install 'nmt[plot]').", no_args_is_help=True)


@app.command()
def curves(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, whose metrics.jsonl is drawn.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The picture: .png, .svg or .pdf.")] = Path("curves.png"),
) -> None:
    """Draw how a run went: loss, perplexity, BLEU, learning rate, norm of the gradient, and speed over updates.

    A run that still trains can be drawn too.
    """
    typer.echo(draw_curves(run, out))
