"""Attention maps: how much each target token attends to each source token, and the links that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nmt.alignment.attention import AttentionMap, ChosenAttention, WordAligner
from nmt.plots.figure import new_figure, save_figure
from nmt.recipe import UserError

# Inches of a cell and of the room for the words beside the map.
_CELL, _MARGIN = 0.28, 1.6
_DOTS_PER_INCH = 120


@dataclass(frozen=True)
class Panel:
    """One map to draw.

    title:    what stands above it
    weights:  (tgt_tokens, src_tokens + 1), the last column for the end token
    attended: the source token that each target token is linked to
    """

    title: str
    weights: AttentionMap
    attended: list[int]


@dataclass(frozen=True)
class Sentences:
    """The two sides of the maps in written form, the source with its end token."""

    src: list[str]
    tgt: list[str]


def read_panels(
    aligner: WordAligner, source: str, target: str, each_layer: bool = False
) -> tuple[Sentences, list[Panel]]:
    """What there is to draw of a pair of lines: the attention that the aligner goes by, or that of each layer.

    Raises UserError where a side has no tokens or more than the model has positions for.
    """
    (pair,) = aligner.encode([source], [target])
    if not all(pair) or not aligner.fits(pair):
        raise UserError("a side of this pair is empty or too long for the model; it must fit; choose another line")
    (layers,) = aligner.maps([pair])
    chosen = [aligner.attention]
    if each_layer:
        chosen = [replace(chosen[0], layer=layer, heads=()) for layer in range(layers.shape[1])]
    panels = [
        Panel(_title(one), one.weights(layers[:, one.layer]), one.attended(layers[:, one.layer])) for one in chosen
    ]
    src, tgt = aligner.tokenizers.src.pieces(pair[0]), aligner.tokenizers.tgt.pieces(pair[1])
    return Sentences([*src, "</s>"], tgt), panels


def draw(sentences: Sentences, panels: Sequence[Panel], path: Path) -> None:
    """Write the maps, side by side, as the kind of picture that the end of the name says: png, pdf, svg.

    Raises UserError without matplotlib, for another kind, and where the file cannot be written.
    """
    width, height = _CELL * len(sentences.src) + _MARGIN, _CELL * len(sentences.tgt) + _MARGIN
    figure = new_figure(width * len(panels), height)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        axes.imshow(panel.weights, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
        axes.scatter(panel.attended, np.arange(len(panel.attended)), s=12, c="darkorange")
        axes.set_xticks(range(len(sentences.src)), sentences.src, rotation=90)
        axes.set_yticks(range(len(sentences.tgt)), sentences.tgt)
        axes.xaxis.tick_top()
        axes.set_title(panel.title)
    save_figure(figure, path, _DOTS_PER_INCH)


def _title(chosen: ChosenAttention) -> str:
    heads = "all heads" if not chosen.heads else f"heads {', '.join(map(str, chosen.heads))}"
    return f"layer {chosen.layer}, {heads}, by {chosen.place}"
