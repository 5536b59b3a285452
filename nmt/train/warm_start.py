"""Fine-tuning: start from the parameters and optimizer state of a trained model, and freeze parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from nmt.checkpoint import load_tensors, read_tensors
from nmt.data.reused_tokenizers import expected_vocab_sizes, find_tokenizers, with_symbols_of
from nmt.errors import RecipeError, UserError
from nmt.logs import is_first_rank, warn
from nmt.models import TranslationModel, build_uninitialized
from nmt.recipe import DecodeRecipe, ModelRecipe, Recipe, TokenizerRecipe, explain, revalidate
from nmt.recipe.corpora import directions
from nmt.recipe.model import DROPOUT_OPTIONS
from nmt.recipe.toml import toml_value
from nmt.storage.model_metadata import ModelMetadata, read_model_metadata, read_model_recipe, warn_of_run
from nmt.storage.run_folder import find_model, list_checkpoints
from nmt.storage.sealed import manifest_digest, verify_directory
from nmt.text.tokenizer import Tokenizers
from nmt.train.optimizer import Adam, load_optimizer_tensors
from nmt.train.state import TrainState

# Parameters with a row per token.
_BY_TOKEN = ("src_embedding.weight", "tgt_embedding.weight", "output.weight", "output.bias")
# Options of the model section that may differ from those of the initial model.
_CHANGEABLE = {*DROPOUT_OPTIONS, "max_positions"}
_ALIGNMENT_OPTIONS = {"alignment_layer", "alignment_heads", "alignment_at"}
_PARTS = {
    "encoder": ("encoder.*",),
    "decoder": ("decoder.*",),
    "embeddings": ("src_embedding.*", "tgt_embedding.*", "output.weight"),
}


def with_start_model(recipe: Recipe, *, warns: bool = False) -> Recipe:
    """Return the recipe with the architecture of the initial model for model options that are not set.

    The cross-attention for alignments is also that of the initial model, which may have been trained for it, unless
    the recipe chooses one. The tokenizer section becomes that of the reused tokenizers. The checkpoints of the run are
    used if the initial model no longer exists.

    warns: whether to warn of tokenizer options in the recipe that have no effect

    Raises:
        UserError: no such model, or another architecture.
        RecipeError: other sections of the recipe do not fit the architecture or the tokenizers.
        TypeError: not a recipe.
    """
    if not isinstance(recipe, Recipe):
        raise TypeError(f"recipe must be a Recipe, got {type(recipe).__name__}; use nmt.recipe.load_recipe(PATH)")
    start = recipe.train.start_from
    if (source := start or recipe.tokenizer.start_from) is None:
        return recipe
    if start is not None:
        architecture, decode = _read_start(start, recipe.directory)
        explicit = recipe.model.model_dump(include=recipe.model.model_fields_set)
        if differences := _differences(architecture, architecture.model_copy(update=explicit)):
            raise UserError(
                f"train.start_from {start}: {differences}; they must be equal; correct or remove the model section"
            )
        try:
            model = ModelRecipe.model_validate(architecture.model_dump() | explicit)
        except ValidationError as error:  # such as a dropout option of the other architecture
            raise RecipeError(f"train.start_from {start}: {explain(error, ModelRecipe)}") from error
        recipe = recipe.model_copy(update={"model": model, "decode": _with_alignments_of(decode, recipe.decode)})
    recipe = _with_tokenizer_of(source, recipe, warns=warns)
    if recipe.model.tied_embeddings == "three-way" and not recipe.tokenizer.joint:
        raise RecipeError(
            f"{source} has one tokenizer per language, but three-way tied embeddings need one vocabulary; set "
            "model.tied_embeddings to 'decoder', or reuse a joint tokenizer"
        )
    return revalidate(recipe)


def _with_tokenizer_of(start: Path, recipe: Recipe, *, warns: bool) -> Recipe:
    """Return the recipe with the tokenizer options of a model or of the run; unchanged if neither can be read."""
    tokenizer = recipe.tokenizer
    for directory in _candidates(start, recipe.directory):
        with suppress(UserError):
            loaded = Tokenizers.load(directory)
            reused = tokenizer_options(with_symbols_of(recipe, loaded), tokenizer)
            given = {name: getattr(tokenizer, name) for name in reused if name in tokenizer.model_fields_set}
            if _may_have_trained(given.get("vocab_size"), loaded, reused):
                del given["vocab_size"]
            given.pop("user_symbols", None)  # missing symbols are added
            ignored = [f"tokenizer.{name} = {toml_value(x)}" for name, x in given.items() if x != reused[name]]
            if ordinary := [symbol for symbol in tokenizer.user_symbols if symbol not in reused["user_symbols"]]:
                ignored.append(f"tokenizer.user_symbols = {toml_value(ordinary)} (already ordinary tokens)")
            if ignored and warns and is_first_rank():
                options = ", ".join(ignored)
                warn(f"the tokenizer of {start} is reused, so these options have no effect: {options}; remove them")
            return recipe.model_copy(update={"tokenizer": tokenizer.model_copy(update=reused)})
    return recipe


def _may_have_trained(vocab_size: int | None, loaded: Tokenizers, reused: dict[str, Any]) -> bool:
    """Return whether `tokenizer.vocab_size` may be the option with which a reused tokenizer was trained.

    Symbols that were added later make the vocabulary larger. A character or byte vocabulary may be smaller than the
    option.
    """
    smallest = loaded.tgt.vocab_size - len(loaded.tgt.user_symbols())
    is_maximum = reused["algorithm"] in ("char", "byte")
    return vocab_size is not None and smallest <= vocab_size and (is_maximum or vocab_size <= reused["vocab_size"])


def tokenizer_options(tokenizers: Tokenizers, chosen: TokenizerRecipe) -> dict[str, Any]:
    """Return the options of trained tokenizers; `user_symbols` are the symbols of `chosen` that they have.

    The number of training pairs is unknown and gets the default.
    """
    known = tokenizers.src.user_symbols()
    return {
        **tokenizers.tgt.options(),
        "joint": tokenizers.joint,
        "user_symbols": tuple(symbol for symbol in chosen.user_symbols if symbol in known),
        "training_pairs": TokenizerRecipe.model_fields["training_pairs"].default,
    }


def _candidates(start: Path, run_dir: Path) -> Iterator[Path]:
    with suppress(UserError):
        yield find_tokenizers(start)
    yield from reversed(list_checkpoints(run_dir))


def _read_start(start: Path, run_dir: Path) -> tuple[ModelRecipe, DecodeRecipe]:
    """Read architecture and decoding options of the initial model, or of the newest readable checkpoint of the run."""
    for directory in _candidates(start, run_dir):
        with suppress(UserError):
            return read_model_recipe(directory), read_model_metadata(directory).decode
    try:
        directory = find_model(start)
        return read_model_recipe(directory), read_model_metadata(directory).decode
    except UserError as error:
        raise UserError(f"train.start_from is {start.absolute()}: {error}") from error


def _with_alignments_of(start: DecodeRecipe, chosen: DecodeRecipe) -> DecodeRecipe:
    """Return `chosen` with the alignment options of the initial model, unless it sets one of them."""
    if chosen.model_fields_set & _ALIGNMENT_OPTIONS:
        return chosen
    return chosen.model_copy(update=start.model_dump(include=_ALIGNMENT_OPTIONS))


def require_start_model(recipe: Recipe) -> None:
    """Raise UserError, before preparing text, if the initial model of a new run is damaged.

    Also raises it for invalid patterns of `train.freeze`, if `train.start_optimizer` is "kept" and the model has no
    optimizer state, and if symbols are added although the optimizer state is kept or source embeddings are frozen.
    """
    start = recipe.train.start_from
    if start is None and not recipe.train.freeze:
        return
    model = build_uninitialized(recipe.model, *expected_vocab_sizes(recipe), torch.device("meta"))
    freeze(model, recipe.train.freeze)
    if start is None or list_checkpoints(recipe.directory):
        return
    directory = find_model(start)
    verify_directory(directory)
    if recipe.train.start_optimizer == "kept":
        _optimizer_file(directory)
    if not (added := _added_rows(model, read_model_metadata(directory))):
        return
    wrong = f"tags or other symbols of the recipe are missing from the vocabulary of {directory}"
    if recipe.train.start_optimizer == "kept":
        raise UserError(
            f"train.start_optimizer is 'kept', and {wrong}; the optimizer state must have the same vocabulary; set "
            "start_optimizer to 'fresh'"
        )
    source = model.src_embedding.weight
    if not source.requires_grad and any(model.get_parameter(name) is source for name in added):
        raise UserError(
            f"train.freeze includes the source embeddings, and {wrong}; these must be trained, because all of them "
            "start as the same vector; remove the embeddings from train.freeze"
        )


def _added_rows(model: TranslationModel, start: ModelMetadata) -> list[str]:
    """Return the names of the parameters with rows for tokens that the initial model does not have."""
    return [
        name
        for name, parameter in model.named_parameters()
        if name in _BY_TOKEN
        and len(parameter) > (start.src_vocab_size if name.startswith("src_") else start.tgt_vocab_size)
    ]


def load_start_weights(model: TranslationModel, start_from: Path) -> Path:
    """Load the parameters of a model directory, checkpoint or run; return their directory.

    Raises:
        UserError: no such model, or another architecture, even with equal shapes (such as another number of heads).
        CorruptError: a file is damaged.
    """
    directory = find_model(start_from)
    verify_directory(directory)
    warn_of_run(start_from, read_model_metadata(directory))
    if differences := _differences(read_model_recipe(directory), model.recipe):
        raise UserError(f"train.start_from {directory}: {differences}; they must be equal; correct the model section")
    load_tensors(model, _with_new_tokens(model, read_tensors(directory / "model.safetensors")))
    return directory


def _with_new_tokens(model: TranslationModel, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Append a row for each token that only the model has: the mean of the other rows (Hewitt 2021).

    With random embeddings, a new token could have the highest probability everywhere.
    """
    for name, parameter in model.named_parameters():
        if name in tensors and name in _BY_TOKEN:
            num_new = len(parameter) - len(tensors[name])
            mean = tensors[name].mean(dim=0, keepdim=True)
            tensors[name] = torch.cat([tensors[name], *[mean] * num_new])
    return tensors


