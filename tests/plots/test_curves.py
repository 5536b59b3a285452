"""Training curves: the figure against the values of metrics.jsonl, and errors."""

import builtins
import json
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nmt.errors import UserError
from nmt.plots import curves
from nmt.plots.curves import draw_curves, draw_runs, read_metrics
from nmt.plots.figure import new_figure, save_figure


def record(folder: Path, *lines: dict[str, Any]) -> Path:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder / "metrics.jsonl"


def floats(values: Any) -> list[float]:
    return [float(value) for value in values]


def legend_of(axes: Axes) -> list[str]:
    legend = axes.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def drawn(monkeypatch: pytest.MonkeyPatch, run: Path) -> Figure:
    """Return the figure of `draw_curves`."""
    figures: list[Figure] = []

    def keep_figure(width: float, height: float) -> Figure:
        figures.append(new_figure(width, height))
        return figures[-1]

    monkeypatch.setattr(curves, "new_figure", keep_figure)
    draw_curves(run, run / "curves.png")
    return figures[0]


def test_metrics_are_read_without_non_finite_values_and_the_incomplete_line(tmp_path: Path) -> None:
    path = record(tmp_path, {"step": 1, "a": 2.5}, {"step": 3, "a": math.nan, "b": 7}, {"step": 4, "a": 1.0})
    with path.open("a") as file:
        file.write('{"step": 5, "a":')  # still being written
    assert read_metrics(path) == {"a": [(1, 2.5), (4, 1.0)], "b": [(3, 7.0)]}


@pytest.mark.slow
def test_curves_have_the_values_of_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(
        tmp_path,
        {"step": 100, "train/loss": 5.0, "train/learning_rate": 1e-4, "train/gradient_norm": 2.0},
        {"step": 200, "train/loss": 4.0, "train/learning_rate": 2e-4, "train/gradient_norm": 1.0},
        {"step": 200, "valid/loss": 4.5, "valid/perplexity": 90.0},
        {"step": 300, "valid/loss": 4.7, "valid/perplexity": 95.0},
    )
    figure = drawn(monkeypatch, tmp_path)
    panels = {axes.get_title(loc="left"): axes for axes in figure.axes}
    assert list(panels) == [
        "Loss with label smoothing (nats per target token)",
        "Validation perplexity per target token",
        "Learning rate",
        "Gradient norm",
    ]
    loss = panels["Loss with label smoothing (nats per target token)"]
    assert [(floats(line.get_xdata()), floats(line.get_ydata())) for line in loss.lines] == [
        ([100, 200], [5.0, 4.0]),
        ([200, 300], [4.5, 4.7]),
    ]
    assert legend_of(loss) == ["training", "validation"]
    perplexity = panels["Validation perplexity per target token"]
    assert [text.get_text() for text in perplexity.texts] == ["90.00"]  # the best value is labeled
    assert floats(perplexity.lines[-1].get_xdata()) == [200]


@pytest.mark.slow
def test_other_parts_of_the_training_loss_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, {"step": 100, "train/loss": 5.0, "valid/loss": 4.5})
    for train, expected in (
        ("rdrop = 5.0", "training, with R-Drop"),
        ("rdrop = 0.0\nguided_alignment = true", "training, with guided alignment"),
        ("rdrop = 1.0\nguided_alignment = true", "training, with R-Drop and guided alignment"),
        ("label_smoothing = 0.1", "training"),
    ):
        (tmp_path / "recipe.toml").write_text(f"[train]\n{train}\n")
        assert legend_of(drawn(monkeypatch, tmp_path).axes[0]) == [expected, "validation"]


