"""Classification of files: lines in, labels and probabilities out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np

from nmt.classify.examples import Texts, class_indices
from nmt.classify.text_classifier import ClassifierMetadata, TextClassifier
from nmt.errors import CommandError, UserError
from nmt.evaluate.classification import score_classes, score_tables
from nmt.evaluate.tables import format_tables
from nmt.logs import counted, progress, say, warn
from nmt.text.format_warnings import warn_of_csv, warn_of_fields
from nmt.text.lines import count_lines, input_name, read_lines

_WINDOW = 4_096


def classify_files(
    classifier: TextClassifier, files: Sequence[Path], label: str | None, gold: Path | None
) -> Iterator[str]:
    """Yield `LABEL<tab>PROBABILITY` of each line of the files, or the probability of `label`.

    gold: file of labels; if given, accuracy, F1 and calibration are printed to stderr at the end

    Raises UserError for a wrong number of files, files of different lengths and an unknown label.
    """
    names = classifier.metadata.labels
    if label is not None and label not in names:
        raise CommandError(f"--label is {label!r}; it must be one of {', '.join(names)}; correct it")
    column = None if label is None else names.index(label)
    gold_name = "" if gold is None else input_name(gold)
    gold_indices = None if gold is None else _read_gold(gold, names, files)
    collected = []
    num_lines = num_empty = 0
    with progress("classifying", None, "lines") as bar:
        for window in _windows(files, classifier.metadata):
            if not num_lines:
                for file, texts_of_file in zip(files, zip(*window, strict=True), strict=True):
                    warn_of_fields(f"{input_name(file)}, lines 1 to {len(window):,},", texts_of_file)
                    warn_of_csv(input_name(file), texts_of_file)
            num_lines += len(window)
            num_empty += sum(not all(map(str.strip, texts)) for texts in window)
            probabilities = classifier.probabilities(window)
            if gold_indices is not None:
                collected.append(probabilities)
            for row in probabilities:
                yield f"{row[column]:.6f}" if column is not None else f"{names[row.argmax()]}\t{row.max():.6f}"
            bar.advance(len(window))
    classifier.encode.report_truncated()
    if num_empty:
        warn(f"empty texts in {num_empty:,} of {counted(num_lines, 'line')}: their probabilities are meaningless")
    if gold_indices is not None:
        _require_labels(gold_name, len(gold_indices), "the input", num_lines)
        score = score_classes(np.concatenate(collected), np.array(gold_indices), names)
        say(format_tables(score_tables(gold_name, score), "text").rstrip())


def _read_gold(path: Path, names: Sequence[str], files: Sequence[Path]) -> list[int]:
    """Read the class index of each line.

    Raises UserError for an unknown or empty label, and if a file has a different number of lines.
    """
    labels = [line.removesuffix("\r") for line in read_lines(path, allow_pipe=True)]
    indices = class_indices(labels, names, input_name(path))
    for file in filter(Path.is_file, files):
        _require_labels(input_name(path), len(indices), input_name(file), count_lines(file))
    if not set(names).issuperset(labels):
        meaning = ", ".join(f"{index} is {name}" for index, name in enumerate(names))
        say(f"{input_name(path)} has class indices; in the order of the model, {meaning}")
    return indices


def _require_labels(gold: str, num_labels: int, name: str, num_lines: int) -> None:
    """Raise UserError unless there are labels, one for each line of an input."""
    if num_labels != num_lines or not num_labels:
        raise UserError(
            f"{gold} has {counted(num_labels, 'label')} and {name} has {counted(num_lines, 'line')}; there must be one "
            "label per line; check both"
        )


def _windows(files: Sequence[Path], metadata: ClassifierMetadata) -> Iterator[list[Texts]]:
    """Yield the lines of the files in windows of examples."""
    if len(files) != metadata.texts:
        needs = "single texts needs one FILE" if metadata.texts == 1 else "pairs of texts needs SOURCE and TARGET"
        raise CommandError(f"got {counted(len(files), 'file')}; a classifier of {needs}; give {metadata.texts}")
    window: list[Texts] = []
    for number, texts in enumerate(zip_longest(*(read_lines(path, allow_pipe=True) for path in files)), start=1):
        if None in texts:
            ended = input_name(files[texts.index(None)])
            raise UserError(
                f"{ended} ends after {counted(number - 1, 'line')}; both files must match line by line; check both"
            )
        window.append(texts)
        if len(window) == _WINDOW:
            yield window
            window = []
    if window:
        yield window
