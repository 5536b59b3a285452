"""Descriptions of models with invalid values, whose checksums match."""

from pathlib import Path

import pytest
import torch

from nmt.checkpoint import load_model, model_files, model_tensors
from nmt.errors import UserError
from nmt.model.transformer import Transformer
from nmt.recipe import DecodeRecipe, ModelRecipe
from nmt.storage.model_metadata import ModelMetadata
from nmt.storage.sealed import CorruptError, write_directory

RECIPE = ModelRecipe(d_model=8, d_ff=12, num_heads=2, num_encoder_layers=1, num_decoder_layers=1, max_positions=16)


def write_changed(directory: Path, old: str, new: str) -> None:
    """Write a model with a changed line in its description."""
    metadata = ModelMetadata("en", "de", 11, 11, "NFC", DecodeRecipe(), {"step": 7})
    files = model_files(RECIPE, model_tensors(Transformer(RECIPE, 11, 11)), {"tokenizer.model": b"pieces"}, metadata)
    description = files["model.toml"]
    assert isinstance(description, bytes) and f"{old}\n".encode() in description
    write_directory(directory, {**files, "model.toml": description.replace(f"{old}\n".encode(), f"{new}\n".encode())})


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("max_tokens = 256", "max_tokens = 'long'", "text.max_tokens = 'long'; it must be an integer"),
        ("src = 11", "", "vocabulary.src is missing"),
        ("[origin]", "[source]", "origin is missing"),
        ("format = 1", "", "format is missing"),
        ("d_model = 8", "d_model = []", "model.d_model = []; it must be an integer"),
        ("step = 7", "weights = 7", "origin.weights = 7; it must be a list in brackets"),
        ('src = "en"', "src = 5", "languages.src = 5; it must be text in quotes"),
        ('sides = "source"', "sides = 1", "context.sides = 1; it must be 'source' or 'both'"),
        ("size = 0", f"size = {2**64}", f"context.size = {2**64}; it must be less than or equal to 1000000"),
        ("beam_size = 4", "beam = 4", "unknown option 'decode.beam'; did you mean 'beam_size'?"),
    ],
)
def test_an_invalid_value_is_an_error_with_its_key(old: str, new: str, problem: str, tmp_path: Path) -> None:
    write_changed(tmp_path / "m", old, new)
    with pytest.raises(CorruptError) as caught:
        load_model(tmp_path / "m", "cpu")
    path = tmp_path / "m" / "model.toml"
    assert str(caught.value) == f"{path} is not a valid model description: {problem}; copy the model directory again"


def test_a_description_that_does_not_fit_the_parameters_is_an_error(tmp_path: Path) -> None:
    write_changed(tmp_path / "m", "d_ff = 12", "d_ff = 13")
    with pytest.raises(
        UserError, match=rf"the parameters of {tmp_path / 'm'} do not match the model: .* must be \(13,"
    ):
        load_model(tmp_path / "m", torch.device("cpu"))


def test_a_model_without_enough_memory_is_an_error(tmp_path: Path) -> None:
    write_changed(tmp_path / "m", "max_positions = 16", "max_positions = 1_000_000_000_000")
    with pytest.raises(UserError, match="cpu does not have enough memory"):
        load_model(tmp_path / "m", "cpu")
