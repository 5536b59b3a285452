"""`nmt plot`: pictures of runs and models."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.align import Heads, Layer, PlaceOption, load_aligner
from nmt.cli.arguments import Device, ModelArgument, SrcArgument, TgtArgument, require_one_reader, require_output
from nmt.plots.attention import draw_attention, read_panels
from nmt.plots.curves import draw_curves
from nmt.recipe import UserError
from nmt.text.lines import input_name, read_lines

app = typer.Typer(help="Draw pictures, by matplotlib (pip install 'nmt\\[plot]').", no_args_is_help=True)


@app.command()
def curves(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, whose metrics.jsonl is drawn.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The picture: .png, .svg or .pdf.")] = Path("curves.png"),
) -> None:
    """Draw how a run went: loss, perplexity, BLEU, learning rate, norm of the gradient, and speed over updates.

    A run that still trains can be drawn too.
    """
    require_output("-o", out, [run / "metrics.jsonl"])
    typer.echo(draw_curves(run, out))


@app.command()
def alignment(
    model: ModelArgument,
    src: SrcArgument,
    tgt: TgtArgument,
    out: Annotated[Path, typer.Option("-o", "--out", help="The picture: .png, .pdf or .svg.")],
    line: Annotated[int, typer.Option(min=1, help="Which line of the two files.")] = 1,
    layer: Layer = None,
    heads: Heads = None,
    place: PlaceOption = None,
    each_layer: Annotated[
        bool, typer.Option("--each-layer", help="Every layer of the decoder, each with all its heads, side by side.")
    ] = False,
    device: Device = "auto",
) -> None:
    """Draw how much each target token attends to each source token; a dot marks what it is linked to.

    Row by row: the attention by which `nmt align` goes too.
    """
    if each_layer and (layer, heads) != (None, None):
        raise typer.BadParameter("--each-layer shows all layers and heads; leave it out, or --layer and --heads")
    require_output("-o", out, [src, tgt])
    require_one_reader([src, tgt])
    source, target = (next(islice(read_lines(path, once=True), line - 1, None), None) for path in (src, tgt))
    if source is None or target is None:
        short = input_name(src if source is None else tgt)
        raise UserError(f"{short} has no line {line}; it must have it; give a smaller --line")
    aligner = load_aligner(model, layer, heads, place, device)
    draw_attention(*read_panels(aligner, source, target, each_layer), out)
