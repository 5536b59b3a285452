"""Variants of the architecture learn, resume bit-identically, and can be averaged."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt.checkpoint import average_checkpoints, load_model, read_tensors
from nmt.errors import UserError
from nmt.recipe import Recipe
from nmt.storage.run_folder import list_checkpoints
from tests.train.run_tiny import final_files, metrics, train_tiny, with_train

VARIANTS: list[dict[str, object]] = [
    {"norm": "rms", "activation": "swiglu", "activation_dropout": 0.1, "d_head": 12},
    {"positions": "learned"},
    {"positions": "rotary"},
    {"positions": "relative", "max_distance": 3},
]


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_variant_learns_resumes_and_is_averaged(
    variant: dict[str, object], tiny_recipe: Recipe, tiny_data: Path, tmp_path: Path
) -> None:
    tree = tiny_recipe.model_dump(mode="json", exclude_none=True)
    tree["model"] |= variant
    recipe = with_train(Recipe.model_validate(tree), max_steps=12, learning_rate=0.01)
    train_tiny(recipe, tiny_data)
    losses = metrics(recipe, "train/loss")
    assert sum(losses[-3:]) / 3 < losses[0] - 0.1
    whole = final_files(recipe)
    shutil.rmtree(list_checkpoints(recipe.directory)[-1])
    train_tiny(recipe, tiny_data)
    assert final_files(recipe) == whole

    checkpoints = list_checkpoints(recipe.directory)[-2:]
    average_checkpoints(checkpoints, tmp_path / "average")
    models = [load_model(path, torch.device("cpu")).model for path in (*checkpoints, tmp_path / "average")]
    assert models[2].recipe == recipe.model
    for first, second, mean in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(mean, (first + second) / 2)


@pytest.mark.slow
def test_learned_positions_have_a_fixed_number_of_embeddings(
    tiny_recipe: Recipe, tiny_data: Path, tmp_path: Path
) -> None:
    once: dict[str, Any] = {"max_steps": 1, "validate_every": 1, "save_every": 1}
    tree = tiny_recipe.model_dump(mode="json", exclude_none=True)
    tree["model"]["positions"] = "learned"
    train_tiny(with_train(Recipe.model_validate(tree), **once), tiny_data)
    start = list_checkpoints(tiny_recipe.directory)[-1]

    frozen = with_train(
        Recipe.model_validate(tree), tmp_path / "frozen", **once, start_from=str(start), freeze=["embeddings"]
    )
    train_tiny(frozen, tiny_data)
    before, after = (
        read_tensors(path / "model.safetensors") for path in (start, list_checkpoints(frozen.directory)[-1])
    )
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]) == ("embedding" in name or name == "output.weight"), name

    tree["model"]["max_positions"] = 64
    longer = with_train(Recipe.model_validate(tree), tmp_path / "longer", **once, start_from=str(start))
    with pytest.raises(UserError, match=r"max_positions is 32 in the initial model and 64 in the recipe; they"):
        train_tiny(longer, tiny_data)
