"""The scores of an experiment: each run as a dot, each variant's mean with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nmt.plots.figure import new_figure, save_figure

_BLUE, _GREY = "#0072b2", "#8c8c8c"
_DOTS_PER_INCH = 150


@dataclass(frozen=True)
class VariantScores:
    """The scores of a variant's runs, their mean, and half the width of its interval; nan if unknown."""

    name: str
    scores: Sequence[float]
    mean: float
    half_width: float


def draw_scores(title: str, variants: Sequence[VariantScores], path: Path) -> Path:
    """Draw variants from top to bottom, and return the path of the picture.

    Raises UserError when matplotlib is not installed, and where the picture cannot be written.
    """
    figure = new_figure(8.0, 1.2 + 0.4 * len(variants))
    axes = figure.add_subplot()
    for place, variant in enumerate(variants):
        axes.plot(variant.scores, [place] * len(variant.scores), "o", color=_GREY, markersize=4)
        width = 0.0 if math.isnan(variant.half_width) else variant.half_width
        axes.errorbar(variant.mean, place, xerr=width, fmt="D", color=_BLUE, markersize=5, capsize=4)
    axes.axvline(variants[0].mean, color=_GREY, linestyle=":", linewidth=1)
    axes.set_yticks(range(len(variants)), [variant.name for variant in variants])
    axes.invert_yaxis()
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel("dots: runs; diamonds: means with 95 % intervals", color=_GREY, fontsize=9)
    axes.grid(axis="x", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path, _DOTS_PER_INCH)
    return path
