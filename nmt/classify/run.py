"""Steps of a classifier's run: read, train, choose the best checkpoint, classify the test sets and report."""

from __future__ import annotations

import json
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from nmt.checkpoint import model_tensors, newest_checkpoint, remove_leftovers
from nmt.classify.examples import (
    Examples,
    LabeledTexts,
    TrainingOverlap,
    class_indices,
    class_names,
    held_out,
    read_labeled,
    training_overlap,
)
from nmt.classify.model import Classifier
from nmt.classify.text_classifier import TOKENIZER_FILE, ClassifierMetadata, TextClassifier
from nmt.classify.trainer import ClassifierTrainer, require_same_recipe
from nmt.errors import CommandError, UserError
from nmt.evaluate.classification import ClassificationScore, score_tables
from nmt.evaluate.tables import Table, format_tables
from nmt.logs import format_duration, say, warn
from nmt.processes.cores import num_cores
from nmt.processes.distributed import choose_device
from nmt.processes.environment import world_size
from nmt.processes.interruption import interruptible
from nmt.processes.run_lock import run_lock
from nmt.recipe import ClassificationRecipe, dump_recipe
from nmt.storage.description import read_description
from nmt.storage.run_folder import (
    CLASSIFIER,
    checkpoint_directory,
    is_replaceable,
    require_own_files,
    require_own_model,
)
from nmt.storage.sealed import write_directory, write_file
from nmt.text.clean import normalize
from nmt.text.tokenizer import Tokenizer, train_tokenizer
from nmt.train.state import TrainState


def train_classifier(recipe: ClassificationRecipe) -> str:
    """Train a classifier, or resume its run; return its report. Raises UserError, or Stopped after a signal.

    Writes `model` (the checkpoint with the lowest validation nll), `report.json` and `report.md` to the run directory.
    """
    if (size := world_size()) != 1:
        raise CommandError(f"a classifier is trained by one process, got {size}; start it without torchrun")
    device = choose_device(recipe.train.device)
    torch.set_num_threads(recipe.train.threads or num_cores())
    with interruptible(), run_lock(recipe.directory):
        require_own_files(recipe.directory, (), keeps_recipe=True)
        require_own_model(recipe.directory)
        trainer, tests, overlap = _build(recipe, device)
        path = recipe.directory / "recipe.toml"
        if not path.is_file() or is_replaceable(path):  # not the user's own recipe
            write_file(path, dump_recipe(recipe).encode())
        state = trainer.run()
        if not state.best_step:
            raise UserError(
                f"no validation nll of {recipe.directory} is finite: training has diverged; train under another name "
                "with a lower train.learning_rate, a longer warm-up, or gradient clipping (train.clip_norm)"
            )
        checkpoint = checkpoint_directory(recipe.directory, state.best_step)
        best = TextClassifier.load(checkpoint, str(device), recipe.train.precision)
        out = recipe.directory / "model"
        write_directory(out, best.files(model_tensors(best.model)), replaces=(out / CLASSIFIER).is_file())
        scores = {name: best.score(examples) for name, examples in tests.items()}
        return _report(recipe, trainer, state, scores, overlap)


def _build(
    recipe: ClassificationRecipe, device: torch.device
) -> tuple[ClassifierTrainer, dict[str, Examples], dict[str, TrainingOverlap]]:
    """Read and encode all examples, and build or resume the trainer.

    Returns the trainer, the test sets, and the overlap of validation and test sets with the training text.
    """
    remove_leftovers(recipe.directory)
    newest = newest_checkpoint(recipe.directory)
    if newest is not None:
        require_same_recipe(recipe, tomllib.loads((newest[0] / "recipe.toml").read_text(encoding="utf-8")))
    names, texts, labels = _read(recipe)
    overlap = training_overlap(texts, recipe)
    if newest is not None and (trained := read_description(newest[0] / CLASSIFIER, ClassifierMetadata).labels) != names:
        raise UserError(
            f"the labels of data.train are {', '.join(names)}, but {newest[0]} was trained with {', '.join(trained)}; "
            "a run must keep its labels; restore them, or choose another name"
        )
    if missing := [names[index] for index in sorted(set(range(len(names))) - set(labels["train"]))]:
        warn(f"classes without training examples are not learned: {', '.join(missing)}; add examples to data.train")
    if newest is None:
        with tempfile.TemporaryDirectory() as folder:  # the checkpoints store the tokenizer
            path = Path(folder, TOKENIZER_FILE)
            lines = (normalize(text, recipe.data.unicode_form) for example, _ in texts["train"] for text in example)
            tokenizer = train_tokenizer(lines, recipe.tokenizer, path)
    else:
        tokenizer = Tokenizer.load(newest[0] / TOKENIZER_FILE)
    metadata = ClassifierMetadata(
        labels=names,
        texts=len(texts["train"][0][0]),
        unicode_form=recipe.data.unicode_form,
        max_tokens=recipe.data.max_tokens,
        model=recipe.model,
    )
    torch.manual_seed(recipe.seed)
    model = Classifier(recipe.model, tokenizer.vocab_size, len(names)).to(device)
    classifier = TextClassifier(model, tokenizer, metadata, device, recipe.train.precision)
    encoded = {
        split: Examples.encode([example for example, _ in examples], labels[split], classifier.encode)
        for split, examples in texts.items()
    }
    classifier.encode.report_truncated()
    say(
        f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters, {len(names)} classes, "
        f"{len(encoded['train'].labels):,} training examples of {encoded['train'].lengths.mean():.0f} tokens "
        f"on average, {device}"
    )
    trainer = ClassifierTrainer(recipe, classifier, encoded.pop("train"), encoded.pop("valid"), device, newest)
    return trainer, {split.removeprefix("test."): examples for split, examples in encoded.items()}, overlap


