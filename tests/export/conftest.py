"""Tiny model directories with random weights."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nmt.checkpoint import model_files, model_tensors
from nmt.grammar import ToyPair, generate
from nmt.model.transformer import Transformer
from nmt.recipe import TERM_MARKERS, DecodeRecipe, ModelRecipe, TokenizerRecipe
from nmt.special_ids import EOS_ID
from nmt.storage.model_metadata import ModelMetadata
from nmt.storage.sealed import write_directory
from nmt.text.tokenizer import Tokenizers, train_tokenizers

MakeModel = Callable[..., Path]

SIZES = {"d_model": 32, "d_ff": 48, "num_heads": 4, "num_encoder_layers": 2, "num_decoder_layers": 2}


@pytest.fixture(scope="session")
def pairs() -> list[ToyPair]:
    return list(generate("train", 300, seed=1))


@pytest.fixture(scope="session")
def tokenizers_of(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[ToyPair]
) -> dict[tuple[bool, bool, bool], Tokenizers]:
    """Tokenizers by (joint, lowercase, marks_terms)."""

    def train(joint: bool, lowercase: bool, marks_terms: bool) -> Tokenizers:
        sizes: dict[str, object] = {"vocab_size": 400 if lowercase or not joint else 420, "lowercase": lowercase}
        sizes["user_symbols"] = TERM_MARKERS if marks_terms else ()
        recipe = TokenizerRecipe.model_validate({"joint": joint, "algorithm": "bpe" if joint else "unigram", **sizes})
        folder = tmp_path_factory.mktemp("tokenizer")
        return train_tokenizers(lambda: ((pair.src, pair.tgt) for pair in pairs), recipe, folder)

    keys = ((True, False, False), (False, False, False), (True, True, False), (True, False, True))
    return {key: train(*key) for key in keys}


@pytest.fixture(scope="session")
def make_model(
    tmp_path_factory: pytest.TempPathFactory, tokenizers_of: dict[tuple[bool, bool, bool], Tokenizers]
) -> MakeModel:
    """Return a function that makes a model directory, with random weights large enough for diverse translations."""

    def make(
        *,
        joint: bool = True,
        lowercase: bool = False,
        marks_terms: bool = False,
        decode: DecodeRecipe | None = None,
        seed: int = 0,
        text: dict[str, Any] | None = None,
        **changes: object,
    ) -> Path:
        tokenizers = tokenizers_of[joint, lowercase, marks_terms]
        recipe = ModelRecipe.model_validate({**SIZES, "max_positions": 96, **changes})
        torch.manual_seed(seed)
        model = Transformer(recipe, tokenizers.src.vocab_size, tokenizers.tgt.vocab_size)
        with torch.no_grad():
            for name, parameter in model.named_parameters():  # default biases and norms would hide errors
                parameter.mul_(2.6 if parameter.dim() > 1 else 1.3)
                parameter.add_(torch.randn_like(parameter) * (0.05 if "embedding" in name else 0.1))
            last = model.decoder.norm
            if recipe.norm_order == "post":
                last = model.decoder.layers[-1].feed_forward_residual.norm
            if isinstance(last, nn.LayerNorm):  # makes EOS likely
                model.output.weight[EOS_ID] += 12 * last.bias
            elif model.output.bias is not None:
                model.output.bias[EOS_ID] += 4.0
        metadata = ModelMetadata(
            src_lang="en",
            tgt_lang="de",
            src_vocab_size=tokenizers.src.vocab_size,
            tgt_vocab_size=tokenizers.tgt.vocab_size,
            unicode_form="NFC",
            decode=decode or DecodeRecipe(length_penalty="power", length_alpha=1.0, max_extra_tokens=10),
        )
        metadata = replace(metadata, **(text or {}))
        directory = tmp_path_factory.mktemp("model") / "model"
        write_directory(directory, model_files(recipe, model_tensors(model), tokenizers.files(), metadata))
        return directory

    return make


@pytest.fixture(scope="session")
def lines(pairs: list[ToyPair]) -> list[str]:
    """Sentences of different lengths."""
    rng = random.Random(3)
    words = sorted({word for pair in pairs for word in pair.src.split()})
    return [" ".join(rng.choices(words, k=rng.randint(1, 14))) for _ in range(30)]
