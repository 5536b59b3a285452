"""Plots of cross-attention with the alignment links derived from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nmt.alignment.attention import AttentionMap, WordAligner
from nmt.errors import UserError
from nmt.plots.figure import new_figure, save_figure

# Inches per cell, and for the tokens beside the map.
_CELL, _MARGIN = 0.28, 1.6
# Dots per inch: the default, and the fewest with readable tokens. Large images have fewer than the default: drawing
# takes about 45 bytes per pixel, and many viewers reject sides longer than `_MAX_SIDE`.
_DPI, _MIN_DPI = 120, 50
_MAX_SIDE, _MAX_PIXELS = 20_000, 50_000_000
_VECTOR_FORMATS = (".svg", ".svgz", ".pdf", ".eps", ".ps")  # their text is readable at any size


@dataclass(frozen=True)
class AttentionPlot:
    """One attention map.

    src:      source tokens with EOS
    weights:  (tgt_tokens, src_tokens + 1), with EOS as the last column
    attended: index of the source token that each target token is aligned to
    """

    title: str
    src: list[str]
    tgt: list[str]
    weights: AttentionMap
    attended: list[int]


def read_attention(aligner: WordAligner, source: str, target: str) -> AttentionPlot:
    """Return the map that the aligner uses; raises UserError if a side is empty or too long for the model."""
    encoder, attention = aligner.encoder, aligner.attention
    pair = encoder.encode(source, target)
    if not all(pair) or not encoder.fits(pair):
        raise UserError("a side of this pair is empty or too long for the model; select another line")
    (layers,) = aligner.maps([pair])
    layer = layers[:, attention.layer]
    noun = "head" if len(attention.heads) == 1 else "heads"
    heads = f"{noun} {', '.join(map(str, attention.heads))}" if attention.heads else "all heads"
    return AttentionPlot(
        f"layer {attention.layer}, {heads}, at {attention.at}",
        [*encoder.tokenizers.src.pieces(pair[0]), "</s>"],
        encoder.tokenizers.tgt.pieces(pair[1]),
        attention.weights(layer),
        attention.attended(layer),
    )


def draw_attention(plot: AttentionPlot, path: Path) -> None:
    """Draw a map.

    Raises UserError without matplotlib, for an unwritable file, and if tokens would be unreadable in the largest image.
    """
    src, tgt = plot.src, plot.tgt
    width, height = _CELL * len(src) + _MARGIN, _CELL * len(tgt) + _MARGIN
    dpi = int(min(_DPI, _MAX_SIDE / max(width, height), math.sqrt(_MAX_PIXELS / (width * height))))
    if dpi < _MIN_DPI and path.suffix not in _VECTOR_FORMATS:
        raise UserError(
            f"a map of {len(tgt):,} x {len(src):,} tokens would be unreadable in {path}; an image has at most "
            f"{_MAX_SIDE:,} pixels per side and {_MAX_PIXELS // 1_000_000} megapixels; write a .svg file, or select a "
            "shorter line"
        )
    figure = new_figure(width, height)
    axes = figure.add_subplot()
    axes.imshow(plot.weights, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
    axes.scatter(plot.attended, np.arange(len(plot.attended)), s=12, c="darkorange")
    axes.set_xticks(range(len(src)), src, rotation=90, parse_math=False)
    axes.set_yticks(range(len(tgt)), tgt, parse_math=False)
    axes.xaxis.tick_top()
    axes.set_title(plot.title)
    save_figure(figure, path, dpi)
