"""Plot of a learning rate range test."""

from __future__ import annotations

from pathlib import Path

from nmt.diagnostics.lr_range import RateRange
from nmt.plots.figure import BLUE, GRAY, GREEN, ORANGE, new_figure, save_figure, style_axes


def draw_rate_range(found: RateRange, out: Path, title: str) -> None:
    """Draw loss by learning rate into `out`; raises UserError without matplotlib and for an unwritable file."""
    figure = new_figure(7.0, 4.2)
    axes = figure.add_subplot()
    rates = [point.learning_rate for point in found.points]
    axes.plot(rates, [point.loss for point in found.points], color=GRAY, linewidth=0.8, label="loss of an update")
    axes.plot(rates, [point.smoothed for point in found.points], color=BLUE, linewidth=1.8, label="smoothed")
    for rate, color, name in ((found.steepest, GREEN, "steepest descent"), (found.lowest, ORANGE, "lowest loss")):
        axes.axvline(rate, color=color, linestyle="--", linewidth=1.2, label=f"{name}: {rate:.2g}")
    axes.set_xscale("log")
    axes.set_xlabel("learning rate", fontsize=9)
    style_axes(axes, f"{title}: loss with label smoothing (nats per target token)")
    axes.legend(frameon=False, fontsize=9)
    save_figure(figure, out)
