"""How a run went: its curves over updates, drawn from `metrics.jsonl`."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nmt.plots.figure import new_figure, save_figure
from nmt.recipe import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours that people with every kind of colour vision can tell apart (Okabe and Ito 2008).
_BLUE, _ORANGE, _GREEN, _GREY = "#0072b2", "#d55e00", "#009e73", "#8c8c8c"
_INCHES = (11.0, 6.2)
_DOTS_PER_INCH = 150
# A scale of positive values becomes logarithmic where the highest is so many times the lowest.
_WIDE_RANGE = 5.0

Points = Sequence[tuple[int, float]]


@dataclass(frozen=True)
class _Line:
    """One curve: its name among the metrics, what the legend calls it, its colour, and what marks its points."""

    metric: str
    label: str
    colour: str
    marker: str = ""


@dataclass(frozen=True)
class _Panel:
    """One diagram: its title, its curves, which end of the first one is the good one, and whether it begins at zero."""

    title: str
    lines: tuple[_Line, ...]
    best: Literal["lowest", "highest"] | None = None
    from_zero: bool = False


# The upper row shows how good the model became, the lower one how training went.
_QUALITY = (
    _Panel(
        "Loss with label smoothing (nats per target token)",
        (
            _Line("train/loss", "training", _GREY),
            _Line("valid/loss", "validation", _BLUE, "o"),
            _Line("valid/average_loss", "validation, moving average", _GREEN, "s"),
        ),
    ),
    _Panel(
        "Perplexity of a validation token",
        (
            _Line("valid/perplexity", "weights", _BLUE, "o"),
            _Line("valid/average_perplexity", "moving average", _GREEN, "s"),
        ),
        "lowest",
    ),
    _Panel(
        "BLEU of validation translations",
        (_Line("valid/bleu", "weights", _BLUE, "o"), _Line("valid/average_bleu", "moving average", _GREEN, "s")),
        "highest",
        from_zero=True,
    ),
)
_COURSE = (
    _Panel("Learning rate", (_Line("train/learning_rate", "", _ORANGE),), from_zero=True),
    _Panel("Norm of the gradient", (_Line("train/gradient_norm", "", _ORANGE),)),
    _Panel("Target tokens per second", (_Line("train/tokens_per_second", "", _ORANGE),), from_zero=True),
)


def draw_curves(run: Path, out: Path, title: str | None = None) -> Path:
    """Draw the curves of a run directory into `out`, a picture of the kind that its ending names, and return `out`.

    Raises UserError when matplotlib is not installed, the run has noted nothing yet, or the picture cannot be written.
    """
    series = read_metrics(run / "metrics.jsonl")
    figure = new_figure(*_INCHES)
    for panel, axes in _arrange(figure, series):
        _draw(panel, axes, series)
    figure.suptitle(title or run.resolve().name, x=0.01, ha="left", fontsize=13, fontweight="bold")
    save_figure(figure, out, _DOTS_PER_INCH)
    return out


def read_metrics(path: Path) -> dict[str, list[tuple[int, float]]]:
    """The noted (update, value) pairs of each metric, in order, without values that are not finite.

    A last line that is being written just now is left out. Raises UserError when the file cannot be read, is no
    metrics.jsonl, or holds no figure.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"cannot read {path}: {reason}; a run notes its figures there; give a run directory") from error
    series: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for number, line in enumerate(lines, start=1):
        figures = _figures(line)
        if figures is None:
            raise UserError(f"{path}, line {number} is no JSON object with a step; a run notes them so; mend the line")
        step = figures.pop("step")
        for name, value in figures.items():
            if isinstance(value, (int, float)) and math.isfinite(value):
                series[name].append((step, float(value)))
    if not series:
        raise UserError(f"{path} holds no figures yet; a run notes them every train.log_every updates; train longer")
    return dict(series)


def _figures(line: str) -> dict[str, Any] | None:
    try:
        figures = json.loads(line)
    except ValueError:
        return None
    return figures if isinstance(figures, dict) and isinstance(figures.get("step"), int) else None


