"""The validation nll of an averaged model: computed, compared with the best checkpoint, or read from the report."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nmt.pipeline import averaging
from nmt.recipe import Recipe
from nmt.storage.run_folder import list_checkpoints
from nmt.storage.sealed import manifest_digest
from nmt.train.state import TrainState
from nmt.train.validate import Validation, validate_average
from tests.train.run_tiny import train_tiny, with_train

CPU = torch.device("cpu")


@pytest.fixture
def average(tiny_recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> Callable[..., float | None]:
    """`validate_average` without files: for the nll that it would compute, the state, report and number of models."""
    tiny_recipe.directory.mkdir(parents=True)

    def average(nll: float, state: TrainState, report: str = "", count: int = 2, kind: str = "last") -> float | None:
        recipe = with_train(tiny_recipe, ema_decay=0.9, average=kind)
        (recipe.directory / "report.json").write_text(report, encoding="utf-8")
        replaced: dict[str, Any] = {
            "manifest_digest": lambda _: "the model",
            "load_model": lambda *_: SimpleNamespace(model=None),
            "TrainingLoss": SimpleNamespace(from_recipe=lambda *_: None),
            "PairStore": lambda *_: None,
            "validate": lambda *_: Validation(loss=-1.0, nll=nll),
        }
        for name, value in replaced.items():
            monkeypatch.setattr(f"nmt.train.validate.{name}", value)
        return validate_average(recipe, state, [Path(str(number)) for number in range(count)], CPU)

    return average


@pytest.mark.parametrize(
    ("nll", "best", "is_worse"),
    [(2.0, 2.0, False), (2.0099, 2.0, False), (2.0101, 2.0, True), (1.0, 2.0, False), (9.0, None, False)],
)
def test_an_average_is_worse_beyond_the_noise(
    nll: float,
    best: float | None,
    is_worse: bool,
    average: Callable[..., float | None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    state = TrainState(best_step=1_000, best_validation={} if best is None else {"valid/nll": best})
    assert average(nll, state) == nll
    warning = f"the average of 2 checkpoints has a validation nll of {nll:.4f}, worse than that of step 1,000 (2.0000)"
    assert (warning in capsys.readouterr().err) is is_worse


def test_a_single_checkpoint_and_the_ema_are_not_validated_again(average: Callable[..., float | None]) -> None:
    state = TrainState()
    assert [average(3.0, state, count=count) for count in (0, 1, 2, 3)] == [None, None, 3.0, 3.0]
    assert average(3.0, state, kind="ema") is None


@pytest.mark.parametrize(
    ("report", "valid", "expected"),
    [
        ({"model": "the model", "training": {"average_nll": 2.5, "valid": "a"}}, "a", 2.5),
        ({"model": "the model", "training": {"average_nll": 2.5, "valid": "a"}}, "b", 3.0),
        ({"model": "the model", "training": {"average_nll": 2.5, "valid": "a"}}, "", 3.0),
        ({"model": "the model", "training": {"average_nll": 2.5}}, "", 2.5),
        ({"model": "the model", "training": {"average_nll": None}}, "", 3.0),  # of a single checkpoint
        ({"model": "the model", "training": {"average_nll": 0.0}}, "", 0.0),
        ({"model": "another", "training": {"average_nll": 2.5}}, "", 3.0),
        ({}, "", 3.0),
    ],
)
def test_the_report_of_the_same_model_and_validation_set_has_the_nll(
    report: dict[str, Any], valid: str, expected: float, average: Callable[..., float | None]
) -> None:
    assert average(3.0, TrainState(valid=valid), json.dumps(report)) == expected


@pytest.fixture
def run(tiny_recipe: Recipe, tiny_data: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Recipe, TrainState]:
    monkeypatch.setattr(Recipe, "data_directory", property(lambda self: tiny_data))
    recipe = with_train(tiny_recipe, max_steps=6, save_every=3, keep_last=2, average_count=1)
    return recipe, train_tiny(recipe, tiny_data)


@pytest.mark.slow
def test_the_model_of_one_checkpoint_has_its_nll(run: tuple[Recipe, TrainState]) -> None:
    recipe, state = run
    checkpoints = averaging.update_model(recipe)
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
    averaged = averaging.update_model(recipe)
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
    averaged = averaging.update_model(with_train(recipe, average_count=2))
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
