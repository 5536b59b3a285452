"""Training of the GRU model: bit-identical resumption, and several processes."""

from pathlib import Path
from typing import Any

import pytest

from nmt.recipe import Recipe
from tests.train.run_tiny import final_files, metrics, train_in_processes, train_tiny, with_train, without_dropout

VARIANTS: list[dict[str, Any]] = [{}, {"attention": "multiplicative", "input_feeding": True}]


def with_gru(recipe: Recipe, run_dir: Path, **model: Any) -> Recipe:
    tree = recipe.model_dump(mode="json", exclude_none=True)
    kept = {name: tree["model"][name] for name in ("num_encoder_layers", "num_decoder_layers", "max_positions")}
    tree["model"] = kept | {"architecture": "gru", "d_model": 16, "dropout": 0.1} | model
    return with_train(Recipe.model_validate(tree), run_dir)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_resumed_run_has_the_same_bits(
    variant: dict[str, Any], tiny_recipe: Recipe, tiny_data: Path, tmp_path: Path
) -> None:
    whole, parts = (
        with_train(with_gru(tiny_recipe, tmp_path / name, **variant), ema_decay=0.9, max_steps=14, validate_every=14)
        for name in ("whole", "parts")
    )
    train_tiny(whole, tiny_data)
    train_tiny(with_train(parts, max_epochs=1), tiny_data)  # stops between two checkpoints
    train_tiny(parts, tiny_data)
    assert final_files(parts) == final_files(whole)
    assert set(final_files(whole)) == {"model.safetensors", "optimizer.safetensors", "average.safetensors"}


@pytest.mark.slow
def test_results_do_not_depend_on_the_world_size(tiny_recipe: Recipe, tiny_data: Path, tmp_path: Path) -> None:
    alone, split = (
        without_dropout(with_gru(tiny_recipe, tmp_path, input_feeding=True), tmp_path / name, max_steps=3)
        for name in ("alone", "split")
    )
    train_tiny(alone, tiny_data)
    train_in_processes(split, tiny_data, 2)
    assert metrics(split, "train/loss") == pytest.approx(metrics(alone, "train/loss"), rel=1e-5)
