"""Which runs get one graph of model and loss, and which micro-batches of one shape."""

from typing import Any

import pytest
import torch

from nmt.distributed import World
from nmt.recipe import Recipe
from nmt.train import compilation
from nmt.train.compilation import has_fixed_shapes, is_one_graph

ALONE, AMONG_TWO = World(0, 1, torch.device("cpu")), World(0, 2, torch.device("cpu"))


def recipe_with(train: dict[str, Any], model: dict[str, Any]) -> Recipe:
    embedded = [{"kind": "embedded"}]
    return Recipe.model_validate(
        {"name": "x", "src_lang": "en", "tgt_lang": "de", "data": {"train": embedded, "valid": embedded}}
        | {"train": {"compile": True} | train, "model": model}
    )


@pytest.mark.parametrize(
    ("train", "model", "one_graph", "fixed"),
    [
        ({}, {}, True, True),
        ({"shapes": "fixed"}, {}, True, True),
        ({"shapes": "packed"}, {}, False, False),
        ({"compile": False}, {}, False, False),
        ({"compile": False, "shapes": "fixed"}, {}, False, True),
        ({"rdrop": 5.0}, {}, False, False),
        ({}, {"attention_dropout": 0.1}, False, False),
    ],
)
def test_what_a_gpu_gets(
    train: dict[str, Any], model: dict[str, Any], one_graph: bool, fixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def choose_kernel(q: torch.Tensor, p: float) -> str:
        """As on a GPU."""
        return "varlen" if q.dtype == torch.bfloat16 and not p else "matmul"

    monkeypatch.setattr(compilation, "choose_kernel", choose_kernel)
    recipe = recipe_with(train, model)
    assert is_one_graph(recipe, ALONE, "bf16") is one_graph
    assert has_fixed_shapes(recipe, ALONE, "bf16") is fixed
    for world, precision in ((ALONE, "fp32"), (AMONG_TWO, "bf16")):
        assert not is_one_graph(recipe, world, precision)
        assert has_fixed_shapes(recipe, world, precision) is (recipe.train.shapes == "fixed")


def test_a_cpu_compiles_layer_by_layer_and_packs() -> None:
    for precision in ("fp32", "bf16"):
        assert not is_one_graph(recipe_with({}, {}), ALONE, precision)
        assert not has_fixed_shapes(recipe_with({}, {}), ALONE, precision)
