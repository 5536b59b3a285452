"""`nmt plot`: training curves and attention."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.align import AtOption, Heads, Layer, Tag, load_aligner
from nmt.cli.arguments import Device, ModelArgument, SrcArgument, TgtArgument, check_inputs, file_path, require_plot
from nmt.errors import UserError
from nmt.plots.attention import draw_attention, read_attention
from nmt.plots.curves import draw_curves, draw_runs
from nmt.text.lines import count_lines, input_name, read_lines, require_same_length

Out = Annotated[
    Path, typer.Option("-o", "--out", parser=file_path, metavar="FILE", help="Output file: .png, .svg or .pdf.")
]

app = typer.Typer(help="Plot curves and attention with matplotlib (pip install 'nmt\\[plot]').", no_args_is_help=True)


@app.command()
def curves(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories.")],
    out: Out = Path("curves.png"),
) -> None:
    """Plot loss, perplexity, BLEU, learning rate, gradient norm and speed by update, even while a run is training.

    With several runs: their losses and BLEU in one figure, or losses and accuracy of classifiers.
    """
    require_plot("-o", out, [run / "metrics.jsonl" for run in runs])
    if len(runs) == 1:
        draw_curves(runs[0], out)
    else:
        draw_runs([(str(run), run) for run in runs], out)
    typer.echo(out)


@app.command()
def alignment(
    model: ModelArgument,
    src: SrcArgument,
    tgt: TgtArgument,
    out: Out,
    line: Annotated[int, typer.Option(min=1, help="Line of the two files, from 1.")] = 1,
    layer: Layer = None,
    heads: Heads = None,
    at: AtOption = None,
    tag: Tag = None,
    device: Device = "auto",
) -> None:
    """Plot the cross-attention of each target token (row) to the source tokens; a dot marks its aligned token.

    This is the attention that `nmt align` uses.
    """
    require_plot("-o", out, [src, tgt])
    check_inputs([src, tgt])
    if src.is_file() and tgt.is_file():
        require_same_length(src, count_lines(src), tgt, count_lines(tgt))
    source = _read_line(src, line)
    target = _read_line(tgt, line)
    aligner = load_aligner(model, layer, heads, at, device, tag)
    draw_attention(read_attention(aligner, source, target), out)
    typer.echo(out)


def _read_line(path: Path, number: int) -> str:
    for line in islice(read_lines(path, allow_pipe=True), number - 1, None):
        return line
    raise UserError(f"{input_name(path)} has no line {number}; --line must be within the file; give a smaller number")
