"""Training curves of one run or several, from `metrics.jsonl`."""

from __future__ import annotations

import json
import math
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nmt.errors import UserError
from nmt.plots.figure import BLUE, GRAY, GREEN, ORANGE, PALETTE, legend_label, new_figure, save_figure, style_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Positive values have a logarithmic scale if the ratio of the highest to the lowest exceeds this.
_LOG_SCALE_RATIO = 5.0

_HIGHEST = 1e100

# A logarithmic scale that spans more powers of ten has ticks only at powers of ten.
_MAX_DECADES = 6

# Terms of the training loss that the validation loss lacks, by option.
_OTHER_LOSSES = {"rdrop": "R-Drop", "guided_alignment": "guided alignment"}

Points = Sequence[tuple[int, float]]


@dataclass(frozen=True)
class _Curve:
    metric: str
    label: str
    color: str
    marker: str = ""


@dataclass(frozen=True)
class _Panel:
    """One subplot. `best` marks the best point of the weights or the EMA; `from_zero` starts the y-axis at 0."""

    title: str
    curves: tuple[_Curve, ...]
    best: Literal["lowest", "highest"] | None = None
    from_zero: bool = False


_QUALITY_ROW = (
    _Panel(
        "Loss with label smoothing (nats per target token)",
        (
            _Curve("train/loss", "training", GRAY),
            _Curve("valid/loss", "validation", BLUE, "o"),
            _Curve("valid/average_loss", "validation, EMA", GREEN, "s"),
        ),
    ),
    _Panel(
        "Validation perplexity per target token",
        (
            _Curve("valid/perplexity", "weights", BLUE, "o"),
            _Curve("valid/average_perplexity", "EMA", GREEN, "s"),
        ),
        "lowest",
    ),
    _Panel(
        "Validation BLEU",
        (_Curve("valid/bleu", "weights", BLUE, "o"), _Curve("valid/average_bleu", "EMA", GREEN, "s")),
        "highest",
        from_zero=True,
    ),
)
_CLASSIFIER_ROW = (
    _Panel("Training loss (nats per example)", (_Curve("train/loss", "", GRAY),)),
    _Panel("Validation loss (nats per example)", (_Curve("valid/nll", "", BLUE, "o"),), "lowest"),
    _Panel(
        "Validation accuracy and macro F1",
        (_Curve("valid/accuracy", "accuracy", BLUE, "o"), _Curve("valid/macro_f1", "macro F1", GREEN, "s")),
    ),
)
_TRAINING_ROW = (
    _Panel("Learning rate", (_Curve("train/learning_rate", "", ORANGE),), from_zero=True),
    _Panel("Gradient norm", (_Curve("train/gradient_norm", "", ORANGE),)),
    _Panel("Target tokens per second", (_Curve("train/tokens_per_second", "", ORANGE),), from_zero=True),
)
_COMPARED_METRICS = {
    "train/nll": "Training loss without smoothing (nats per target token)",
    "valid/nll": "Validation loss without smoothing (nats per target token)",
    "valid/bleu": "Validation BLEU",
}
_COMPARED_CLASSIFIER_METRICS = {
    "train/loss": "Training loss (nats per example)",
    "valid/nll": "Validation loss (nats per example)",
    "valid/accuracy": "Validation accuracy",
}


def draw_curves(run: Path, out: Path, title: str | None = None) -> Path:
    """Draw the curves of a run directory into `out`; return `out`.

    Raises UserError without matplotlib, without metrics to plot and for an unwritable file.
    """
    series = read_metrics(run / "metrics.jsonl")
    rows = (_CLASSIFIER_ROW if "valid/accuracy" in series else _QUALITY_ROW, _TRAINING_ROW)
    _require_any([curve.metric for row in rows for panel in row for curve in panel.curves], series, run)
    figure = new_figure(11.0, 6.2)
    train = _train_options(run)
    for panel, axes in _add_panels(figure, rows, series):
        _draw_panel(panel, axes, series, train if panel in _QUALITY_ROW else {})
    name = title or run.resolve().name
    figure.suptitle(name, x=0.01, ha="left", fontsize=13, fontweight="bold", parse_math=False)
    save_figure(figure, out)
    return out


