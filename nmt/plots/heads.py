"""Plots of BLEU against removed attention heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from nmt.plots.figure import PALETTE, new_figure, save_figure, style_axes


def draw_head_removal(title: str, curves: Mapping[str, Sequence[tuple[int, float]]], path: Path) -> None:
    """Draw curves of (removed heads, BLEU); raises UserError without matplotlib and for an unwritable file."""
    figure = new_figure(6.0, 4.2)
    axes = figure.add_subplot()
    for number, (name, points) in enumerate(curves.items()):
        removed, bleu = zip(*points, strict=True)
        axes.plot(removed, bleu, marker="o", markersize=4, color=PALETTE[number], label=name)
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("removed heads", fontsize=9)
    style_axes(axes, title)
    figure.legend(loc="outside lower center", frameon=False, fontsize=9)  # curves fall from left to right
    save_figure(figure, path)
