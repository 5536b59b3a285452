"""Each variant of the architecture learns, resumes to the bit, and can be averaged."""

import shutil
from pathlib import Path

import pytest
import torch

from nmt.checkpoint import average_checkpoints, load_model
from nmt.recipe import Recipe
from nmt.storage.run_folder import list_checkpoints
from tests.train.run_tiny import final_files, metrics, train_tiny, with_train

VARIANTS: list[dict[str, object]] = [
    {"norm": "rms"},
    {"activation": "swiglu", "activation_dropout": 0.1},
    {"d_head": 12},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_variant_learns_resumes_and_is_averaged(
    variant: dict[str, object], tiny_recipe: Recipe, tiny_data: Path, tmp_path: Path
) -> None:
    tree = tiny_recipe.model_dump(mode="json", exclude_none=True)
    tree["model"] |= variant
    recipe = with_train(Recipe.model_validate(tree))
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