def draw_runs(runs: Sequence[tuple[str, Path]], out: Path) -> None:
    """Draw losses and BLEU of several runs, or losses and accuracy of classifiers, into `out`.

    runs: name and directory of each

    Raises UserError without matplotlib, for a run without metrics to plot and for an unwritable file.
    """
    all_series = [(name, read_metrics(directory / "metrics.jsonl")) for name, directory in runs]
    are_classifiers = any("valid/accuracy" in series for _, series in all_series)
    titles = _COMPARED_CLASSIFIER_METRICS if are_classifiers else _COMPARED_METRICS
    for (_, directory), (_, series) in zip(runs, all_series, strict=True):
        _require_any(list(titles), series, directory)
    shown = [metric for metric in titles if any(metric in series for _, series in all_series)]
    figure = new_figure(6.0 * len(shown), 4.2)
    for column, metric in enumerate(shown, start=1):
        axes = figure.add_subplot(1, len(shown), column)
        for number, (name, series) in enumerate(all_series):
            steps, values = zip(*series.get(metric, [(0, math.nan)]), strict=True)
            color, label = PALETTE[number % len(PALETTE)], legend_label(name)
            axes.plot(steps, values, label=label, color=color, marker=_marker(steps), markersize=3.5, linewidth=1.5)
        style_axes(axes, titles[metric])
        axes.set_xlabel("updates", fontsize=9)
        axes.legend(frameon=False, fontsize=9)
    save_figure(figure, out)


def _require_any(names: Sequence[str], series: Mapping[str, Points], run: Path) -> None:
    """Raise UserError if a run has none of these metrics."""
    if not any(name in series for name in names):
        raise UserError(
            f"{run / 'metrics.jsonl'} has no metric to plot, such as {names[0]}; train longer, or specify another run"
        )


