"""The validation nll of an averaged model: computed, compared with the best checkpoint, or read from the report."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nmt import pipeline
from nmt.recipe import Recipe
from nmt.storage.run_folder import list_checkpoints
from nmt.storage.sealed import manifest_digest
from nmt.train.state import TrainState
from nmt.train.validate import Validation, validate_average
from tests.train.run_tiny import train_tiny, with_train

CPU = torch.device("cpu")


@pytest.fixture
def run(tiny_recipe: Recipe, tiny_data: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Recipe, TrainState]:
    monkeypatch.setattr(Recipe, "data_directory", property(lambda self: tiny_data))
    recipe = with_train(tiny_recipe, max_steps=6, save_every=3, keep_last=2, average_count=1)
    return recipe, train_tiny(recipe, tiny_data)


@pytest.mark.slow
def test_the_model_of_one_checkpoint_has_its_nll(run: tuple[Recipe, TrainState]) -> None:
    recipe, state = run
    checkpoints = pipeline._update_model(recipe)
    assert validate_average(recipe, state, checkpoints, CPU) is None
    nll = validate_average(recipe, state, list_checkpoints(recipe.directory), CPU)  # as if the model were an average
    assert state.best_step == 6
    assert nll == pytest.approx(state.best_validation["valid/nll"], abs=1e-6)


@pytest.mark.slow
def test_an_average_worse_than_the_best_checkpoint_is_reported(
    run: tuple[Recipe, TrainState], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, state = run
    recipe = with_train(recipe, average_count=2)
    averaged = pipeline._update_model(recipe)
    state = replace(state, best_validation={"valid/nll": 2.0}, best_step=6)
    for nll, is_reported in ((2.005, False), (2.02, True)):
        monkeypatch.setattr("nmt.train.validate.validate", lambda *_, nll=nll: Validation(nll, nll))
        capsys.readouterr()
        assert validate_average(recipe, state, averaged, CPU) == nll
        assert (
            "validation nll of 2.0200, worse than that of step 6 (2.0000)" in capsys.readouterr().err
        ) == is_reported


@pytest.mark.slow
def test_the_nll_of_the_same_model_is_read_from_the_report(
    run: tuple[Recipe, TrainState], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, state = run
    averaged = pipeline._update_model(with_train(recipe, average_count=2))
    monkeypatch.setattr("nmt.train.validate.validate", lambda *_: Validation(3.0, 3.0))
    digest = manifest_digest(recipe.directory / "model")
    for report, expected in (
        ({"model": digest, "training": {"average_nll": 2.5}}, 2.5),
        ({"model": digest, "training": {}}, 3.0),  # of an earlier version
        ({"model": "other", "training": {"average_nll": 2.5}}, 3.0),
        ({"model": digest, "training": {"average_nll": 2.5, "valid": "of another validation set"}}, 3.0),
    ):
        (recipe.directory / "report.json").write_text(json.dumps(report), encoding="utf-8")
        assert validate_average(recipe, state, averaged, CPU) == expected
