"""Plots of cross-attention with the alignment links derived from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nmt.alignment.attention import AlignmentAttention, AttentionMap, WordAligner
from nmt.errors import UserError
from nmt.logs import counted
from nmt.plots.figure import new_figure, save_figure

# Inches per cell, and for the tokens beside the map.
_CELL, _MARGIN = 0.28, 1.6
# Dots per inch: the default, and the fewest with readable tokens. Large images have fewer than the default: drawing
# takes about 45 bytes per pixel, and many viewers reject sides longer than `_MAX_SIDE`.
_DPI, _MIN_DPI = 120, 50
_MAX_SIDE, _MAX_PIXELS = 20_000, 50_000_000
_VECTOR_FORMATS = (".svg", ".svgz", ".pdf", ".eps", ".ps")  # their text is readable at any size


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
    """Draw the maps side by side.

    Raises UserError without matplotlib, for an unwritable file, and if tokens would be unreadable in the largest image.
    """
    width, height = (_CELL * len(src) + _MARGIN) * len(panels), _CELL * len(tgt) + _MARGIN
    dpi = int(min(_DPI, _MAX_SIDE / max(width, height), math.sqrt(_MAX_PIXELS / (width * height))))
    if dpi < _MIN_DPI and path.suffix not in _VECTOR_FORMATS:
        advice = ", leave out --each-layer" if len(panels) > 1 else ""
        raise UserError(
            f"{counted(len(panels), 'map')} of {len(tgt):,} x {len(src):,} tokens would be unreadable in {path}; an "
            f"image has at most {_MAX_SIDE:,} pixels per side and {_MAX_PIXELS // 1_000_000} megapixels; write a .svg "
            f"file{advice}, or select a shorter line"
        )
    figure = new_figure(width, height)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        axes.imshow(panel.weights, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
        axes.scatter(panel.attended, np.arange(len(panel.attended)), s=12, c="darkorange")
        axes.set_xticks(range(len(src)), src, rotation=90, parse_math=False)
        axes.set_yticks(range(len(tgt)), tgt, parse_math=False)
        axes.xaxis.tick_top()
        axes.set_title(panel.title)
    save_figure(figure, path, dpi)


def _title(attention: AlignmentAttention) -> str:
    noun = "head" if len(attention.heads) == 1 else "heads"
    heads = f"{noun} {', '.join(map(str, attention.heads))}" if attention.heads else "all heads"
    return f"layer {attention.layer}, {heads}, at {attention.at}"
