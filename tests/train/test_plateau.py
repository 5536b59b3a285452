"""Schedule `plateau`: reductions compared with their rule, and repeated exactly by a resumed run."""

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nmt.recipe import Recipe, TrainRecipe
from nmt.storage.run_folder import checkpoint_step, list_checkpoints
from nmt.train.schedule import learning_rate
from nmt.train.state import TrainState
from tests.train.run_tiny import final_files, metrics, train_tiny, with_train

PLATEAU: dict[str, Any] = {
    "schedule": "plateau",
    "learning_rate": 3.0,
    "warmup_steps": 2,
    "plateau_patience": 1,
    "save_every": 4,
}


def test_rate_is_lowered_after_validations_without_a_lower_nll() -> None:
    train = TrainRecipe(schedule="plateau", plateau_factor=0.1, plateau_patience=2)
    state, factors = TrainState(), []
    for nll in (3.0, 2.0, 2.0, 2.5, 1.9, float("nan"), 1.9, 1.95, 1.8, 1.8):
        state.record_plateau(nll, train)
        factors.append(state.rate_factor)
    assert factors == pytest.approx([1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01, 0.01])
    state.discard_scores(of_other_set=False)  # another metric selects the best checkpoints
    assert state.record_plateau(1.8, train)
    state.discard_scores(of_other_set=True)
    assert not any(state.record_plateau(nll, train) for nll in (5.0, 5.0))
    state.step = 10
    assert not any(state.record_plateau(nll, train) for nll in (4.0, 6.0, 6.0))  # the same step, validated again
    diverged = TrainState()
    assert not any(diverged.record_plateau(nll, train) for nll in (float("nan"), 3.0, 2.0, 2.0)), "NaN is not the best"
    constant = TrainState()
    assert not constant.record_plateau(1.0, TrainRecipe()) and constant == TrainState()
    assert learning_rate(train, 512, 4_000) == learning_rate(train, 512, 99_999) == train.learning_rate


def test_the_rate_is_lowered_exactly_at_plateau_patience() -> None:
    """Compared with a loop that counts the validations since the lowest nll or the last reduction."""
    nlls = (math.inf, 3.0, 3.0, 2.9, math.nan, 2.9, 3.1, 2.8, 2.8, 2.8, 2.8, 2.8, 2.8)
    for patience in (1, 2, 3, 5):
        train = TrainRecipe(schedule="plateau", plateau_factor=0.5, plateau_patience=patience)
        state, lowest, count, factor = TrainState(), math.inf, 0, 1.0
        for step, nll in enumerate(nlls, start=1):
            state.step = step
            count = 0 if nll < lowest else count + 1
            lowest = nll if nll < lowest else lowest
            is_lowered = count == patience
            if is_lowered:
                count, factor = 0, factor / 2
            assert state.record_plateau(nll, train) is is_lowered, (patience, step)
            assert not state.record_plateau(nll, train), "the same step, validated again"
            assert (state.rate_factor, state.plateau_validations, state.plateau_step) == (factor, count, step)
            assert state.plateau_best == (None if lowest == math.inf else lowest)


def test_the_reductions_end_where_the_schedule_restarts() -> None:
    lowered = TrainState(step=8, rate_factor=0.25, plateau_best=2.0, plateau_validations=1, plateau_step=8)
    reset = replace(lowered, rate_factor=1.0, plateau_best=None, plateau_validations=0)
    for options, step, is_reset in (
        ({"schedule": "plateau"}, 8, False),
        ({"schedule": "plateau", "schedule_start": 8}, 7, False),
        ({"schedule": "plateau", "schedule_start": 8}, 8, True),
        ({"schedule": "plateau", "schedule_start": 8}, 9, False),
        ({"schedule": "constant"}, 8, True),
    ):
        train, state = TrainRecipe.model_validate(options), replace(lowered, step=step)
        assert state.next_rate_factor(train) == (1.0 if is_reset else 0.25), (options, step)
        state.restart_plateau(train)
        assert state == replace(reset if is_reset else lowered, step=step), (options, step)
        assert state.next_rate_factor(train) == state.rate_factor


@pytest.mark.slow
def test_resumed_run_has_the_same_rates_and_weights(tiny_recipe: Recipe, tiny_data: Path) -> None:
    """The run resumes at update 4, and repeats the validations of updates 6, 9 and 12."""
    recipe = with_train(tiny_recipe, **PLATEAU, max_steps=14, validate_every=3, keep_best=0)
    train_tiny(recipe, tiny_data)
    files, rates, nll = final_files(recipe), metrics(recipe, "train/learning_rate"), metrics(recipe, "valid/nll")
    factor, best, expected = 1.0, math.inf, []
    for step in range(1, 15):  # an independent implementation of the rule
        expected.append(factor * 3.0 * min(1.0, step / 2))
        if step % 3 == 0:
            value = nll[step // 3 - 1]
            factor, best = (factor, value) if value < best else (factor / 2, best)
    assert rates == pytest.approx(expected)
    assert factor < 1
    for checkpoint in list_checkpoints(recipe.directory):
        if checkpoint_step(checkpoint) > 4:
            shutil.rmtree(checkpoint)
    train_tiny(recipe, tiny_data)
    assert final_files(recipe) == files
    assert metrics(recipe, "train/learning_rate") == rates


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"schedule_start": 8}, 1.5),  # the first of two warm-up updates
        ({"schedule": "constant", "plateau_patience": 3, "learning_rate": 2.9}, 2.9),
    ],
    ids=["restart", "constant"],
)
def test_a_restart_and_another_schedule_end_the_reductions(
    changed: dict[str, Any],
    expected: float,
    tiny_recipe: Recipe,
    tiny_data: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe = with_train(tiny_recipe, **PLATEAU, max_steps=8, validate_every=1)
    assert train_tiny(recipe, tiny_data).rate_factor < 1
    capsys.readouterr()
    state = train_tiny(with_train(recipe, **changed, max_steps=9, validate_every=9), tiny_data)
    rate = metrics(recipe, "train/learning_rate")[-1]
    assert rate == pytest.approx(expected) and state.rate_factor == 1
    assert f"the learning rate of update 9 is {rate:.3g}; without the change, it would be" in capsys.readouterr().err


@pytest.mark.slow
def test_a_changed_rate_is_logged_with_its_reductions(
    tiny_recipe: Recipe, tiny_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = with_train(tiny_recipe, **PLATEAU, max_steps=8, validate_every=1)
    factor = train_tiny(recipe, tiny_data).rate_factor
    train_tiny(with_train(recipe, learning_rate=1.0, max_steps=9), tiny_data)
    assert metrics(recipe, "train/learning_rate")[-1] == factor < 1
    message = f"learning rate of update 9 is {factor:.3g}; without the change, it would be {3 * factor:.3g}\n"
    assert message in capsys.readouterr().err
