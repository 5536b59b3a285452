"""Models to benchmark: published ones by name, recipes and model directories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from nmt.data.reused_tokenizers import expected_vocab_sizes
from nmt.errors import UserError
from nmt.recipe import NO_LANGUAGE, Recipe, load_recipe, parse_recipe
from nmt.recipe.packaged import packaged_recipes
from nmt.storage.model_metadata import DEFAULT_MAX_TOKENS, read_model_toml
from nmt.storage.run_folder import find_model
from nmt.train.warm_start import with_start_model

# Sections `model` and `train` and size of the joint vocabulary.
# tiny: Wu et al. 2021, Multi30k; base and big: Vaswani et al. 2017, table 3, English-German.
_TINY_MODEL = {
    "num_encoder_layers": 4,
    "num_decoder_layers": 4,
    "d_model": 128,
    "d_ff": 256,
    "num_heads": 4,
    "dropout": 0.3,
}
_BIG_MODEL = {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout": 0.3}
PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "tiny": (_TINY_MODEL, {"batch_tokens": 8_192}, 10_000),
    "base": ({}, {"batch_tokens": 25_000}, 37_000),
    "big": (_BIG_MODEL, {"batch_tokens": 25_000}, 37_000),
}


@dataclass(frozen=True)
class ModelSpec:
    """A model to benchmark: the recipe, whose corpora are not read, and the vocabulary sizes."""

    recipe: Recipe
    src_vocab_size: int
    tgt_vocab_size: int


def named_path(name: str) -> Path:
    """Return the path of a model or recipe, or of the packaged recipe of that name."""
    path = Path(name)
    return path if path.exists() else packaged_recipes().get(name, path)


def find_model_spec(name: str, overrides: Sequence[str] = (), vocab_size: int | None = None) -> ModelSpec:
    """Look up a published model or a packaged recipe by name, or a recipe or model directory by path.

    A recipe for fine-tuning gets the architecture of its initial model, as in training.

    Raises UserError for an unknown name and RecipeError for invalid overrides.
    """
    path = named_path(name)
    if name in PUBLISHED:
        model, train, vocabulary = PUBLISHED[name]
        recipe = _parse(model, train, overrides)
        src_size = tgt_size = vocabulary
    elif path.is_file():
        recipe = with_start_model(load_recipe(path, overrides))
        src_size, tgt_size = expected_vocab_sizes(recipe)
    elif path.exists():
        architecture, metadata = read_model_toml(find_model(path) / "model.toml")
        max_tokens = min(metadata.max_tokens, architecture.max_positions - 1)  # one position for EOS
        model = architecture.model_dump(mode="json", exclude_none=True)
        recipe = _parse(model, {}, overrides, metadata.src_lang, max_tokens)
        src_size, tgt_size = metadata.src_vocab_size, metadata.tgt_vocab_size
    else:
        raise UserError(
            f"unknown model {name!r}; it must be {', '.join(PUBLISHED)}, a recipe (.toml), the name of one that `nmt "
            "recipes` lists, or a model directory"
        )
    return ModelSpec(recipe, vocab_size or src_size, vocab_size or tgt_size)


def _parse(
    model: dict[str, Any],
    train: dict[str, Any],
    overrides: Sequence[str],
    src_lang: str = "en",
    max_tokens: int = DEFAULT_MAX_TOKENS,
) -> Recipe:
    corpora = [{"kind": "toy"}]  # required in a recipe, but not read
    if src_lang == NO_LANGUAGE:
        corpora = [{"kind": "monolingual", "path": "text"}]
    data = {"train": corpora, "valid": corpora, "max_tokens": max_tokens}
    tree = {"name": "bench", "src_lang": src_lang, "tgt_lang": "de", "model": model, "train": train, "data": data}
    return parse_recipe(tomli_w.dumps(tree), overrides, "bench")
