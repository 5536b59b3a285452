"""Rules of the state of a run: limits, scores, discarded scores and `state.json`; none of them needs training."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from nmt.errors import UserError
from nmt.recipe import Recipe, TrainRecipe, dump_recipe
from nmt.storage.sealed import CorruptError
from nmt.train.state import (
    Change,
    TrainState,
    _identity,
    differences,
    full_names,
    interim_steps,
    require_equal_options,
    require_same_run,
)
from tests.train.run_tiny import with_train

INF, NAN = math.inf, math.nan


# --- Limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "options", "expected"),
    [
        ({"step": 9}, {"max_steps": 10}, []),
        ({"step": 10}, {"max_steps": 10}, ["max_steps"]),
        ({"step": 11}, {"max_steps": 10}, ["max_steps"]),
        ({"epoch": 99}, {}, []),
        ({"epoch": 1, "update": 8, "updates_in_epoch": 9}, {"max_epochs": 2}, []),
        ({"epoch": 2}, {"max_epochs": 2}, ["max_epochs"]),
        ({"epoch": 3}, {"max_epochs": 2}, ["max_epochs"]),
        ({"validations_without_best": 99}, {"patience": 0}, []),
        ({"validations_without_best": 0}, {"patience": 1}, []),
        ({"validations_without_best": 2}, {"patience": 3}, []),
        ({"validations_without_best": 3}, {"patience": 3}, ["patience"]),
        ({"validations_without_best": 4}, {"patience": 3}, ["patience"]),
        ({"seconds": 1e9}, {}, []),
        ({"seconds": 89.9}, {"max_minutes": 1.5}, []),
        ({"seconds": 90.0}, {"max_minutes": 1.5}, ["max_minutes"]),
        ({"step": 10, "epoch": 1, "validations_without_best": 1, "seconds": 60.0},
         {"max_steps": 10, "max_epochs": 1, "patience": 1, "max_minutes": 1.0},
         ["max_steps", "max_epochs", "patience", "max_minutes"]),
    ],
)  # fmt: skip
def test_a_run_ends_exactly_at_its_limits(state: dict[str, Any], options: dict[str, Any], expected: list[str]) -> None:
    assert TrainState(**state).limits_reached(TrainRecipe(**options)) == [f"train.{name}" for name in expected]


def test_the_reason_of_an_early_end_names_the_limits() -> None:
    train = TrainRecipe(max_steps=10, max_epochs=2, patience=3)
    assert TrainState(step=9, epoch=1).end_reason(train) == ""
    assert TrainState(step=9, epoch=2).end_reason(train) == ", because train.max_epochs was reached"
    state = TrainState(step=9, epoch=2, validations_without_best=3)
    assert state.end_reason(train) == ", because train.max_epochs and train.patience were reached"
    assert replace(state, step=10).end_reason(train) == "", "all updates were done"


def test_epochs_have_the_fraction_of_the_current_one() -> None:
    assert TrainState().epochs == 0
    assert TrainState(epoch=2, update=3, updates_in_epoch=4).epochs == 2.75
    assert TrainState(epoch=3, update=0, updates_in_epoch=4).epochs == 3


# --- Scores -----------------------------------------------------------------------------------------------------------


def record(state: TrainState, step: int, score: float, **metrics: float) -> bool:
    state.step = step
    return state.record_score(score, metrics)


def test_the_best_step_has_the_first_of_the_highest_scores() -> None:
    """The steps since the best count toward `patience`, also those with an equal score."""
    state = TrainState()
    found = []
    for number, score in enumerate((NAN, -INF, -3.0, -3.0, -4.0, NAN, -INF, -2.0, -2.5), start=1):
        is_best = record(state, 10 * number, score, nll=float(number))
        found.append((is_best, state.best_step, state.best_score, state.validations_without_best))
    assert found == [
        (False, 0, -INF, 1),
        (False, 0, -INF, 2),
        (True, 30, -3.0, 0),
        (False, 30, -3.0, 1),
        (False, 30, -3.0, 2),
        (False, 30, -3.0, 3),
        (False, 30, -3.0, 4),
        (True, 80, -2.0, 0),
        (False, 80, -2.0, 1),
    ]
    assert state.best_validation == {"nll": 8.0}
    assert list(state.scores) == ["10", "20", "30", "40", "50", "60", "70", "80", "90"]


def test_patience_ends_a_run_at_its_last_validation_without_a_better_score() -> None:
    train, state = TrainRecipe(patience=2), TrainState()
    ends = []
    for step, score in enumerate((1.0, 1.0, 1.5, 1.2, 1.5), start=1):
        record(state, step, score)
        ends.append(state.limits_reached(train))
    assert ends == [[], [], [], [], ["train.patience"]]
    diverged = TrainState()
    ends = []
    for step in (1, 2):
        record(diverged, step, -INF)
        ends.append(diverged.limits_reached(train))
    assert ends == [[], ["train.patience"]]


def test_the_best_steps_are_those_with_the_highest_scores() -> None:
    state = TrainState(scores={"2": -3.0, "4": -1.0, "6": -INF, "8": -2.0, "10": -1.0, "12": -INF})
    assert state.best_steps() == [4, 10, 8, 2]
    assert [state.best_steps(count) for count in range(6)] == [
        [],
        [4],
        [4, 10],
        [4, 10, 8],
        [4, 10, 8, 2],
        [4, 10, 8, 2],
    ]
    assert TrainState(scores={"9": -INF, "12": -INF}).best_steps() == [9, 12], "all diverged"
    assert TrainState().best_steps() == TrainState().best_steps(3) == []


def test_equal_scores_keep_their_order_in_a_checkpoint(tmp_path: Path) -> None:
    """As text, "10" sorts before "9"."""
    state = TrainState()
    for step in (9, 10, 11):
        record(state, step, -1.0)
    (tmp_path / "state.json").write_text(json.dumps(asdict(state)))
    assert TrainState.load(tmp_path) == state
    assert TrainState.load(tmp_path).best_steps() == [9, 10, 11]


@pytest.mark.parametrize(
    ("score", "metrics", "expected"),
    [
        (-2.0, {"valid/loss": 3.0, "valid/nll": 2.0}, False),
        (-2.0, {"valid/nll": 2.0, "valid/average_loss": 2.5, "valid/average_nll": 1.5}, False),
        (-2.5, {"valid/nll": 2.0, "valid/average_loss": 2.5, "valid/average_nll": 1.5}, True),
        (-1.5, {"valid/nll": 2.0, "valid/average_loss": 2.5, "valid/average_nll": 1.5}, True),
        (30.0, {"valid/bleu": 30.0, "valid/average_nll": 1.5}, False),
        (30.0, {"valid/average_nll": 1.5, "valid/average_bleu": 30.0}, True),
        (0.0, {"valid/bleu": 0.0, "valid/nll": 9.0}, False),  # without an EMA
        (NAN, {}, False),
    ],
)
def test_the_best_score_is_that_of_the_ema_if_it_equals_it(
    score: float, metrics: dict[str, float], expected: bool
) -> None:
    state = TrainState(best_step=4, scores={"4": score, "6": -9.0}, best_validation=metrics)
    assert state.is_best_from_ema is expected
    assert not TrainState().is_best_from_ema


SCORED = TrainState(
    step=8,
    scores={"4": -2.0, "8": -3.0},
    best_step=4,
    best_validation={"valid/nll": 2.0},
    validations_without_best=1,
    start_score=-5.0,
    rate_factor=0.5,
    plateau_best=2.0,
    plateau_validations=1,
    plateau_step=8,
)
NO_SCORES: dict[str, Any] = {
    "scores": {},
    "best_step": 0,
    "best_validation": {},
    "validations_without_best": 0,
    "start_score": None,
}


@pytest.mark.parametrize(
    ("before", "of_other_set", "expected"),
    [
        ({}, False, {"validation_due": True}),
        ({}, True, {"validation_due": True, "plateau_best": None, "plateau_validations": 0, "plateau_step": 0}),
        ({"step": 9}, False, {"validation_due": False}),  # not validated before
        ({"step": 9, "validation_due": True}, False, {"validation_due": True}),  # stopped before its validation
        ({"scored_from": 4}, False, {"validation_due": True}),
    ],
)
def test_discarded_scores_leave_nothing_to_compare_with(
    before: dict[str, Any], of_other_set: bool, expected: dict[str, Any]
) -> None:
    state = replace(SCORED, **before)
    state.discard_scores(of_other_set=of_other_set)
    assert state == replace(SCORED, **(before | NO_SCORES | {"scored_from": state.step} | expected))
    assert record(state, state.step, -99.0) and state.best_steps() == [state.step]


# --- Checkpoints ------------------------------------------------------------------------------------------------------


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    state = replace(SCORED, changes=[Change(3, "train.clip_norm", 0.0, 1.0)], unlogged={"tokens": 3.0}, loss_scale={})
    (tmp_path / "state.json").write_text(json.dumps(asdict(state)))
    assert TrainState.load(tmp_path) == state
    (tmp_path / "state.json").write_text("{}")  # of an earlier version
    assert TrainState.load(tmp_path) == TrainState()


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (None, CorruptError, r"cannot read state\.json"),
        ("{", CorruptError, r"cannot read state\.json"),
        ('{"step": "three"}', CorruptError, r"state\.json is not valid: .*step.*; copy the checkpoint again"),
        ('{"scores": {"3": null}}', CorruptError, "is not valid"),
        ('{"steps": 3}', UserError, "was written by another version of nmt"),
        ('{"changes": [{"step": 3}]}', UserError, "was written by another version of nmt"),
        ("3", UserError, "was written by another version of nmt"),
    ],
)
def test_an_invalid_state_is_an_error(text: str | None, error: type[UserError], message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "state.json").write_text(text)
    with pytest.raises(UserError, match=message) as raised:
        TrainState.load(tmp_path)
    assert type(raised.value) is error


def test_interim_checkpoints_are_those_before_the_newest(tmp_path: Path) -> None:
    for step, is_interim in ((2, False), (3, True), (5, True), (6, None), (7, True)):
        checkpoint = tmp_path / "checkpoints" / f"step-{step:08}"
        checkpoint.mkdir(parents=True)
        text = "damaged" if is_interim is None else json.dumps({"is_interim": is_interim})
        (checkpoint / "state.json").write_text(text)
    assert interim_steps(tmp_path, 7) == {3, 5}
    assert interim_steps(tmp_path, 8) == {3, 5, 7}
    assert interim_steps(tmp_path / "other", 7) == set()


# --- Options that must not change -------------------------------------------------------------------------------------


def saved_run(recipe: Recipe) -> Recipe:
    checkpoint = recipe.directory / "checkpoints" / "step-00000006"
    checkpoint.mkdir(parents=True)
    (checkpoint / "recipe.toml").write_text(dump_recipe(recipe))
    return recipe


def changed(recipe: Recipe, **sections: Any) -> Recipe:
    """Return a recipe with changed options; the value of a section is a table of them."""
    tree = recipe.model_dump(mode="json", exclude_none=True)
    for name, value in sections.items():
        tree[name] = tree[name] | value if isinstance(value, dict) else value
    return Recipe.model_validate(tree)


def test_options_of_the_model_and_the_text_must_not_change(tiny_recipe: Recipe) -> None:
    recipe = saved_run(tiny_recipe)
    cases: dict[str, Any] = {
        "src_lang": {"src_lang": "fr"},
        "tgt_lang": {"tgt_lang": "fr"},
        "seed": {"seed": 5},
        "data.max_tokens": {"data": {"max_tokens": 10}},
        "tokenizer.vocab_size": {"tokenizer": {"vocab_size": 500}},
        "model.dropout": {"model": {"dropout": 0.2}},
        "train.ema_decay": {"train": {"ema_decay": 0.9}},
        "train.freeze": {"train": {"freeze": ["encoder"]}},
        "train.rdrop": {"train": {"rdrop": 1.0}},
        "train.subword_sampling": {"train": {"subword_sampling": 0.1}},
    }
    for option, change in cases.items():
        with pytest.raises(UserError, match=rf"holds a run with another recipe: [^;]*{option} is .*; these must not"):
            require_same_run(changed(recipe, **change))
    require_same_run(recipe)
    require_same_run(
        changed(
            recipe,
            train={"max_steps": 99, "learning_rate": 0.1, "patience": 3, "batch_tokens": 90},
            data={"workers": 1, "root": "elsewhere", "valid": [{"kind": "text", "src": "c", "tgt": "d"}]},
            decode={"beam_size": 2},
        )
    )


def test_the_newest_readable_recipe_is_compared(tiny_recipe: Recipe) -> None:
    recipe = saved_run(changed(tiny_recipe, seed=5))
    newer, newest = (recipe.directory / "checkpoints" / f"step-{step:08}" for step in (8, 9))
    for directory, text in ((newer, dump_recipe(tiny_recipe)), (newest, "damaged")):
        directory.mkdir()
        (directory / "recipe.toml").write_text(text)
    require_same_run(tiny_recipe)
    with pytest.raises(UserError, match="seed is 5, was 1"):
        require_same_run(recipe)
    for path in recipe.directory.glob("checkpoints/*/recipe.toml"):
        path.write_text("damaged")
    with pytest.raises(UserError, match="step-00000009"):
        require_same_run(tiny_recipe)


def test_fine_tuning_is_suggested_if_only_the_text_changes() -> None:
    then: dict[str, object] = {"data.max_tokens": 20, "tokenizer.algorithm": "bpe", "seed": 1}
    run = Path("run")
    for change, is_suggested in (
        ({"data.max_tokens": 30, "tokenizer.algorithm": "char"}, True),
        ({"data.max_tokens": 30, "seed": 2}, False),
    ):
        for can_fine_tune in (False, True):
            with pytest.raises(UserError) as raised:
                require_equal_options(run, then | change, then, can_fine_tune=can_fine_tune)
            assert ("or fine-tune: name=NEW train.start_from=run" in str(raised.value)) == (
                is_suggested and can_fine_tune
            )
    require_equal_options(run, then, dict(reversed(then.items())), can_fine_tune=True)
    with pytest.raises(UserError, match=r"recipe: seed is not set, was 1; data\.x is 3, was not set; these"):
        require_equal_options(run, {"data.x": 3}, {"seed": 1})


def test_only_the_tokens_of_a_reused_tokenizer_identify_a_run(tiny_recipe: Recipe) -> None:
    trained = _identity(tiny_recipe, reused_tokenizer=False)
    reused = _identity(tiny_recipe, reused_tokenizer=True)
    assert {name for name in reused if name.startswith("tokenizer.")} == {
        "tokenizer.start_from",
        "tokenizer.user_symbols",
    }
    assert reused.items() <= trained.items() and "tokenizer.vocab_size" in trained
    assert "decode.alignment_layer" not in trained
    expected = ["optimizer", "start_from", "start_optimizer", "freeze", "ema_decay", "rdrop", "guided_alignment"]
    expected += ["glossary_markup", "subword_sampling", "subword_sampling_sides"]
    assert {name for name in trained if name.startswith("train.")} == {f"train.{name}" for name in expected}
    guided = _identity(with_train(tiny_recipe, guided_alignment=True), reused_tokenizer=False)
    assert {name for name in guided if name.startswith("decode.")} == {
        "decode.alignment_layer",
        "decode.alignment_heads",
        "decode.alignment_at",
    }


def test_differences_name_the_parts_of_an_option() -> None:
    long, other = list(range(50)), [*range(49), 99]
    cases: list[tuple[Any, Any, list[str]]] = [
        (1, 1, []),
        (1, 2, ["x is 1, was 2"]),
        (None, 2, ["x is not set, was 2"]),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}, ["x.b is 2, was 3", "x.c is not set, was 4"]),
        ({"a": 1}, None, ["x is a table, was not set"]),
        ((1, 2), [1, 3], ["x is [1, 2], was [1, 3]"]),
        ([1, 2], [1], ["x is [1, 2], was [1]"]),
        (long, other, ["x.49 is 49, was 99"]),  # equal when truncated
        (long, [*long, 50], ["the number of entries of x is 50, was 51"]),
        ([{"a": 1}], [{"a": 2}], ["x.0.a is 1, was 2"]),
        ([], [{"a": 2}], ["the number of entries of x is 0, was 1"]),
        ("b" * 80, "b" * 81, [f"x is {'b' * 80}, was {'b' * 80}..."]),
    ]
    for now, then, expected in cases:
        assert list(differences("x", now, then)) == expected
    assert full_names({"train": {"max_steps": 3}, "data": {}}) == {"train.max_steps": 3}
