"""Rules of resuming with other options, without training: learning rates, scores, recorded changes and limits."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nmt.errors import UserError
from nmt.recipe import Recipe, dump_recipe
from nmt.train import warm_start
from nmt.train.resume import (
    changed_learning_rate,
    discard_other_scores,
    log_resuming,
    record_changes,
    require_same_identity,
    require_used_options,
)
from nmt.train.state import Change, TrainState
from nmt.train.warm_start import changed_start_model
from tests.train.run_tiny import with_train


def saved(recipe: Recipe, directory: Path) -> Path:
    """Write the recipe of a checkpoint."""
    (directory / "recipe.toml").write_text(dump_recipe(recipe), encoding="utf-8")
    return directory


def with_decode(recipe: Recipe, **options: Any) -> Recipe:
    return Recipe.model_validate(recipe.model_dump(mode="json", exclude_none=True) | {"decode": options})


# --- Learning rate ----------------------------------------------------------------------------------------------------


def constant(recipe: Recipe, **changes: Any) -> Recipe:
    options: dict[str, Any] = {"schedule": "constant", "warmup_steps": 0, "learning_rate": 0.004} | changes
    return with_train(recipe, **options)


def test_a_rate_may_double_but_not_more(tiny_recipe: Recipe) -> None:
    """The warm-up of 1,600 updates has a rate of 0.001 at update 400."""
    before = constant(tiny_recipe, warmup_steps=1_600)
    state = TrainState(step=400)
    assert changed_learning_rate(before, before, state) == ""
    shorter = constant(tiny_recipe, warmup_steps=802)  # update 401 has twice the rate of update 400
    assert (
        changed_learning_rate(shorter, before, state)
        == "the learning rate of update 401 is 0.002; it was 0.001 at update 400"
    )
    with pytest.raises(UserError, match=r"update 401 would be 0\.002 after 0\.001, because the schedule was changed"):
        changed_learning_rate(constant(tiny_recipe, warmup_steps=801), before, state)
    assert changed_learning_rate(constant(tiny_recipe, warmup_steps=801), before, TrainState()) == "", (
        "no update before"
    )


def test_a_requested_rate_may_jump(tiny_recipe: Recipe) -> None:
    before = constant(tiny_recipe, schedule="linear", warmup_steps=1, max_steps=8)
    state = TrainState(step=8)
    for changes, is_allowed in (
        ({"max_steps": 16}, False),
        ({"max_steps": 16, "learning_rate": 0.1}, True),
        ({"max_steps": 16, "schedule_start": 8}, True),
        ({"max_steps": 16, "schedule_start": 7}, True),
        ({"max_steps": 16, "schedule_start": 12}, False),
    ):
        now = with_train(before, **changes)
        if is_allowed:
            assert changed_learning_rate(now, before, state).endswith("; it was 0 at update 8")
        else:
            with pytest.raises(UserError, match=r"after 0, because the schedule was planned for train\.max_steps=8; "):
                changed_learning_rate(now, before, state)


def test_a_changed_rate_is_compared_with_the_reductions_of_plateau(tiny_recipe: Recipe) -> None:
    before = constant(tiny_recipe, schedule="plateau")
    state = TrainState(step=8, rate_factor=0.25)
    assert changed_learning_rate(before, before, state) == ""
    assert (
        changed_learning_rate(with_train(before, learning_rate=0.008), before, state)
        == "the learning rate of update 9 is 0.002; without the change, it would be 0.001"
    )
    assert (
        changed_learning_rate(with_train(before, schedule_start=8), before, state)
        == "the learning rate of update 9 is 0.004; without the change, it would be 0.001"
    )
    with pytest.raises(UserError, match=r"update 9 would be 0\.004 after 0\.001, because the schedule was changed"):
        changed_learning_rate(constant(tiny_recipe), before, state)
    unreduced = replace(state, rate_factor=1.0)
    assert changed_learning_rate(constant(tiny_recipe), before, unreduced) == ""


# --- Scores -----------------------------------------------------------------------------------------------------------


SCORED = TrainState(
    step=6, scores={"3": -2.0, "6": -3.0}, best_step=3, best_validation={"valid/nll": 2.0}, valid="a" * 64
)


@pytest.mark.parametrize(
    ("before", "now", "option"),
    [
        ({}, {}, ""),
        ({}, {"label_smoothing": 0.3}, "train.label_smoothing"),
        ({"best_metric": "nll"}, {"best_metric": "nll", "label_smoothing": 0.3}, ""),
        ({}, {"best_metric": "nll"}, "train.best_metric"),
        ({"ema_decay": 0.9}, {"ema_decay": 0.9, "average": "ema"}, "train.average"),
        ({"keep_best": 5}, {"keep_best": 5, "average": "best"}, ""),
        ({}, {"validate_bleu_every": 6, "validate_bleu_sentences": 5}, ""),
    ],
)
def test_options_that_affect_scores_discard_them(
    before: dict[str, Any], now: dict[str, Any], option: str, tiny_recipe: Recipe, tmp_path: Path
) -> None:
    checkpoint = saved(with_train(tiny_recipe, **before), tmp_path)
    recipe, state = with_train(tiny_recipe, **now), replace(SCORED)
    assert discard_other_scores(recipe, state, checkpoint, SCORED.valid, True) == "", "the run is finished"
    assert state == SCORED
    message = discard_other_scores(recipe, state, checkpoint, SCORED.valid, False)
    if option:
        consequence = "earlier scores are not comparable; discarding the best (update 3) and resetting patience"
        assert message == f"{option} changed: {consequence}"
        assert (state.scores, state.scored_from, state.validation_due) == ({}, 6, True)
    else:
        assert message == "" and state == SCORED


def test_only_bleu_depends_on_options_of_the_search(tiny_recipe: Recipe, tmp_path: Path) -> None:
    for metric in ("nll", "bleu"):
        before = with_train(tiny_recipe, best_metric=metric, validate_bleu_every=6)
        for options, affects_bleu in (({"beam_size": 2}, True), ({"batch_tokens": 99}, False)):
            state, checkpoint = replace(SCORED, changes=[]), saved(before, tmp_path)
            now = with_decode(before, **options)
            message = discard_other_scores(now, state, checkpoint, SCORED.valid, False)
            is_discarded = affects_bleu and metric == "bleu"
            assert message.partition(":")[0] == ("decode.beam_size changed" if is_discarded else "")
            record_changes(now, state, checkpoint, is_finished=False)
            assert [change.option for change in state.changes] == ["decode.beam_size"] * is_discarded
        fewer = with_train(before, validate_bleu_sentences=7)
        message = discard_other_scores(fewer, replace(SCORED), saved(before, tmp_path), SCORED.valid, False)
        assert ("train.validate_bleu_sentences changed" in message) is (metric == "bleu")
        tree = before.model_dump(mode="json", exclude_none=True)
        tree["evaluate"]["tokenize"] = "char"
        other = Recipe.model_validate(tree)
        message = discard_other_scores(other, replace(SCORED), saved(before, tmp_path), SCORED.valid, False)
        assert ("evaluate.tokenize changed" in message) is (metric == "bleu")


@pytest.mark.parametrize("is_finished", [True, False])
def test_another_validation_set_discards_scores(is_finished: bool, tiny_recipe: Recipe, tmp_path: Path) -> None:
    checkpoint = saved(tiny_recipe, tmp_path)
    for then, now in (("a" * 64, "a" * 64), ("a" * 64, "")):  # the same, or unknown
        state = replace(SCORED, valid=then)
        assert discard_other_scores(tiny_recipe, state, checkpoint, now, is_finished) == ""
        assert state == replace(SCORED, valid=then)
    state = replace(SCORED, changes=[])
    message = discard_other_scores(tiny_recipe, state, checkpoint, "b" * 64, is_finished)
    assert message.startswith("the validation set changed: earlier scores")
    assert state.changes == [Change(6, "validation set (SHA-256)", "a" * 12, "b" * 12)] and not state.scores
    unknown = replace(SCORED, valid="")
    assert "scores are assumed" in discard_other_scores(tiny_recipe, unknown, checkpoint, "b" * 64, is_finished)
    assert unknown == replace(SCORED, valid="")
    tree = tiny_recipe.model_dump(mode="json", exclude_none=True)
    tree["data"]["valid"] = [{"kind": "text", "src": "c", "tgt": "d"}]
    message = discard_other_scores(Recipe.model_validate(tree), unknown, checkpoint, "b" * 64, is_finished)
    assert message.startswith("the validation set changed: earlier scores")
    assert unknown.changes[-1:] == [Change(6, "validation set (SHA-256)", "unknown", "b" * 12)]


def test_another_loss_discards_scores_of_an_unknown_validation_set(tiny_recipe: Recipe, tmp_path: Path) -> None:
    other_loss, state = with_train(tiny_recipe, label_smoothing=0.3), replace(SCORED, valid="", changes=[])
    message = discard_other_scores(other_loss, state, saved(tiny_recipe, tmp_path), "b" * 64, False)
    assert message.startswith("train.label_smoothing changed: ") and state.changes == [] and not state.scores


def test_only_another_validation_set_resets_plateau(tiny_recipe: Recipe, tmp_path: Path) -> None:
    checkpoint = saved(tiny_recipe, tmp_path)
    other_loss = with_train(tiny_recipe, label_smoothing=0.3)
    for valid, expected in ((SCORED.valid, (2.0, 1, 6)), ("b" * 64, (None, 0, 0))):
        state = replace(SCORED, plateau_best=2.0, plateau_validations=1, plateau_step=6, changes=[])
        message = discard_other_scores(other_loss, state, checkpoint, valid, False)
        assert ("the validation set and train.label_smoothing changed" in message) is (valid != SCORED.valid)
        assert (state.plateau_best, state.plateau_validations, state.plateau_step) == expected


def test_a_start_score_is_discarded_before_the_first_validation(tiny_recipe: Recipe, tmp_path: Path) -> None:
    checkpoint = saved(tiny_recipe, tmp_path)
    state = TrainState(step=2, start_score=-3.0, valid="a")
    message = discard_other_scores(tiny_recipe, state, checkpoint, "b", False)
    assert message.endswith("discarding the best and resetting patience")
    assert (state.start_score, state.validation_due, state.scored_from) == (None, False, 2)
    fresh = TrainState(step=2, valid="a")
    assert discard_other_scores(tiny_recipe, fresh, checkpoint, "b", False) == ""
    assert fresh == TrainState(step=2, valid="a")


def test_plateau_is_reset_by_another_validation_set_after_scores_were_discarded(
    tiny_recipe: Recipe, tmp_path: Path
) -> None:
    """The run stopped after it had discarded its scores, before it validated again."""
    state = replace(SCORED, plateau_best=2.0, plateau_validations=1, plateau_step=6)
    state.discard_scores(of_other_set=False)
    discard_other_scores(tiny_recipe, state, saved(tiny_recipe, tmp_path), "b" * 64, False)
    assert (state.plateau_best, state.plateau_validations, state.plateau_step) == (None, 0, 0)
    assert state.validation_due


# --- Recorded changes and limits --------------------------------------------------------------------------------------


def test_changes_that_affect_training_are_recorded(tiny_recipe: Recipe, tmp_path: Path) -> None:
    checkpoint = saved(tiny_recipe, tmp_path)
    tree = with_train(tiny_recipe, max_steps=30, clip_norm=1.0).model_dump(mode="json", exclude_none=True)
    tree["decode"] = {"beam_size": 2}
    tree["evaluate"]["resamples"] = 7
    tree["data"] |= {"workers": 1, "root": "elsewhere", "test": {"news": {"kind": "toy", "split": "test"}}}
    recipe = Recipe.model_validate(tree)
    steps, norm = Change(6, "train.max_steps", 24, 30), Change(6, "train.clip_norm", 0.0, 1.0)
    for is_finished, expected in ((False, [steps, norm]), (True, [steps])):
        state = TrainState(step=6)
        record_changes(recipe, state, checkpoint, is_finished=is_finished)
        assert state.changes == expected
    (checkpoint / "recipe.toml").write_text("of another version")
    state = TrainState(step=6)
    record_changes(recipe, state, checkpoint, is_finished=False)
    assert state.changes == []


def test_an_option_that_no_update_used_is_an_error(tiny_recipe: Recipe, tmp_path: Path) -> None:
    before = with_train(tiny_recipe, max_steps=8)
    checkpoint = saved(before, tmp_path)
    finished, interrupted = TrainState(step=8), TrainState(step=6)
    require_used_options(before, finished, checkpoint)
    require_used_options(with_train(before, log_every=3, patience=3, keep_last=5), finished, checkpoint)
    require_used_options(with_train(before, max_steps=6), interrupted, checkpoint)  # ends the run here
    for changes, state, message in (
        ({"max_steps": 5}, interrupted, r"max_steps is 5, but .* has 6 updates; it must be at least 6, which ends"),
        ({"max_steps": 7}, finished, "is already trained, and train.max_steps is 7, was 8: no update used this value"),
        ({"clip_norm": 1.0}, finished, "is already trained, and train.clip_norm is 1.0, was 0.0: no update used"),
        (
            {"max_steps": 7, "clip_norm": 1.0},
            finished,
            "max_steps is 7, was 8; train.clip_norm is 1.0, was 0.0: no update used these values; restore the old ones",
        ),
        ({"max_steps": 6, "clip_norm": 1.0}, interrupted, "would end at step 6, and train.clip_norm is 1.0, was 0.0"),
    ):
        with pytest.raises(UserError, match=message) as raised:
            require_used_options(with_train(before, **changes), state, checkpoint)
        assert ("raise train.max_steps to continue" in str(raised.value)) is (changes != {"max_steps": 5})
    saved(with_train(before, max_minutes=1.0), checkpoint)
    with pytest.raises(UserError, match=r"max_steps is 9, was 8: .* raise train\.max_minutes to continue training"):
        require_used_options(
            with_train(before, max_steps=9, max_minutes=1.0), replace(finished, seconds=60), checkpoint
        )
    (checkpoint / "recipe.toml").write_text("of another version")
    require_used_options(with_train(before, clip_norm=1.0), finished, checkpoint)


def test_another_update_size_within_an_epoch_needs_the_pairs(
    tiny_recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, recipe = saved(tiny_recipe, tmp_path), with_train(tiny_recipe, batch_tokens=90)
    with pytest.raises(UserError, match=r"batch_tokens is 90, was 150; .* within an epoch; keep the old value"):
        log_resuming(recipe, TrainState(step=6, update=6), checkpoint)
    assert capsys.readouterr().err == ""
    log_resuming(tiny_recipe, TrainState(step=6, update=6), checkpoint)
    assert capsys.readouterr().err == f"resuming from {checkpoint}\n"
    for state in (TrainState(step=6, update=6, pair=99), TrainState(step=9, epoch=1)):
        log_resuming(recipe, state, checkpoint)
        expected = f"resuming from {checkpoint}\nchanged options: train.batch_tokens is 90, was 150\n"
        assert capsys.readouterr().err == expected
    (checkpoint / "recipe.toml").write_text("of another version")
    log_resuming(recipe, TrainState(step=6, update=6), checkpoint)
    assert "another version of nmt wrote its recipe, so changed options are unknown" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "identity", "is_other"), [("a", "a", False), ("", "b", False), ("a", "", False), ("a", "b", True)]
)
def test_a_run_keeps_its_text(text: str, identity: str, is_other: bool, tiny_recipe: Recipe) -> None:
    state = TrainState(text=text)
    if is_other:
        with pytest.raises(UserError, match="prepared training text is not that of the checkpoint"):
            require_same_identity(tiny_recipe, state, identity)
    else:
        require_same_identity(tiny_recipe, state, identity)


def test_another_start_model_is_reported(tiny_recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_start, "find_model", lambda path: path)
    monkeypatch.setattr(warm_start, "manifest_digest", lambda path: "new")
    tuned = with_train(tiny_recipe, start_from="start")
    found = [bool(changed_start_model(tuned, TrainState(start=start))) for start in ("", "new", "old")]
    assert found == [False, False, True]
    assert changed_start_model(tiny_recipe, TrainState(start="old")) == ""
