"""Fine-tuning: start from the parameters and optimizer state of a trained model, and freeze parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

import torch

from nmt.checkpoint import load_tensors, read_tensors
from nmt.models import TranslationModel
from nmt.recipe import ModelRecipe, Recipe, TokenizerRecipe, UserError, revalidate
from nmt.storage.model_metadata import read_model_metadata, read_model_recipe
from nmt.storage.run_folder import find_model, list_checkpoints
from nmt.storage.sealed import verify_directory
from nmt.text.subword_file import read_algorithm
from nmt.text.tokenizer import Tokenizers
from nmt.train.optimizer import load_optimizer_tensors

_EMBEDDINGS = ("src_embedding.*", "tgt_embedding.*", "output.weight")
# Options of section model that may differ from those of the start model.
_CHANGEABLE = {"dropout", "attention_dropout", "activation_dropout", "max_positions"}
_PARTS = {"encoder": ("encoder.*",), "decoder": ("decoder.*",), "embeddings": _EMBEDDINGS}


def with_start_model(recipe: Recipe) -> Recipe:
    """Return the recipe with the architecture of the start model, where section model does not set it.

    `tokenizer.vocab_size` becomes that of reused tokenizers. If the start model no longer exists, the checkpoints of
    the run are used.

    Raises:
        UserError: no such model, or another architecture.
        RecipeError: other sections of the recipe do not fit the architecture.
    """
    start = recipe.train.start_from
    if (source := start or recipe.tokenizer.start_from) is not None:
        recipe = _with_vocabulary_of(source, recipe)
    if start is None:
        return recipe
    architecture = _architecture(start, recipe.directory)
    explicit = recipe.model.model_dump(include=recipe.model.model_fields_set)
    if differences := _differences(architecture, architecture.model_copy(update=explicit)):
        raise UserError(
            f"train.start_from {start}: {differences}; they must be equal; correct section model, or leave it out"
        )
    model = ModelRecipe.model_validate(architecture.model_dump() | explicit)
    return revalidate(recipe.model_copy(update={"model": model}))


def _with_vocabulary_of(start: Path, recipe: Recipe) -> Recipe:
    """Return the recipe with the vocabulary size of a model or of the run; unchanged if neither can be read."""
    for directory in _candidates(start, recipe.directory):
        with suppress(UserError):
            size = read_model_metadata(directory).tgt_vocab_size
            tokenizer = recipe.tokenizer.model_copy(update={"vocab_size": size})
            return recipe.model_copy(update={"tokenizer": tokenizer})
    return recipe


def _candidates(start: Path, run_dir: Path) -> Iterator[Path]:
    with suppress(UserError):
        yield find_model(start)
    yield from reversed(list_checkpoints(run_dir))


def _architecture(start: Path, run_dir: Path) -> ModelRecipe:
    """Return the architecture of the start model, or of the newest readable checkpoint of the run."""
    for directory in _candidates(start, run_dir):
        with suppress(UserError):
            return read_model_recipe(directory)
    try:
        return read_model_recipe(find_model(start))
    except UserError as error:
        raise UserError(f"train.start_from is {start}, relative to {Path.cwd()}: {error}") from error


def require_start_model(recipe: Recipe) -> None:
    """Raise UserError, before preparing text, if the start model of a new run is damaged or has no optimizer state."""
    start = recipe.train.start_from
    if start is None or list_checkpoints(recipe.directory):
        return
    verify_directory(directory := find_model(start))
    if recipe.train.start_optimizer == "kept":
        _optimizer_file(directory)


def load_start_weights(model: TranslationModel, start_from: Path) -> Path:
    """Load the parameters of a model directory, checkpoint or run; return their directory.

    Raises:
        UserError: no such model, or another architecture, even with equal shapes (such as another number of heads).
        CorruptError: a file is damaged.
    """
    directory = find_model(start_from)
    verify_directory(directory)
    if differences := _differences(read_model_recipe(directory), model.recipe):
        raise UserError(f"train.start_from {directory}: {differences}; they must be equal; correct section model")
    load_tensors(model, read_tensors(directory / "model.safetensors"))
    return directory


def text_differences(start: Path, recipe: Recipe) -> str:
    """Describe languages and forms of text in which the start model differs from a run; "" if it does not.

    The tokenizer is that of the start model, so chosen options of another one have no effect.
    """
    metadata, data = read_model_metadata(start), recipe.data
    languages = f"{metadata.src_lang} to {metadata.tgt_lang}", f"{recipe.src_lang} to {recipe.tgt_lang}"
    options: dict[str, tuple[object, object]] = {
        "languages": languages,
        "data.reverse_target": (metadata.reverse_target, data.reverse_target),
        "data.unicode_form": (metadata.unicode_form, data.unicode_form),
    }
    options |= tokenizer_differences(start, recipe.tokenizer)
    pairs = {name: pair for name, pair in options.items() if pair[0] != pair[1]}
    return ", ".join(f"{name}: {old} in the start model and {new} in the recipe" for name, (old, new) in pairs.items())


def tokenizer_differences(start: Path, chosen: TokenizerRecipe) -> dict[str, tuple[object, object]]:
    """Return values in the start model and in the recipe of options that its reused tokenizer does not have."""
    found: dict[str, tuple[object, object]] = {}
    if not (chosen.lowercase or chosen.algorithm == "unigram" or chosen.user_symbols):
        return found
    tokenizers = Tokenizers.load(start)
    if chosen.lowercase and not tokenizers.tgt.lowercases():
        found["tokenizer.lowercase"] = (False, True)
    if chosen.algorithm == "unigram" != (algorithm := read_algorithm(tokenizers.tgt.model)):
        found["tokenizer.algorithm"] = (algorithm or "another", chosen.algorithm)
    if missing := [symbol for symbol in chosen.user_symbols if symbol not in tokenizers.src.user_symbols()]:
        found["tokenizer.user_symbols"] = (f"no {', '.join(missing)}", ", ".join(chosen.user_symbols))
    return found


def _differences(start: ModelRecipe, recipe: ModelRecipe) -> str:
    """Describe the differences: "model.d_model is 256 in the start model and 512 in the recipe"."""
    changeable = _CHANGEABLE - {"max_positions"} if recipe.positions == "learned" else _CHANGEABLE
    names = [name for name in ModelRecipe.model_fields if name not in changeable]
    pairs = [(f"model.{name}", getattr(start, name), getattr(recipe, name)) for name in names]
    return ", ".join(f"{name} is {a!r} in the start model and {b!r} in the recipe" for name, a, b in pairs if a != b)


def load_start_optimizer(optimizer: torch.optim.Optimizer, model: TranslationModel, directory: Path) -> None:
    """Load the optimizer state of a checkpoint; raises UserError for a model directory without it."""
    load_optimizer_tensors(optimizer, model, read_tensors(_optimizer_file(directory)))


def _optimizer_file(directory: Path) -> Path:
    path = directory / "optimizer.safetensors"
    if not path.exists():
        raise UserError(
            f"{directory} has no optimizer state; train.start_optimizer 'kept' needs a checkpoint "
            "(RUN/checkpoints/step-...); give one, or set it to 'fresh'"
        )
    return path


def freeze(model: TranslationModel, patterns: tuple[str, ...]) -> None:
    """Freeze parameters.

    A pattern is `encoder`, `decoder`, `embeddings`, or a parameter name with wildcards. Raises UserError if a pattern
    matches nothing, or if nothing is left to train.
    """
    weights = dict(model.named_parameters())
    frozen: set[str] = set()
    for pattern in patterns:
        matching = {name for name in weights for part in _PARTS.get(pattern, (pattern,)) if fnmatchcase(name, part)}
        if not matching:
            raise UserError(
                f"train.freeze: {pattern!r} matches no parameter; it must be encoder, decoder, embeddings "
                f"or a pattern of names such as {next(iter(weights))!r}; correct it"
            )
        frozen |= matching
    if len(frozen) == len(weights):
        raise UserError("train.freeze leaves nothing to train; freeze less")
    for name in frozen:
        weights[name].requires_grad_(False)