def _train_options(run: Path) -> dict[str, Any]:
    """Return the section `train` of a run's recipe; empty if there is none."""
    try:
        return dict(tomllib.loads((run / "recipe.toml").read_text(encoding="utf-8"))["train"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def read_metrics(path: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the (update, value) pairs of each metric, in order, without infinite and NaN values.

    Values above 1e100, such as the perplexity after divergence, count as infinite: matplotlib cannot scale an axis to
    them. An incomplete last line, which the run is still writing, is ignored.

    Raises UserError if the file is unreadable, malformed or empty.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"cannot read {path}: {reason}; specify a run directory that has this file") from error
    series: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for number, line in enumerate(lines, start=1):
        metrics = _parse(line)
        if metrics is None:
            raise UserError(f"{path}, line {number} is not a JSON object with a step; fix or remove the line")
        step = metrics.pop("step")
        for name, value in metrics.items():
            if isinstance(value, (int, float)) and abs(value) <= _HIGHEST:
                series[name].append((step, float(value)))
    if not series:
        raise UserError(f"{path} has no metrics yet; a run writes them every train.log_every updates; train longer")
    return dict(series)


def _parse(line: str) -> dict[str, Any] | None:
    try:
        metrics = json.loads(line)
    except (ValueError, RecursionError):  # the latter for nested brackets
        return None
    return metrics if isinstance(metrics, dict) and isinstance(metrics.get("step"), int) else None


def _add_panels(
    figure: Figure, rows: Sequence[Sequence[_Panel]], series: Mapping[str, Points]
) -> Iterator[tuple[_Panel, Axes]]:
    """Add axes for the panels that have data; those of a row have equal widths."""
    rows = [[panel for panel in row if any(curve.metric in series for curve in panel.curves)] for row in rows]
    rows = [row for row in rows if row]
    last_step = max(step for points in series.values() for step, _ in points)
    columns = math.lcm(*map(len, rows))
    grid = figure.add_gridspec(len(rows), columns, height_ratios=[1.5, 1.0][: len(rows)])
    for row_index, row in enumerate(rows):
        width = columns // len(row)
        for index, panel in enumerate(row):
            axes = figure.add_subplot(grid[row_index, index * width : (index + 1) * width])
            axes.set_xlim(0, last_step * 1.02 or 1.0)  # an initial validation has step 0
            if row_index == len(rows) - 1:
                axes.set_xlabel("updates", color=GRAY)
            yield panel, axes


def _draw_panel(panel: _Panel, axes: Axes, series: Mapping[str, Points], train: Mapping[str, Any]) -> None:
    """Draw the curves of a panel. train: options, which name other loss terms and select the EMA"""
    parts = [name for option, name in _OTHER_LOSSES.items() if train.get(option)]
    remark = f", with {' and '.join(parts)}" if parts else ""
    curves = [(curve, series[curve.metric]) for curve in panel.curves if curve.metric in series]
    for curve, points in curves:
        steps, values = zip(*points, strict=True)
        marker = curve.marker or _marker(points)
        label = f"{curve.label}{remark}" if curve.metric == "train/loss" else curve.label
        axes.plot(steps, values, color=curve.color, label=label, marker=marker, markersize=3.5, linewidth=1.6)
    breaks = {step for _, step in series.get("valid/scored_from", ())} if panel in _QUALITY_ROW else set()
    for index, step in enumerate(sorted(breaks)):
        axes.axvline(step, color=GRAY, linestyle=":", label="" if index else "validation setup changed")
    _set_scales(axes, panel, [value for _, points in curves for _, value in points])
    style_axes(axes, panel.title)
    axes.spines[["bottom", "left"]].set_color(GRAY)
    axes.tick_params(color=GRAY, labelsize=9)
    if len(curves) > 1 or breaks:
        axes.legend(frameon=False, fontsize=9)
    if panel.best is not None:
        best_steps = [value for _, value in series.get("valid/best_step", [])]
        scored = curves[-1 if train.get("average") == "ema" else 0]
        _mark_best(axes, panel.best, *scored, int(best_steps[-1]) if best_steps else None)


def _marker(points: Sequence[object]) -> str:
    """Return the marker of a curve: a single point has no visible line."""
    return "o" if len(points) == 1 else ""


def _set_scales(axes: Axes, panel: _Panel, values: Sequence[float]) -> None:
    """Set integer steps, a logarithmic y-axis for wide ranges, and thousands separators."""
    lowest, highest = min(values), max(values)
    axes.locator_params(axis="x", nbins=5, integer=True)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.margins(y=0.12)
    if panel.from_zero:
        axes.set_ylim(0, highest * 1.12 or 1.0)
    elif lowest > 0 and highest > _LOG_SCALE_RATIO * lowest:
        axes.set_yscale("log")
        axes.set_yticks(_log_ticks(lowest, highest))
        axes.minorticks_off()
    if highest >= 1:
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if 1000 <= value < 1e9 else f"{value:g}")


def _log_ticks(lowest: float, highest: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten, from just below the lowest value to just above the highest.

    If these would overlap because the range is wide, return only powers of ten, at most 12.
    """
    first, last = math.floor(math.log10(lowest)), math.ceil(math.log10(highest))
    if last - first > _MAX_DECADES:
        return [10.0**power for power in range(first, last + 1, math.ceil((last - first) / 11))]
    ticks = [times * 10.0**power for power in range(first - 1, last + 1) for times in (1, 2, 5)]
    return [tick for tick in ticks if lowest / 1.5 <= tick <= highest * 1.5]


def _mark_best(
    axes: Axes, best: Literal["lowest", "highest"], curve: _Curve, points: Points, best_step: int | None
) -> None:
    """Mark the point of the run's best step with its value; without such a point, mark the best of the curve."""
    candidates = [point for point in points if point[0] == best_step] or points
    choose = min if best == "lowest" else max
    step, value = choose(candidates, key=lambda point: point[1])
    axes.plot([step], [value], marker="o", markersize=9, fillstyle="none", color=curve.color, linestyle="")
    axes.annotate(
        f"{value:.2f}",
        (step, value),
        xytext=(4, -9 if best == "lowest" else 9),
        textcoords="offset points",
        ha="right",
        va="top" if best == "lowest" else "bottom",
        fontsize=9,
        color=curve.color,
    )
