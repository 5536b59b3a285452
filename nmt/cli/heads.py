"""`nmt heads`: importance and behavior of attention heads, and models with fewer heads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import torch
import typer

from nmt.checkpoint import LoadedModel, load_model
from nmt.cli.arguments import (
    Device,
    ModelArgument,
    SrcArgument,
    Threads,
    check_inputs,
    file_path,
    missing_option,
    read_pairs,
    require_plot,
)
from nmt.cli.metric_options import print_results
from nmt.heads.analysis import Analysis, analyze
from nmt.heads.pruning import most_important, write_pruned
from nmt.logs import counted, say
from nmt.plots.heads import draw_head_removal
from nmt.processes.distributed import choose_device
from nmt.recipe import ModelRecipe
from nmt.storage.model_metadata import warn_of_missing_tag, warn_of_run
from nmt.storage.sealed import require_new

Stack = Literal["encoder", "decoder"]
Prune = Annotated[
    str | None,
    typer.Option(
        metavar="N|FRACTION",
        help="Write a model without the N least important heads of each attention layer, or without a fraction "
        "of its heads, such as 0.5; needs -o.",
    ),
]


def heads(
    model: ModelArgument,
    src: SrcArgument,
    ref: Annotated[Path, typer.Argument(help="Their reference translations, one per line; - is standard input.")],
    bleu: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="Add the change in BLEU without each of the N heads that affect the nll most."
        ),
    ] = 0,
    plot: Annotated[
        Path | None,
        typer.Option(
            parser=file_path, metavar="FILE", help="Plot BLEU against the number of removed heads: .png, .svg or .pdf."
        ),
    ] = None,
    prune: Prune = None,
    stack: Annotated[Stack | None, typer.Option(help="With --prune: prune only this stack (default: both).")] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="New model directory for --prune.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all measurements as JSON.")] = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Show how much each attention head contributes to given translations, and what it attends to.

    Heads are listed by importance: the absolute gradient of the negative log-likelihood (nll) with respect to a mask on
    the head (Michel et al. 2019). The change in nll without the head is also measured. A few hundred pairs are enough.

    nmt heads runs/mine valid.en valid.de --plot heads.png

    nmt heads runs/mine valid.en valid.de --prune 0.5 --stack encoder -o smaller
    """
    if (prune is None) != (out is None):
        raise typer.BadParameter("--prune and -o must be given together; give both, or leave both out")
    if stack is not None and prune is None:
        raise missing_option("--stack", "--prune")
    if out is not None:
        require_new(out)
    check_inputs([src, ref])
    if plot is not None:
        require_plot("--plot", plot, [src, ref])
    sources, references = read_pairs(src, ref)
    if threads is not None:
        torch.set_num_threads(threads)
    loaded = load_model(model, choose_device(device))
    warn_of_run(model, loaded.metadata)
    warn_of_missing_tag(model, loaded.metadata, loaded.metadata.decode.tag, has_option=False)
    num_kept = None if prune is None else _numbers_to_keep(prune, stack, loaded.transformer.recipe)
    analysis = analyze(loaded, sources, references, bleu, curves=plot is not None)
    print_results(analysis.to_dict(), analysis.tables(), "json" if as_json else "text")
    if plot is not None:
        title = f"{model.resolve().name}: BLEU without heads, {analysis.num_pairs:,} pairs"
        draw_head_removal(title, analysis.curves, plot)
        say(f"wrote {plot}")
    if num_kept is not None and out is not None:
        _prune(loaded, analysis, num_kept, out)


def _numbers_to_keep(text: str, stack: Stack | None, recipe: ModelRecipe) -> tuple[int, int]:
    """Return the number of heads that each attention layer of each stack keeps; raises BadParameter."""
    num_kept = []
    for name, num_heads in (("encoder", recipe.encoder_heads), ("decoder", recipe.num_heads)):
        if stack not in (None, name):
            num_kept.append(num_heads)
            continue
        try:
            removed = int(float(text) * num_heads + 0.5) if "." in text else int(text)
        except (ValueError, OverflowError):
            removed = -1
        if not 0 < removed < num_heads:
            allowed = "1" if num_heads == 2 else f"a number from 1 to {num_heads - 1}"
            advice = f"give {allowed}, or a fraction such as 0.5" if num_heads > 1 else "leave out --prune"
            rounded = f", which rounds to {removed}" if "." in text and removed >= 0 else ""
            layers = f"each attention layer of the {name} has {counted(num_heads, 'head')}"
            raise typer.BadParameter(f"--prune is {text!r}{rounded}; {layers}, and one must remain; {advice}")
        num_kept.append(num_heads - removed)
    return num_kept[0], num_kept[1]


def _prune(loaded: LoadedModel, analysis: Analysis, num_kept: tuple[int, int], out: Path) -> None:
    """Write the pruned model and log its size."""
    model = loaded.transformer
    pruned = write_pruned(loaded, most_important(analysis.sensitivity, *num_kept), out)
    in_encoder, in_decoder = num_kept
    say(
        f"{out}: {in_encoder} of {model.recipe.encoder_heads} heads in each attention layer of the encoder, "
        f"{in_decoder} of {model.recipe.num_heads} in the decoder; {pruned.num_parameters():,} of "
        f"{model.num_parameters():,} parameters"
    )
