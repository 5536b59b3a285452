"""Plots of cross-attention with the alignment links derived from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nmt.alignment.attention import AlignmentAttention, AttentionMap, WordAligner
from nmt.plots.figure import new_figure, save_figure
from nmt.recipe import UserError

# Inches per cell, and for the tokens beside the map.
_CELL, _MARGIN = 0.28, 1.6


@dataclass(frozen=True)
class Panel:
    """One attention map.

    weights:  (tgt_tokens, src_tokens + 1), with EOS as the last column
    attended: index of the source token that each target token is aligned to
    """

    title: str
    weights: AttentionMap
    attended: list[int]


def read_panels(
    aligner: WordAligner, source: str, target: str, each_layer: bool = False
) -> tuple[list[str], list[str], list[Panel]]:
    """Return source tokens with EOS, target tokens, and the map that the aligner uses or those of all layers.

    Raises UserError if a side is empty or too long for the model.
    """
    encoder = aligner.encoder
    pair = encoder.encode(source, target)
    if not all(pair) or not encoder.fits(pair):
        raise UserError("a side of this pair is empty or too long for the model; select another line")
    (layers,) = aligner.maps([pair])
    attentions = [aligner.attention]
    if each_layer:
        attentions = [replace(aligner.attention, layer=layer, heads=()) for layer in range(layers.shape[1])]
    panels = []
    for attention in attentions:
        weights = layers[:, attention.layer]
        panels.append(Panel(_title(attention), attention.weights(weights), attention.attended(weights)))
    src = encoder.tokenizers.src.pieces(pair[0])
    tgt = encoder.tokenizers.tgt.pieces(pair[1])
    return [*src, "</s>"], tgt, panels


def draw_attention(src: Sequence[str], tgt: Sequence[str], panels: Sequence[Panel], path: Path) -> None:
    """Draw the maps side by side; raises UserError without matplotlib and for an unwritable file."""
    width, height = _CELL * len(src) + _MARGIN, _CELL * len(tgt) + _MARGIN
    figure = new_figure(width * len(panels), height)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        axes.imshow(panel.weights, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
        axes.scatter(panel.attended, np.arange(len(panel.attended)), s=12, c="darkorange")
        axes.set_xticks(range(len(src)), src, rotation=90, parse_math=False)
        axes.set_yticks(range(len(tgt)), tgt, parse_math=False)
        axes.xaxis.tick_top()
        axes.set_title(panel.title)
    save_figure(figure, path, dpi=120)


def _title(attention: AlignmentAttention) -> str:
    heads = f"heads {', '.join(map(str, attention.heads))}" if attention.heads else "all heads"
    return f"layer {attention.layer}, {heads}, by {attention.at}"
