"""Training on the tiny data, in the process of a test or in several processes."""

import json
import os
import sys
from collections.abc import Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nmt.checkpoint import model_files
from nmt.data.store import PairStore, PairWriter, SideStore, Split, token_dtype
from nmt.errors import JobEnded
from nmt.models import build_model
from nmt.processes.distributed import start_world
from nmt.recipe import Recipe
from nmt.storage.model_metadata import ModelMetadata
from nmt.storage.run_folder import list_checkpoints
from nmt.train.data import TrainingData, TranslateValidation
from nmt.train.signals import Stopped
from nmt.train.state import TrainState
from nmt.train.trainer import Trainer
from tests.forked import PROCESSES, job_variables

TINY_VOCAB = 40


def write_reversed_pairs(folder: Path, vocab: int, max_length: int) -> None:
    """Write pairs whose targets are reversed sources: 240 for training and 20 for validation."""
    random = np.random.Generator(np.random.PCG64(7))
    sizes: tuple[tuple[Split, int], ...] = (("train", 240), ("valid", 20))
    for split, pairs in sizes:
        sentences = [random.integers(4, vocab, random.integers(1, max_length + 1)) for _ in range(pairs)]
        lengths = np.array([len(sentence) for sentence in sentences])
        with PairWriter(folder, split, {"src": token_dtype(vocab), "tgt": token_dtype(vocab)}) as writer:
            writer.append("src", np.concatenate(sentences), lengths)
            writer.append("tgt", np.concatenate([sentence[::-1] for sentence in sentences]), lengths)


def with_train(recipe: Recipe, run_dir: Path | None = None, **changes: Any) -> Recipe:
    tree = recipe.model_dump(mode="json", exclude_none=True)
    tree["train"] |= changes
    if run_dir is not None:
        tree["run_dir"] = str(run_dir)
    return Recipe.model_validate(tree)


def metrics(recipe: Recipe, name: str) -> list[float]:
    lines = (recipe.directory / "metrics.jsonl").read_text().splitlines()
    return [entry[name] for entry in map(json.loads, lines) if name in entry]


def final_files(recipe: Recipe) -> dict[str, bytes]:
    """Return parameters, optimizer state and EMA, if any, of the last checkpoint."""
    last = list_checkpoints(recipe.directory)[-1]
    return {path.name: path.read_bytes() for path in last.glob("*.safetensors")}


def without_dropout(recipe: Recipe, run_dir: Path, **changes: Any) -> Recipe:
    tree = recipe.model_dump(mode="json", exclude_none=True)
    tree["model"]["dropout"] = 0.0
    return with_train(Recipe.model_validate(tree), run_dir, **changes)


def train_as_rank(recipe: Recipe, data: Path, stderr: Path, variables: dict[str, str]) -> None:
    """Train as one rank, then exit with the status of the command line, see `nmt.cli.main`."""
    os.environ.update(variables)
    os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    try:
        train_tiny(recipe, data)
    except Stopped as stopped:
        sys.exit(stopped.status)
    except JobEnded:
        sys.exit(1)


def start_processes(recipe: Recipe, data: Path, errors: Sequence[Path], **variables: str) -> list[ForkServerProcess]:
    """Start one process per file of `errors`, which receives its stderr."""
    shared = job_variables(len(errors)) | variables
    processes = []
    for rank, stderr in enumerate(errors):
        arguments = (recipe, data, stderr, {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        processes.append(PROCESSES.Process(target=train_as_rank, args=arguments))
        processes[-1].start()
    return processes


def train_in_processes(recipe: Recipe, data: Path, count: int) -> str:
    """Train in `count` processes; return their stderr."""
    recipe.directory.mkdir(parents=True, exist_ok=True)
    errors = [recipe.directory / f"{rank}.err" for rank in range(count)]
    processes = start_processes(recipe, data, errors)
    for process in processes:
        process.join(180)
    messages = "".join(error.read_text() for error in errors)
    codes = [process.exitcode for process in processes]
    assert codes == [0] * count, f"exit codes {codes}: {messages}"
    return messages


def train_tiny(
    recipe: Recipe,
    data: Path,
    vocab: int = TINY_VOCAB,
    translate: TranslateValidation | None = None,
    valid_identity: str = "",
) -> TrainState:
    metadata = ModelMetadata("en", "de", vocab, vocab, "NFC", recipe.decode, {})
    with start_world(recipe.train.device) as world:
        torch.manual_seed(recipe.seed)
        trainer = Trainer(
            recipe,
            world,
            build_model(recipe.model, vocab, vocab),
            TrainingData(
                PairStore(data, "train"),
                PairStore(data, "valid"),
                valid_identity=valid_identity,
                links=SideStore(data, "train", "links") if recipe.train.guided_alignment else None,
            ),
            lambda tensors, step: model_files(recipe.model, tensors, {"tokenizer.model": b"none"}, metadata),
            translate,
        )
        return trainer.run()
