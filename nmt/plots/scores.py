"""Plots of experiment scores: a dot per run, and the mean of each variant with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nmt.plots.figure import BLUE, GRAY, new_figure, save_figure, style_axes


@dataclass(frozen=True)
class VariantScores:
    """Scores of a variant's runs, their mean, and the half width of its interval; NaN if unknown."""

    name: str
    scores: Sequence[float]
    mean: float
    half_width: float


def draw_scores(title: str, variants: Sequence[VariantScores], path: Path) -> None:
    """Draw the variants from top to bottom; raises UserError without matplotlib and for an unwritable file."""
    figure = new_figure(8.0, 1.2 + 0.4 * len(variants))
    axes = figure.add_subplot()
    for row, variant in enumerate(variants):
        axes.plot(variant.scores, [row] * len(variant.scores), "o", color=GRAY, markersize=4)
        width = 0.0 if math.isnan(variant.half_width) else variant.half_width
        axes.errorbar(variant.mean, row, xerr=width, fmt="D", color=BLUE, markersize=5, capsize=4)
    axes.axvline(variants[0].mean, color=GRAY, linestyle=":", linewidth=1)
    axes.set_yticks(range(len(variants)), [variant.name for variant in variants], parse_math=False)
    axes.invert_yaxis()
    axes.set_xlabel("dots: runs; diamonds: means with 95% confidence intervals", color=GRAY, fontsize=9)
    style_axes(axes, title, grid="x")
    save_figure(figure, path)