def _arrange(figure: Figure, series: Mapping[str, Points]) -> Iterator[tuple[_Panel, Axes]]:
    """The panels that there are figures for, those of a row with equal shares of its width."""
    rows = [
        [panel for panel in row if any(line.metric in series for line in panel.lines)] for row in (_QUALITY, _COURSE)
    ]
    rows = [row for row in rows if row]
    last = max(step for points in series.values() for step, _ in points)
    widest = math.lcm(*map(len, rows)) if rows else 1
    grid = figure.add_gridspec(max(len(rows), 1), widest, height_ratios=[1.5, 1.0][: len(rows)] or [1.0])
    for place, row in enumerate(rows):
        share = widest // len(row)
        for column, panel in enumerate(row):
            axes = figure.add_subplot(grid[place, column * share : (column + 1) * share])
            axes.set_xlim(0, last * 1.02)
            if place == len(rows) - 1:
                axes.set_xlabel("updates", color=_GREY)
            yield panel, axes


def _draw(panel: _Panel, axes: Axes, series: Mapping[str, Points]) -> None:
    lines = [(line, series[line.metric]) for line in panel.lines if line.metric in series]
    for line, points in lines:
        steps, values = zip(*points, strict=True)
        marker = line.marker or ("o" if len(points) == 1 else "")  # a lonely point has no line to be seen by
        axes.plot(steps, values, color=line.colour, label=line.label, marker=marker, markersize=3.5, linewidth=1.6)
    breaks = {step for _, step in series.get("valid/scored_from", ())} if panel in _QUALITY else set()
    for step in sorted(breaks):
        axes.axvline(step, color=_GREY, linestyle=":", label="scores are measured in another way")
    _set_scales(axes, panel, [value for _, points in lines for _, value in points])
    axes.set_title(panel.title, loc="left", fontsize=10)
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["bottom", "left"]].set_color(_GREY)
    axes.tick_params(color=_GREY, labelsize=9)
    if len(lines) > 1 or breaks:
        axes.legend(frameon=False, fontsize=9)
    if panel.best is not None:
        best_steps = [value for _, value in series.get("valid/best_step", [])]
        _mark_best(axes, panel.best, *lines[0], int(best_steps[-1]) if best_steps else None)


def _set_scales(axes: Axes, panel: _Panel, values: Sequence[float]) -> None:
    """Whole updates; values on a logarithmic scale where their range is wide; thousands divided on both."""
    lowest, highest = min(values), max(values)
    axes.locator_params(axis="x", nbins=5, integer=True)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.margins(y=0.12)
    if panel.from_zero:
        axes.set_ylim(0, highest * 1.12 or 1.0)
    elif lowest > 0 and highest > _WIDE_RANGE * lowest:
        axes.set_yscale("log")
        axes.set_yticks(_round_numbers(lowest, highest))
        axes.minorticks_off()
    if highest >= 1:
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1000 else f"{value:g}")


def _round_numbers(lowest: float, highest: float) -> list[float]:
    """1, 2 and 5 times powers of ten from just below the lowest value to just above the highest."""
    powers = range(math.floor(math.log10(lowest)) - 1, math.ceil(math.log10(highest)) + 1)
    numbers = [times * 10.0**power for power in powers for times in (1, 2, 5)]
    return [number for number in numbers if lowest / 1.5 <= number <= highest * 1.5]


def _mark_best(
    axes: Axes, best: Literal["lowest", "highest"], line: _Line, points: Points, best_step: int | None
) -> None:
    """A ring around the point of the run's best step, and its value on the side where the curve does not run.

    Where the run did not note that step, or measured nothing of this panel then, it is the best point of the curve.
    """
    chosen = [point for point in points if point[0] == best_step] or points
    step, value = (min if best == "lowest" else max)(chosen, key=lambda point: point[1])
    axes.plot([step], [value], marker="o", markersize=9, fillstyle="none", color=line.colour, linestyle="")
    axes.annotate(
        f"{value:.2f}",
        (step, value),
        xytext=(4, -9 if best == "lowest" else 9),
        textcoords="offset points",
        ha="right",
        va="top" if best == "lowest" else "bottom",
        fontsize=9,
        color=line.colour,
    )
