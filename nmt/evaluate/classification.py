"""Metrics of classifiers: accuracy, F1, calibration, confusion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nmt.evaluate.tables import Table

NUM_BINS = 15
"""Bins of the expected calibration error (Guo et al. 2017)."""

_MAX_COLUMNS = 20  # classes with a column each; with more classes, each row lists its most frequent errors instead
_SHOWN_ERRORS = 3


@dataclass(frozen=True)
class ClassScore:
    """Precision, recall and F1 of one class, from 0 to 1; 0 where they are undefined, as in scikit-learn."""

    label: str
    examples: int
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class ClassificationScore:
    """Scores of a classifier on a test set.

    accuracy:    fraction of examples whose most probable class is their label
    macro_f1:    mean F1 of the classes that occur among labels or predictions
    calibration: expected calibration error: mean of |accuracy - confidence| over `NUM_BINS` bins of equal width,
                 weighted by examples; the confidence is the highest probability (Naeini et al. 2015; Guo et al. 2017)
    nll:         mean negative log-probability of the labels, in nats
    majority:    accuracy of always choosing the most frequent label
    confusion:   [label][prediction] number of examples
    """

    examples: int
    accuracy: float
    macro_f1: float
    calibration: float
    nll: float
    majority: float
    classes: tuple[ClassScore, ...]
    confusion: tuple[tuple[int, ...], ...]


def score_classes(
    probabilities: NDArray[np.floating], labels: NDArray[np.integer], names: Sequence[str]
) -> ClassificationScore:
    """Score probabilities (examples, classes) against the index of each label (examples,); at least one example."""
    assert len(labels) == len(probabilities) > 0, "each example needs a label"
    predictions = probabilities.argmax(axis=1)
    confusion = np.zeros((len(names), len(names)), dtype=np.int64)
    np.add.at(confusion, (labels, predictions), 1)
    correct, gold, predicted = confusion.diagonal(), confusion.sum(axis=1), confusion.sum(axis=0)
    precision = correct / np.maximum(predicted, 1)
    recall = correct / np.maximum(gold, 1)
    f1 = 2 * correct / np.maximum(gold + predicted, 1)
    of_labels = probabilities[np.arange(len(labels)), labels]
    return ClassificationScore(
        examples=len(labels),
        accuracy=float(correct.sum() / len(labels)),
        macro_f1=float(f1[gold + predicted > 0].mean()),
        calibration=calibration_error(probabilities.max(axis=1), predictions == labels),
        nll=float(-np.log(np.maximum(of_labels, np.finfo(np.float64).tiny)).mean()),
        majority=float(gold.max() / len(labels)),
        classes=tuple(
            ClassScore(name, int(gold[i]), float(precision[i]), float(recall[i]), float(f1[i]))
            for i, name in enumerate(names)
        ),
        confusion=tuple(tuple(map(int, row)) for row in confusion),
    )


def calibration_error(confidence: NDArray[np.floating], correct: NDArray[np.bool_]) -> float:
    """Return the expected calibration error of confidences (examples,) in (0, 1]; bins exclude their lower bound.

    Returns NaN for a diverged model, whose confidences are NaN.
    """
    if np.isnan(confidence).any():
        return math.nan
    bins = np.clip(np.ceil(confidence * NUM_BINS).astype(np.int64) - 1, 0, NUM_BINS - 1)
    gaps = np.bincount(bins, weights=correct - confidence, minlength=NUM_BINS)
    return float(np.abs(gaps).sum() / len(confidence))


def score_tables(title: str, score: ClassificationScore) -> list[Table]:
    """Return the scores of a test set: all examples, and each class with its predictions."""
    overall = (score.accuracy, score.macro_f1, score.calibration, score.nll, score.majority)
    return [
        Table(
            f"{title}: {score.examples:,} examples",
            "rrrrr",
            ("accuracy", "macro F1", "calibration error", "nll", "majority class"),
            (tuple(f"{value:.4f}" for value in overall),),
            notes=(
                f"expected calibration error: {NUM_BINS} bins of equal width; nll in nats",
                "majority class: accuracy of always choosing the most frequent label",
            ),
        ),
        _class_table(title, score),
    ]


def _class_table(title: str, score: ClassificationScore) -> Table:
    """Return the scores of each class, and how its examples are classified."""
    names = [row.label for row in score.classes]
    if len(names) > _MAX_COLUMNS:
        columns, header = "l", ["most frequent errors"]
        predictions = [[_most_frequent_errors(row, index, names)] for index, row in enumerate(score.confusion)]
    else:
        columns, header = "r" * len(names), [f"as {name}" for name in names]
        predictions = [[str(count) for count in row] for row in score.confusion]
    rows = [
        (row.label, f"{row.examples:,}", f"{row.precision:.4f}", f"{row.recall:.4f}", f"{row.f1:.4f}", *predicted)
        for row, predicted in zip(score.classes, predictions, strict=True)
    ]
    return Table(
        f"{title}: classes, and examples by predicted class",
        "lrrrr" + columns,
        ("label", "examples", "precision", "recall", "F1", *header),
        tuple(rows),
    )


def _most_frequent_errors(row: Sequence[int], label: int, names: Sequence[str]) -> str:
    """List the most frequent wrong predictions of a class with their counts. row: its examples by predicted class"""
    errors = [(prediction, count) for prediction, count in enumerate(row) if count and prediction != label]
    errors.sort(key=lambda error: -error[1])
    return ", ".join(f"{names[prediction]} ({count:,})" for prediction, count in errors[:_SHOWN_ERRORS])
