"""The curves of several runs in one picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nmt.plots.curves import read_metrics
from nmt.plots.figure import new_figure, save_figure

# Colours that people with every kind of colour vision can tell apart (Okabe and Ito 2008).
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
_PANELS = {
    "train/nll": "Training loss without smoothing (nats per target token)",
    "valid/nll": "Validation loss without smoothing (nats per target token)",
    "valid/bleu": "BLEU of validation translations",
}
_DOTS_PER_INCH = 150


def draw_runs(runs: Sequence[tuple[str, Path]], out: Path) -> Path:
    """Draw the losses and scores of runs, named directories, over updates into `out`; returns `out`.

    Raises UserError when matplotlib is not installed, a run has noted nothing yet, or the picture cannot be written.
    """
    series = [(name, read_metrics(directory / "metrics.jsonl")) for name, directory in runs]
    shown = {metric: title for metric, title in _PANELS.items() if any(metric in found for _, found in series)}
    figure = new_figure(6.0 * max(len(shown), 1), 4.2)
    for place, (metric, title) in enumerate(shown.items(), start=1):
        axes = figure.add_subplot(1, len(shown), place)
        for number, (name, found) in enumerate(series):
            steps, values = zip(*found.get(metric, [(0, float("nan"))]), strict=True)
            axes.plot(steps, values, label=name, color=_COLOURS[number % len(_COLOURS)], linewidth=1.5)
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xlabel("updates", fontsize=9)
        axes.grid(color="#e6e6e6", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9)
    save_figure(figure, out, _DOTS_PER_INCH)
    return out
