"""Beginning from a trained model: its weights, perhaps its optimiser, and which weights are left alone."""

from __future__ import annotations

from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

import torch

from nmt.checkpoint import load_tensors, read_tensors
from nmt.model.transformer import Transformer
from nmt.recipe import ModelRecipe, Recipe, UserError, revalidate
from nmt.storage.model_metadata import read_model_recipe
from nmt.storage.run_folder import find_model, list_checkpoints
from nmt.storage.sealed import verify_directory
from nmt.train.optimizer import load_optimizer_tensors

_EMBEDDINGS = ("src_embedding.*", "tgt_embedding.*", "output.weight")
# Options of section model that may be others than those that the weights were trained with.
_FREE = {"dropout", "attention_dropout", "activation_dropout", "max_positions"}
_PARTS = {"encoder": ("encoder.*",), "decoder": ("decoder.*",), "embeddings": _EMBEDDINGS}


def with_start_model(recipe: Recipe) -> Recipe:
    """The recipe with the architecture of the model that training starts from, where section model gives no other.

    Where that model no longer exists, the run's own checkpoints tell. Raises UserError where there is neither, and
    RecipeError where the other sections do not fit the architecture.
    """
    start = recipe.train.start_from
    if start is None:
        return recipe
    there = _architecture(start, recipe.directory)
    given = recipe.model.model_dump(include=recipe.model.model_fields_set)
    model = ModelRecipe.model_validate(there.model_dump() | given)
    if differences := _differences(there, model):
        raise UserError(
            f"train.start_from {start}: {differences}; they must be equal; correct section model, or leave it out"
        )
    return revalidate(recipe.model_copy(update={"model": model}))


def _architecture(start: Path, run_dir: Path) -> ModelRecipe:
    """That of the model to start from, or else of the newest checkpoint of the run that can be read."""
    try:
        return read_model_recipe(find_model(start))
    except UserError:
        for checkpoint in reversed(list_checkpoints(run_dir)):
            with suppress(UserError):
                return read_model_recipe(checkpoint)
        raise


def load_start_weights(model: Transformer, start_from: Path) -> Path:
    """Give `model` the weights of a model directory, checkpoint or run, and return the directory they came from.

    Raises UserError where there is none or where they are of another architecture, be its weights of the same sizes
    (such as one of more heads), and CorruptError where a file is damaged.
    """
    directory = find_model(start_from)
    verify_directory(directory)
    if differences := _differences(read_model_recipe(directory), model.recipe):
        raise UserError(f"train.start_from {directory}: {differences}; they must be equal; correct section model")
    load_tensors(model, read_tensors(directory / "model.safetensors"))
    return directory


def _differences(there: ModelRecipe, here: ModelRecipe) -> str:
    """What two architectures differ in, such as "model.d_model is 256 there and 512 here"; "" where in nothing."""
    free = _FREE - {"max_positions"} if here.positions == "learned" else _FREE
    pairs = [(name, getattr(there, name), getattr(here, name)) for name in ModelRecipe.model_fields if name not in free]
    return ", ".join(f"model.{name} is {a!r} there and {b!r} here" for name, a, b in pairs if a != b)


def load_start_optimizer(optimizer: torch.optim.Optimizer, model: Transformer, directory: Path) -> None:
    """Give the optimiser the moments of a checkpoint; UserError where the directory is a model alone."""
    path = directory / "optimizer.safetensors"
    if not path.exists():
        raise UserError(
            f"{directory} holds no optimiser state; train.start_optimizer 'kept' needs a checkpoint "
            "(RUN/checkpoints/step-...); give one, or set it to 'fresh'"
        )
    load_optimizer_tensors(optimizer, model, read_tensors(path))


def freeze(model: Transformer, patterns: tuple[str, ...]) -> int:
    """Exclude the named weights from training and return how many numbers that is.

    A pattern is `encoder`, `decoder`, `embeddings`, or a weight's full name with `*`. Raises UserError for a pattern
    that means no weight, and when nothing is left to train.
    """
    weights = dict(model.named_parameters())
    frozen: set[str] = set()
    for pattern in patterns:
        matching = {name for name in weights for part in _PARTS.get(pattern, (pattern,)) if fnmatchcase(name, part)}
        if not matching:
            raise UserError(
                f"train.freeze: {pattern!r} means no weight of this model; it must be encoder, decoder, embeddings "
                f"or a pattern of names such as {next(iter(weights))!r}; correct it"
            )
        frozen |= matching
    if len(frozen) == len(weights):
        raise UserError("train.freeze leaves nothing to train; freeze less")
    for name in frozen:
        weights[name].requires_grad_(False)
    return sum(weights[name].numel() for name in frozen)
