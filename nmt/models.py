"""Builds a model of either architecture."""

from __future__ import annotations

from typing import assert_never

from nmt.model.transformer import Transformer
from nmt.recipe import ModelRecipe
from nmt.recurrent.model import GruModel

TranslationModel = Transformer | GruModel


def build_model(recipe: ModelRecipe, src_vocab_size: int, tgt_vocab_size: int) -> TranslationModel:
    """Build the model of a recipe and initialize its parameters, in float32 regardless of torch's default dtype.

    Raises ValueError for three-way tying of vocabularies of different sizes.
    """
    match recipe.architecture:
        case "transformer":
            return Transformer(recipe, src_vocab_size, tgt_vocab_size).float()
        case "gru":
            return GruModel(recipe, src_vocab_size, tgt_vocab_size).float()
        case _:
            assert_never(recipe.architecture)
