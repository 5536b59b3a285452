"""What is measured: a model by its published name, or that of a recipe or a model directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
import torch

from nmt.checkpoint import load_model
from nmt.recipe import Recipe, UserError, load_recipe, parse_recipe

# The models of papers: section `model`, section `train` and pieces of the joint vocabulary.
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
    """A model to measure, and how it is trained.

    name:          as the user gave it
    recipe:        its corpora are not read
    src_vocab_size, tgt_vocab_size: pieces of either side
    """

    name: str
    recipe: Recipe
    src_vocab_size: int
    tgt_vocab_size: int


def find_model_spec(name: str, overrides: Sequence[str] = (), vocab_size: int | None = None) -> ModelSpec:
    """What `tiny`, `base`, `big`, the path of a recipe or that of a model means, with some options replaced.

    Raises UserError where it means nothing, and RecipeError for options that do not fit.
    """
    if name in PUBLISHED:
        model, train, pieces = PUBLISHED[name]
        return _spec(name, _parse(model, train, overrides), pieces, pieces, vocab_size)
    path = Path(name)
    if path.is_file():
        recipe = load_recipe(path, overrides)
        pieces = recipe.tokenizer.vocab_size
        return _spec(name, recipe, pieces, pieces, vocab_size)
    if not path.exists():
        raise UserError(
            f"{name!r} is no model; it must be {', '.join(PUBLISHED)}, a recipe (.toml) or the directory of a model; "
            "give one of these"
        )
    loaded = load_model(path, torch.device("cpu"))
    recipe = _parse(loaded.model.recipe.model_dump(mode="json", exclude_none=True), {}, overrides)
    return _spec(name, recipe, loaded.facts.src_vocab_size, loaded.facts.tgt_vocab_size, vocab_size)


def _parse(model: dict[str, Any], train: dict[str, Any], overrides: Sequence[str]) -> Recipe:
    corpora = [{"kind": "toy"}]  # a recipe must name some corpus; this one is not read
    tree = {"name": "bench", "src_lang": "en", "tgt_lang": "de", "model": model, "train": train}
    return parse_recipe(tomli_w.dumps({**tree, "data": {"train": corpora, "valid": corpora}}), overrides, "bench")


def _spec(name: str, recipe: Recipe, src_pieces: int, tgt_pieces: int, vocab_size: int | None) -> ModelSpec:
    return ModelSpec(name, recipe, vocab_size or src_pieces, vocab_size or tgt_pieces)
