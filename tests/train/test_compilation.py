"""Conditions for one compiled graph and for micro-batches of one shape."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt.devices.precision import ComputeType, DeviceFeatures
from nmt.diagnostics.replay import ReplaySource, _single_process_recipe
from nmt.model.attention import can_use_varlen
from nmt.processes.distributed import World
from nmt.recipe import Recipe
from nmt.train import compilation
from nmt.train.compilation import has_fixed_shapes, is_one_graph
from nmt.train.state import TrainState

ALONE, ONE_OF_TWO = World(0, 1, torch.device("cpu")), World(0, 2, torch.device("cpu"))


def recipe_with(train: dict[str, Any], model: dict[str, Any]) -> Recipe:
    corpora = [{"kind": "toy"}]
    return Recipe.model_validate(
        {"name": "x", "src_lang": "en", "tgt_lang": "de", "data": {"train": corpora, "valid": corpora}}
        | {"train": {"compile": True} | train, "model": model}
    )


def on_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    """Choose kernels as on a GPU."""
    features = DeviceFeatures("cuda", capability)

    def choose_kernel(q: torch.Tensor, p: float) -> str:
        return "varlen" if can_use_varlen(features, q.dtype, q.shape[-1], p) else "sdpa"

    monkeypatch.setattr(compilation, "choose_kernel", choose_kernel)


@pytest.mark.parametrize(
    ("train", "model", "one_graph", "fixed"),
    [
        ({}, {}, True, True),
        ({"shapes": "fixed"}, {}, True, True),
        ({"shapes": "packed"}, {}, False, False),
        ({"compile": False}, {}, False, False),
        ({"compile": False, "shapes": "fixed"}, {}, False, True),
        ({"rdrop": 5.0}, {}, False, False),
        ({"guided_alignment": True}, {}, False, False),
        ({}, {"positions": "relative"}, False, False),
        ({}, {"attention_dropout": 0.1}, False, False),
        ({}, {"d_model": 96, "num_heads": 8}, False, False),  # head dimension 12
    ],
)
def test_compilation_on_a_gpu(
    train: dict[str, Any], model: dict[str, Any], one_graph: bool, fixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpu(monkeypatch, (9, 0))
    recipe = recipe_with(train, model)
    assert is_one_graph(recipe, ALONE, "bf16") is one_graph
    assert has_fixed_shapes(recipe, ALONE, "bf16") is fixed
    other_cases: list[tuple[World, ComputeType]] = [(ALONE, "fp32"), (ONE_OF_TWO, "bf16")]
    for world, precision in other_cases:
        assert not is_one_graph(recipe, world, precision)
        assert has_fixed_shapes(recipe, world, precision) is (recipe.train.shapes == "fixed")


@pytest.mark.parametrize(("capability", "one_graph"), [((7, 5), False), ((8, 0), True)])
def test_an_older_gpu_compiles_layers(
    capability: tuple[int, int], one_graph: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpu(monkeypatch, capability)
    assert is_one_graph(recipe_with({}, {}), ALONE, "fp16") is one_graph


def test_a_cpu_compiles_layer_by_layer_and_packs() -> None:
    for precision in ("fp32", "bf16"):
        assert not is_one_graph(recipe_with({}, {}), ALONE, precision)
        assert not has_fixed_shapes(recipe_with({}, {}), ALONE, precision)


def test_a_replay_has_the_micro_batches_of_several_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu(monkeypatch, (9, 0))
    for processes, fixed in ((1, True), (2, False)):
        (tmp_path / "state.json").write_text(json.dumps(asdict(TrainState(processes=processes))))
        recipe = _single_process_recipe(ReplaySource(tmp_path, 1, None, tmp_path, recipe_with({}, {})), tmp_path)
        assert has_fixed_shapes(recipe, ALONE, "bf16") is fixed