@pytest.mark.slow
def test_panels_of_a_classifier_name_its_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loss is per example, without label smoothing."""
    record(
        tmp_path,
        {"step": 1, "train/loss": 0.9, "train/learning_rate": 0.1},
        {"step": 1, "valid/nll": 0.7, "valid/accuracy": 0.5, "valid/macro_f1": 0.4},
        {"step": 2, "valid/nll": 0.6, "valid/accuracy": 0.8, "valid/macro_f1": 0.7},
    )
    panels = {axes.get_title(loc="left"): axes for axes in drawn(monkeypatch, tmp_path).axes}
    assert list(panels) == [
        "Training loss (nats per example)",
        "Validation loss (nats per example)",
        "Validation accuracy and macro F1",
        "Learning rate",
    ]
    assert [text.get_text() for text in panels["Validation loss (nats per example)"].texts] == ["0.60"]
    assert legend_of(panels["Validation accuracy and macro F1"]) == ["accuracy", "macro F1"]


@pytest.mark.slow
def test_best_bleu_is_the_highest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, {"step": 1, "valid/bleu": 3.0}, {"step": 2, "valid/bleu": 30.25}, {"step": 3, "valid/bleu": 29.0})
    (axes,) = drawn(monkeypatch, tmp_path).axes
    assert [text.get_text() for text in axes.texts] == ["30.25"]


@pytest.mark.slow
def test_all_panels_mark_the_best_step_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(
        tmp_path,
        {"step": 1, "valid/loss": 4.0, "valid/perplexity": 50.0, "valid/bleu": 3.0, "valid/best_step": 1},
        {"step": 2, "valid/loss": 3.0, "valid/perplexity": 40.0, "valid/bleu": 30.25, "valid/best_step": 2},
        {"step": 3, "valid/loss": 3.1, "valid/perplexity": 39.0, "valid/bleu": 31.0, "valid/best_step": 2},
    )
    _, perplexity, bleu = drawn(monkeypatch, tmp_path).axes
    assert [text.get_text() for text in perplexity.texts] == ["40.00"]
    assert [text.get_text() for text in bleu.texts] == ["30.25"]


@pytest.mark.slow
def test_the_best_of_the_ema_is_marked_if_it_is_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(
        tmp_path,
        {"step": 0, "valid/perplexity": 60.0, "valid/bleu": 35.0},  # of the initial model
        {"step": 1, "valid/perplexity": 50.0, "valid/average_perplexity": 45.0, "valid/average_bleu": 30.0},
        {"step": 2, "valid/perplexity": 40.0, "valid/average_perplexity": 42.0, "valid/average_bleu": 31.0}
        | {"valid/best_step": 2},
    )
    for average, marks in (("ema", ["42.00", "31.00"]), ("last", ["40.00", "35.00"])):
        (tmp_path / "recipe.toml").write_text(f'[train]\naverage = "{average}"\n')
        perplexity, bleu = drawn(monkeypatch, tmp_path).axes
        assert [text.get_text() for axes in (perplexity, bleu) for text in axes.texts] == marks


@pytest.mark.slow
def test_change_of_validation_metrics_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = {"valid/loss": 4.0, "valid/bleu": 3.0, "train/learning_rate": 0.1}
    changes = [{"step": step + 1, "valid/scored_from": step, **measured} for step in (1, 2)]
    record(tmp_path, {"step": 1, **measured}, *changes)
    loss, bleu, rate = drawn(monkeypatch, tmp_path).axes
    for axes in (loss, bleu):
        assert [line.get_xdata() for line in axes.lines if line.get_linestyle() == ":"] == [[1, 1], [2, 2]]
        assert legend_of(axes)[-1] == "validation setup changed"
        assert len(set(legend_of(axes))) == len(legend_of(axes))
    assert all(line.get_linestyle() != ":" for line in rate.lines)


def test_a_single_point_is_visible_in_a_comparison_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(curves, "save_figure", lambda figure, _: figures.append(figure))
    record(tmp_path, {"step": 1, "train/nll": 4.0}, {"step": 2, "train/nll": 3.0, "valid/nll": 3.5})
    draw_runs([("a", tmp_path), ("b", tmp_path)], tmp_path / "curves.png")
    train, valid = figures[0].axes
    assert [line.get_marker() for axes in (train, valid) for line in axes.lines] == ["", "", "o", "o"]


def test_a_comparison_of_classifiers_shows_losses_per_example_and_accuracy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(curves, "save_figure", lambda figure, _: figures.append(figure))
    for name, validation in (("a", {"valid/nll": 0.7, "valid/accuracy": 0.5}), ("b", {})):  # b is not validated yet
        (tmp_path / name).mkdir()
        record(tmp_path / name, {"step": 1, "train/loss": 0.9, **validation})
    draw_runs([(name, tmp_path / name) for name in "ab"], tmp_path / "curves.png")
    assert [axes.get_title(loc="left") for axes in figures[0].axes] == [
        "Training loss (nats per example)",
        "Validation loss (nats per example)",
        "Validation accuracy",
    ]


def test_names_are_shown_literally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / r"$\q$"
    run.mkdir()
    record(run, {"step": 1, "train/nll": 4.0, "train/loss": 5.0})
    draw_curves(run, tmp_path / "one.png")  # as a formula, the name would be an error
    figures: list[Figure] = []

    def keep_and_save(figure: Figure, path: Path) -> None:
        figures.append(figure)
        save_figure(figure, path)

    monkeypatch.setattr(curves, "save_figure", keep_and_save)
    draw_runs([(run.name, run), ("_b", run)], tmp_path / "both.png")
    assert [label.strip("\u200b") for label in legend_of(figures[0].axes[0])] == [r"\$\q\$", "_b"]


@pytest.mark.slow
def test_wide_range_has_a_logarithmic_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, {"step": 1, "valid/perplexity": 3000.0}, {"step": 2, "valid/perplexity": 5.0, "train/loss": 1.0})
    loss, perplexity = drawn(monkeypatch, tmp_path).axes
    assert (loss.get_yscale(), perplexity.get_yscale()) == ("linear", "log")
    assert list(perplexity.get_yticks()) == [5, 10, 20, 50, 100, 200, 500, 1000, 2000]


def test_ticks_of_a_diverged_run_do_not_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, {"step": 1, "valid/perplexity": 3000.0}, {"step": 2, "valid/perplexity": 1e30})
    (perplexity,) = drawn(monkeypatch, tmp_path).axes
    assert list(perplexity.get_yticks()) == [10.0**power for power in range(3, 31, 3)]
    labels = [label.get_text() for label in perplexity.get_yticklabels()]
    assert labels[:2] == ["1,000", "1,000,000"] and labels[-1] == "1e+30"


@pytest.mark.slow
def test_values_that_cannot_be_drawn_are_omitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, {"step": 1, "valid/perplexity": 10.0}, {"step": 2, "valid/perplexity": 1e303})
    (perplexity,) = drawn(monkeypatch, tmp_path).axes
    assert floats(perplexity.lines[0].get_ydata()) == [10.0]


def test_a_run_with_only_an_initial_validation(tmp_path: Path) -> None:
    record(tmp_path, {"step": 0, "valid/loss": 3.0, "valid/perplexity": 12.0})
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Matplotlib warns of an axis from 0 to 0
        draw_curves(tmp_path, tmp_path / "curves.png")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "cannot read"),
        ("", "has no metrics yet"),
        ('{"step": 1}\n', "has no metrics yet"),
        ('{"step": 1, "a": 1}\n', "has no metric to plot, such as train/loss; train longer"),
        ('{"step": 1, "a": 1}\nnonsense\n', "line 2 is not a JSON object with a step"),
        ('{"a": 1}\n', "line 1 is not a JSON object with a step"),
        ("[1]\n", "line 1 is not a JSON object with a step"),
    ],
)
def test_unusable_file_is_an_error(tmp_path: Path, text: str | None, expected: str) -> None:
    if text is not None:
        (tmp_path / "metrics.jsonl").write_text(text)
    with pytest.raises(UserError, match=expected) as error:
        draw_curves(tmp_path, tmp_path / "x.png")
    assert "metrics.jsonl" in str(error.value)


def test_a_comparison_needs_a_metric_of_each_run(tmp_path: Path) -> None:
    for name, metric in (("a", "train/nll"), ("b", "train/loss")):
        (tmp_path / name).mkdir()
        record(tmp_path / name, {"step": 1, metric: 4.0})
    with pytest.raises(UserError, match=r"b/metrics\.jsonl has no metric to plot, such as train/nll; train longer"):
        draw_runs([(name, tmp_path / name) for name in "ab"], tmp_path / "x.png")


def test_missing_matplotlib_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, {"step": 1, "train/loss": 3.0})
    real_import = builtins.__import__

    def no_matplotlib(name: str, *rest: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", no_matplotlib)
    with pytest.raises(UserError, match=r"pip install 'nmt\[plot\]'"):
        draw_curves(tmp_path, tmp_path / "x.png")
