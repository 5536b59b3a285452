"""`nmt align`: word alignments of given translations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from nmt.alignment.attention import AlignmentAttention, WordAligner
from nmt.alignment.choice import choose_attention
from nmt.alignment.error_rate import AlignmentScore, read_gold
from nmt.alignment.words import format_links
from nmt.checkpoint import write_with_decode
from nmt.cli.arguments import (
    Device,
    ModelArgument,
    SrcArgument,
    TgtArgument,
    check_inputs,
    languages,
    missing_option,
    read_pairs,
    require_languages,
)
from nmt.logs import progress, say
from nmt.recipe import override_decode
from nmt.storage.model_metadata import read_model_metadata, warn_of_missing_tag
from nmt.storage.run_folder import find_model
from nmt.storage.sealed import require_new
from nmt.text.lines import input_name

ALIGNING_WINDOW = 512  # pairs per call of the aligner, printed together

Layer = Annotated[
    int | None, typer.Option(min=0, help="Decoder layer of the attention, from 0 (default: the model's).")
]
Heads = Annotated[
    str | None,
    typer.Option(metavar="HEAD,...", help="Heads to average, from 0 (default: the model's; with --layer, all)."),
]
Gold = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Print precision, recall and AER against gold links: 0-0, possible 1?2."),
]
Tag = Annotated[str | None, typer.Option(help="Tag of the sources, as for nmt translate.")]
At = Literal["input", "output"]
AtOption = Annotated[
    At | None,
    typer.Option("--at", help="Which position aligns a target token: output predicts the token, input reads it."),
]


def align(
    model: ModelArgument,
    src: SrcArgument,
    tgt: TgtArgument,
    layer: Layer = None,
    heads: Heads = None,
    at: AtOption = None,
    choose: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            metavar="VALID_SRC VALID_TGT", help="Select layer, heads and position by agreement on this validation set."
        ),
    ] = None,
    reverse_model: Annotated[
        Path | None,
        typer.Option(help="With --choose: compare with this target-to-source model instead of a statistical aligner."),
    ] = None,
    save_model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Copy the model, with this attention as its default.")
    ] = None,
    gold: Gold = None,
    tag: Tag = None,
    device: Device = "auto",
) -> None:
    """Align the words of sentence pairs; print a line of SOURCE-TARGET positions from 0 per pair, as in 0-0 1-2 2-1.

    Words are separated by white space. Alignments come from the decoder's cross-attention.
    """
    if choose is not None and (layer, heads, at) != (None, None, None):
        raise typer.BadParameter("--choose selects --layer, --heads and --at; leave out either these or --choose")
    if reverse_model is not None and choose is None:
        raise missing_option("--reverse-model", "--choose")
    if save_model is not None:
        require_new(save_model)
    if reverse_model is not None:
        require_languages("--reverse-model", reverse_model, languages(model)[::-1])
    check_inputs([src, tgt, *(choose or ()), gold])
    sources, targets = read_pairs(src, tgt)
    gold_links = None if gold is None else read_gold(gold, sources, targets)
    directory = find_model(model)
    aligner = load_aligner(model, layer, heads, at, device, tag)
    if choose is not None:
        reverse = None if reverse_model is None else _load_reverse(reverse_model, device)
        aligner.attention = _choose(aligner, choose, reverse)
    if save_model is not None:
        _save(directory, aligner.attention, save_model)
    names = (input_name(src), input_name(tgt))
    score = AlignmentScore()
    with progress("aligning", len(sources), "pairs") as bar:
        for start in range(0, len(sources), ALIGNING_WINDOW):
            window = slice(start, start + ALIGNING_WINDOW)
            for number, links in enumerate(aligner.align(sources[window], targets[window], start + 1, names), start):
                typer.echo(format_links(links))
                if gold_links is not None:
                    score.add(links, gold_links[number])
                bar.advance(1)
    if gold is not None:
        values = f"precision {score.precision:.4f}, recall {score.recall:.4f}, AER {score.error_rate:.4f}"
        say(f"{values} against {input_name(gold)}")


def _load_reverse(model: Path, device: str) -> WordAligner:
    """Load the aligner of a target-to-source model; warn if the model needs a tag and has none."""
    metadata = read_model_metadata(find_model(model))
    warn_of_missing_tag(model, metadata, metadata.decode.tag, has_option=False)
    return WordAligner.load(model, device)


def _choose(aligner: WordAligner, valid: tuple[Path, Path], reverse: WordAligner | None) -> AlignmentAttention:
    choice = choose_attention(aligner, *read_pairs(*valid), reverse)
    by_layer = ", ".join(f"{key.at} {key.layer}: {score:.3f}" for key, score in choice.by_layer.items())
    say(f"agreement (F1 of links) by position and layer, all heads: {by_layer}")
    say(f"best agreement {choice.agreement:.3f}: {_as_options(choice.attention)}")
    return choice.attention


def _save(directory: Path, attention: AlignmentAttention, out: Path) -> None:
    settings = [f"alignment_layer={attention.layer}", f"alignment_heads={list(attention.heads)}"]
    settings.append(f"alignment_at={attention.at}")
    write_with_decode(directory, override_decode(read_model_metadata(directory).decode, settings), out)


def load_aligner(
    model: Path, layer: int | None, heads: str | None, at: At | None, device: str, tag: str | None = None
) -> WordAligner:
    """Load the aligner of a model, with the options of the command line; --layer without --heads uses all heads.

    Warns if the model needs a tag and has none. Raises BadParameter if `heads` is not a list of numbers.
    """
    if heads is not None and not all(head.strip().isdecimal() for head in heads.split(",")):
        raise typer.BadParameter(f"--heads is {heads!r}; it must be comma-separated numbers from 0, such as 0,3")
    settings = []
    if layer is not None:
        settings.append(f"alignment_layer={layer}")
    if layer is not None or heads is not None:
        settings.append(f"alignment_heads=[{heads or ''}]")
    if at is not None:
        settings.append(f"alignment_at={at}")
    metadata = read_model_metadata(find_model(model))
    decode = override_decode(metadata.decode, settings)
    if tag is not None:
        decode = decode.model_copy(update={"tag": tag})
    warn_of_missing_tag(model, metadata, decode.tag)
    return WordAligner.load(model, device, decode.all_given())


def _as_options(attention: AlignmentAttention) -> str:
    """Return the attention as options of this command."""
    heads = f" --heads {','.join(map(str, attention.heads))}" if attention.heads else ""
    return f"--layer {attention.layer}{heads} --at {attention.at}"