def changed_start_model(recipe: Recipe, state: TrainState) -> str:
    """Return a warning if the initial model is no longer the one that the run of `state` started from, else ""."""
    start = recipe.train.start_from
    with suppress(UserError):  # the initial model may be gone
        if start is not None and state.start not in ("", manifest_digest(find_model(start))):
            return (
                f"{start} is no longer the model that {recipe.directory} started from; the run keeps its own weights; "
                "choose another name to start from the new model"
            )
    return ""


def text_differences(start: Path, recipe: Recipe) -> str:
    """Describe how the text of an initial model differs from that of a run; "" if it does not.

    Compares the directions, the target order and the normalization; also context and tags, if the initial model was
    trained with them.
    """
    metadata, data = read_model_metadata(start), recipe.data
    trained, chosen = metadata.directions, directions(data.train, recipe)
    sides, tags = metadata.context.sides, ", ".join(metadata.tags)
    options = {
        "languages": (", ".join(trained), ", ".join(trained if set(chosen) <= set(trained) else chosen)),
        "data.reverse_target": (metadata.reverse_target, data.reverse_target),
        "data.unicode_form": (metadata.unicode_form, data.unicode_form),
        "data.context": (metadata.context.size, data.context if metadata.context.size else 0),
        "data.context_sides": (sides, data.context_sides if metadata.context.has_target and data.context else sides),
        "tags of data.train": (tags, tags if data.tags or not tags else "none"),
    }
    pairs = {name: pair for name, pair in options.items() if pair[0] != pair[1]}
    return ", ".join(f"{key}: {old} in the initial model and {new} in the recipe" for key, (old, new) in pairs.items())


