"""Averages of checkpoints and of models."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save, save_file

from nmt.checkpoint import (
    average_checkpoints,
    average_models,
    average_tensors,
    load_model,
    model_files,
    model_tensors,
)
from nmt.errors import UserError
from nmt.recipe import Context
from nmt.storage.sealed import read_manifest, write_directory
from tests.calling import Nmt, one_line
from tests.test_checkpoint import CPU, METADATA, TINY, write_model
from tests.vectors import load_vectors


def test_the_average_is_a_model_with_mean_weights(tmp_path: Path) -> None:
    models = [write_model(tmp_path / f"m{seed}", seed) for seed in (1, 2, 3)]
    average_checkpoints([tmp_path / f"m{seed}" for seed in (1, 2, 3)], tmp_path / "mean")
    loaded = load_model(tmp_path / "mean", CPU)
    for name, parameter in loaded.model.named_parameters():
        parts = torch.stack([dict(model.named_parameters())[name].detach().double() for model in models])
        torch.testing.assert_close(parameter.detach().double(), parts.mean(0), rtol=1e-7, atol=1e-9)
    assert loaded.metadata.origin["averaged"] == ["m1", "m2", "m3"]
    assert (tmp_path / "mean" / "tokenizer.model").read_bytes() == b"pieces"


def seal_tensors(directory: Path, tensors: dict[str, torch.Tensor]) -> Path:
    directory.mkdir()
    save_file(tensors, directory / "model.safetensors")
    content = (directory / "model.safetensors").read_bytes()
    (directory / "model.safetensors").unlink()
    directory.rmdir()
    write_directory(directory, {"model.safetensors": content})
    return directory


def test_averages_match_fairseq(tmp_path: Path) -> None:
    table = load_vectors("fairseq_average.json")
    dtypes = {"a_f64": torch.float64, "b_f32": torch.float32, "c_i32": torch.int32}
    directories = [
        seal_tensors(tmp_path / key, {name: torch.tensor(table[key][name], dtype=dtypes[name]) for name in dtypes})
        for key in ("m0", "m1")
    ]
    mean = average_tensors(directories)
    assert mean["a_f64"].tolist() == table["avg"]["a_f64"]
    assert mean["b_f32"].tolist() == table["avg"]["b_f32"]
    assert mean["c_i32"].tolist() == table["avg"]["c_i32_trunc"]
    assert mean["c_i32"].dtype == torch.int32


def test_models_of_different_tokenizers_cannot_be_averaged(tmp_path: Path) -> None:
    for name in ("a", "b"):
        files = {"model.safetensors": save({"w": torch.zeros(2)}), "tokenizer.model": name.encode()}
        write_directory(tmp_path / name, files)
    with pytest.raises(UserError, match=r"b and .*a have different tokenizers"):
        average_tensors([tmp_path / "a", tmp_path / "b"])


def test_models_of_different_shape_cannot_be_averaged(tmp_path: Path) -> None:
    directories = [seal_tensors(tmp_path / str(size), {"w": torch.zeros(size)}) for size in (2, 3)]
    with pytest.raises(UserError, match="have different shapes"):
        average_tensors(directories)


# --- Several models ---------------------------------------------------------------------------------------------------


def test_a_model_is_averaged_with_its_fine_tuned_version(tmp_path: Path, nmt: Nmt) -> None:
    first = write_model(tmp_path / "first", 1)
    tensors = {name: tensor + 0.01 for name, tensor in model_tensors(first).items()}
    tuned = TINY.model_copy(update={"dropout": 0.3, "max_positions": 2 * TINY.max_positions})
    origin = {"recipe": "tuned", "step": 9, "moving_average": "step-00000009"}
    metadata = replace(METADATA, tags={"<news>": "en to de"}, origin=origin)
    write_directory(tmp_path / "tuned", model_files(tuned, tensors, {"tokenizer.model": b"pieces"}, metadata))
    status, out, err = nmt("average", tmp_path / "first", tmp_path / "tuned", "-o", tmp_path / "mean")
    assert (status, out.strip()) == (0, str(tmp_path / "mean"))
    assert err == f"averaged {tmp_path / 'first'}, {tmp_path / 'tuned'}\n"
    mean = load_model(tmp_path / "mean", CPU)
    assert (mean.metadata.tags, mean.model.recipe) == (metadata.tags, tuned)
    weights = [read_manifest(tmp_path / name)["model.safetensors"][1] for name in ("first", "tuned")]
    assert mean.metadata.origin == {"recipe": "tuned", "step": 9, "averaged": ["first", "tuned"], "weights": weights}
    for name, parameter in mean.model.named_parameters():
        torch.testing.assert_close(parameter, dict(first.named_parameters())[name] + 0.005)


@pytest.mark.parametrize("related", [1, 9])
def test_an_unrelated_model_in_an_average_is_warned_of(tmp_path: Path, nmt: Nmt, related: int) -> None:
    first, other = tmp_path / "first", tmp_path / "other"
    write_model(first, 1)
    write_model(other, 2)
    status, _, err = nmt("average", *[first] * related, other, "-o", tmp_path / "mean")
    assert status == 0
    similarity = 1 / math.sqrt(related**2 + 1)
    name = other if related > 1 else rf"({first}|{other})"
    assert re.search(f"the weights of {name} have little in common with the average", err)
    found = float(err.split("cosine similarity ")[1].split(")")[0])
    assert found == pytest.approx(similarity, abs=0.1)


@pytest.mark.parametrize(
    ("model", "metadata", "different"),
    [
        ({"norm_order": "pre"}, {}, "norm_order"),
        ({}, {"reverse_target": True}, "reverse_target"),
        ({}, {"unicode_form": "none", "context": Context(1, "source")}, "unicode_form, context"),
    ],
)
def test_models_that_compute_differently_cannot_be_averaged(
    tmp_path: Path, model: dict[str, Any], metadata: dict[str, Any], different: str
) -> None:
    weights = model_tensors(write_model(tmp_path / "first", 1))
    files = model_files(
        TINY.model_copy(update=model), weights, {"tokenizer.model": b"pieces"}, replace(METADATA, **metadata)
    )
    write_directory(tmp_path / "other", files)
    with pytest.raises(UserError, match=f"other and .*first have different {different};"):
        average_models([tmp_path / "first", tmp_path / "other"], tmp_path / "mean")
    assert not (tmp_path / "mean").exists()


@pytest.mark.parametrize(
    ("options", "problem"),
    [(("--last", 2, "-o", "mean"), "--last averages checkpoints of one run, got 2 paths"), ((), "needs -o DIR")],
)
def test_options_that_several_models_do_not_have(
    tmp_path: Path, nmt: Nmt, options: tuple[object, ...], problem: str
) -> None:
    status, _, err = nmt("average", tmp_path / "first", tmp_path / "other", *options)
    assert status == 2
    assert problem in one_line(err)