def _read(
    recipe: ClassificationRecipe,
) -> tuple[tuple[str, ...], dict[str, list[LabeledTexts]], dict[str, list[int]]]:
    """Return the names of the classes, and the examples of each split and their class indices."""
    train = read_labeled(recipe.data.train, recipe, "train")
    names = class_names(recipe, [label for _, label in train])

    def indices(split: str, examples: Sequence[LabeledTexts]) -> list[int]:
        labels = [label for _, label in examples]
        return class_indices(labels, names, f"data.{split}", accept_indices=bool(recipe.data.labels))

    if recipe.data.valid:
        valid = read_labeled(recipe.data.valid, recipe, "valid")
    else:
        indices("train", train)  # before the split: an error has the number of the example in data.train
        train, valid = held_out(train, recipe.seed)
    tests = {
        f"test.{name}": read_labeled([corpus], recipe, f"test.{name}") for name, corpus in recipe.data.test.items()
    }
    texts = {"train": train, "valid": valid, **tests}
    return names, texts, {split: indices(split, examples) for split, examples in texts.items()}


# --- Report -----------------------------------------------------------------------------------------------------------


def _report(
    recipe: ClassificationRecipe,
    trainer: ClassifierTrainer,
    state: TrainState,
    scores: Mapping[str, ClassificationScore],
    overlap: Mapping[str, TrainingOverlap],
) -> str:
    """Write `report.json` and `report.md`, and return the latter."""
    run = recipe.directory
    tree = {
        "name": recipe.name,
        "seed": recipe.seed,
        "steps": state.step,
        "best_step": state.best_step,
        "seconds": state.seconds,
        "validation": state.best_validation,
        "tests": {name: asdict(score) for name, score in scores.items()},
        "training_overlap": {split: asdict(count) for split, count in overlap.items()},
        "changes": [asdict(change) for change in state.changes],
        "recipe": dump_recipe(recipe),
    }
    write_file(run / "report.json", (json.dumps(tree, indent=1, ensure_ascii=False) + "\n").encode())
    device = state.device or trainer.device  # unknown in checkpoints of earlier versions
    summary = (
        f"# Classifier {recipe.name}\n\n{state.step:,} updates in {format_duration(state.seconds)} on {device}; the "
        f"model is checkpoint {state.best_step:,}, which has the lowest validation nll "
        f"({state.best_validation['valid/nll']:.4f}).\n\n"
    )
    tables = [table for name, score in scores.items() for table in score_tables(name, score)]
    counts = tuple((split, f"{count.examples:,}", f"{count.in_training:,}") for split, count in overlap.items())
    tables.append(
        Table("Examples that also occur in the training text", "lrr", ("set", "examples", "in training text"), counts)
    )
    if state.changes:
        rows = tuple(
            (f"{change.step:,}", change.option, str(change.before), str(change.now)) for change in state.changes
        )
        tables.append(
            Table("Options changed during training", "rlll", ("after update", "option", "before", "after"), rows)
        )
    text = summary + format_tables(tables, "markdown")
    write_file(run / "report.md", text.encode())
    say(f"report: {run / 'report.md'}, model: {run / 'model'}")
    return text