def _differences(start: ModelRecipe, recipe: ModelRecipe) -> str:
    """Describe the differences: "model.d_model is 256 in the initial model and 512 in the recipe"."""
    changeable = _CHANGEABLE - {"max_positions"} if recipe.positions == "learned" else _CHANGEABLE
    names = [name for name in ModelRecipe.model_fields if name not in changeable]
    pairs = [(f"model.{name}", getattr(start, name), getattr(recipe, name)) for name in names]
    return ", ".join(f"{name} is {a!r} in the initial model and {b!r} in the recipe" for name, a, b in pairs if a != b)


def load_start_optimizer(optimizer: Adam, model: TranslationModel, directory: Path) -> None:
    """Load the optimizer state of a checkpoint; raises UserError for a model directory without it."""
    load_optimizer_tensors(optimizer, model, read_tensors(_optimizer_file(directory)))


def _optimizer_file(directory: Path) -> Path:
    path = directory / "optimizer.safetensors"
    if not path.exists():
        raise UserError(
            f"{directory} has no optimizer state; train.start_optimizer 'kept' needs a checkpoint "
            "(RUN/checkpoints/step-...); set train.start_from to one, or train.start_optimizer to 'fresh'"
        )
    return path


def freeze(model: TranslationModel, patterns: tuple[str, ...]) -> None:
    """Freeze parameters.

    A pattern is `encoder`, `decoder`, `embeddings`, or a parameter name with wildcards. Tied embeddings have several
    names. Raises UserError if a pattern matches nothing, or if nothing is left to train.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    frozen: set[Tensor] = set()
    for pattern in patterns:
        globs = _PARTS.get(pattern, (pattern,))
        matching = {x for name, x in parameters.items() if any(fnmatchcase(name, glob) for glob in globs)}
        if not matching:
            raise UserError(
                f"train.freeze: {pattern!r} matches no parameter; it must be encoder, decoder, embeddings "
                f"or a name pattern such as {next(iter(parameters))!r}; correct it"
            )
        frozen |= matching
    if len(frozen) == len(set(parameters.values())):
        raise UserError("train.freeze leaves no parameters to train; freeze fewer")
    for parameter in frozen:
        parameter.requires_grad_(False)
