"""`nmt train-classifier` and `nmt classify`: labels of texts and of text pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from nmt.classify import run
from nmt.classify.lines import classify_files
from nmt.classify.text_classifier import TextClassifier
from nmt.cli.arguments import Device, ModelArgument, Overrides, RecipeArgument, Threads, check_inputs
from nmt.recipe import load_classification_recipe


def train_classifier(recipe: RecipeArgument, overrides: Overrides = None) -> None:
    """Train a classifier on labeled text, classify its test sets and report; rerun the command to resume.

    RUN/model is the checkpoint with the lowest validation nll. See nmt guide classifying.
    """
    typer.echo(run.train_classifier(load_classification_recipe(recipe, overrides or ())), nl=False)


def classify(
    model: ModelArgument,
    files: Annotated[list[Path], typer.Argument(help="FILE of texts, or SOURCE TARGET; - is standard input.")],
    label: Annotated[str | None, typer.Option(help="Print only the probability of this label.")] = None,
    gold: Annotated[
        Path | None, typer.Option(help="File of labels: print accuracy, F1 and calibration to stderr.")
    ] = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Print the most probable label of each line, a tab and its probability; with --label, only that probability."""
    check_inputs([*files, gold])
    if threads is not None:
        torch.set_num_threads(threads)
    for line in classify_files(TextClassifier.load(model, device), files, label, gold):
        typer.echo(line)
