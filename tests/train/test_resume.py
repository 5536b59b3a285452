"""Resuming with changed options, and starting from a model: messages and errors."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from nmt import pipeline
from nmt.errors import UserError
from nmt.pipeline import averaging, reporting
from nmt.processes.distributed import World
from nmt.recipe import Recipe, dump_recipe
from nmt.storage.model_metadata import read_model_metadata
from nmt.storage.run_folder import checkpoint_step, list_checkpoints
from nmt.train import trainer as trainer_module
from nmt.train.resume import log_resuming, require_used_options
from nmt.train.state import Change, TrainState
from nmt.train.validate import Validation
from tests.train.run_tiny import metrics, train_tiny, with_train


@pytest.mark.slow
def test_extending_a_finished_schedule_needs_a_restart(
    tiny_recipe: Recipe, tiny_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = with_train(tiny_recipe, schedule="cosine", max_steps=6, warmup_steps=2)
    train_tiny(ended, tiny_data)
    capsys.readouterr()
    with pytest.raises(UserError, match=r"learning rate of update 7 would be 0\.00.* after 0, .*schedule_start=6"):
        train_tiny(with_train(ended, max_steps=12), tiny_data)
    messages = capsys.readouterr().err
    assert "resuming from" not in messages and "changed options" not in messages
    assert list_checkpoints(ended.directory)[-1].name == "step-00000006"
    again = with_train(ended, max_steps=12, schedule_start=6)
    assert train_tiny(again, tiny_data).step == 12
    messages = capsys.readouterr().err
    assert "train.max_steps is 12, was 6; train.schedule_start is 6, was 0" in messages
    assert "the learning rate of update 7 is 0.0015; it was 0 at update 6" in messages
    rates = metrics(again, "train/learning_rate")
    assert rates[6:] == pytest.approx(rates[:6])  # the whole schedule once more


@pytest.mark.slow
def test_a_restart_without_checkpoints_is_reported(
    tiny_recipe: Recipe, tiny_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = with_train(tiny_recipe, max_steps=6)
    message = "has metrics but no checkpoint; training restarts from step"
    train_tiny(recipe, tiny_data)
    train_tiny(recipe, tiny_data)
    assert message not in capsys.readouterr().err
    shutil.rmtree(recipe.directory / "checkpoints")
    assert train_tiny(recipe, tiny_data).step == 6
    assert capsys.readouterr().err.count(f"warning: {recipe.directory} {message}") == 1


@pytest.mark.slow
def test_a_resume_does_not_need_the_start_model(
    tiny_recipe: Recipe, tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = tmp_path / "start"
    small: dict[str, Any] = {"validate_every": 2, "save_every": 2, "schedule": "constant"}
    train_tiny(with_train(tiny_recipe, start, max_steps=2, **small), tiny_data)
    train_tiny(with_train(tiny_recipe, max_steps=2, start_from=str(start), **small), tiny_data)
    longer = with_train(tiny_recipe, max_steps=4, start_from=str(start), **small)
    message = f"warning: {start} is no longer the model that {longer.directory} started from; the run keeps its own"
    train_tiny(with_train(longer, max_steps=3), tiny_data)
    assert message not in capsys.readouterr().err
    train_tiny(with_train(tiny_recipe, start, max_steps=4, **small), tiny_data)
    assert train_tiny(longer, tiny_data).step == 4
    assert message in capsys.readouterr().err
    start.rename(tmp_path / "moved")
    assert train_tiny(longer, tiny_data).step == 4
    shutil.rmtree(longer.directory / "checkpoints")
    with pytest.raises(UserError, match="start does not exist"):
        train_tiny(longer, tiny_data)


@pytest.mark.slow
def test_changed_options_are_logged(tiny_recipe: Recipe, tiny_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = with_train(tiny_recipe, schedule="constant", max_steps=6)
    train_tiny(recipe, tiny_data)
    capsys.readouterr()
    train_tiny(with_train(recipe, max_steps=9, learning_rate=0.01, clip_norm=1.0, log_every=3), tiny_data)
    messages = capsys.readouterr().err
    for changed in ("max_steps is 9, was 6", "learning_rate is 0.01, was 0.003", "clip_norm is 1.0, was 0.0"):
        assert f"train.{changed}" in messages
    assert "the learning rate of update 7 is 0.01; it was 0.003 at update 6" in messages
    assert "weight_decay" not in messages


@pytest.mark.slow
def test_changes_of_tables_name_their_options(
    tiny_recipe: Recipe, tiny_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = with_train(tiny_recipe, max_steps=2)
    train_tiny(recipe, tiny_data)
    tree = recipe.model_dump(mode="json", exclude_none=True)
    tree["data"]["test"] = {"news": {"kind": "toy", "split": "test"}}
    tree["data"]["valid"] = [{"kind": "toy", "split": "valid", "pairs": 5, "seed": 2}]
    capsys.readouterr()
    train_tiny(Recipe.model_validate(tree), tiny_data)
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("changed options: "))
    assert "data.test.news is a table, was not set" in line
    assert "{" not in line


@pytest.mark.slow
def test_checkpoints_keep_changed_options(tiny_recipe: Recipe, tiny_data: Path) -> None:
    recipe = with_train(tiny_recipe, schedule="constant", max_steps=2)
    train_tiny(recipe, tiny_data)
    longer = with_train(recipe, max_steps=4, clip_norm=1.0)
    train_tiny(longer, tiny_data)
    shutil.rmtree(list_checkpoints(recipe.directory)[-1])  # as if killed before update 4 was saved
    train_tiny(longer, tiny_data)
    first = [Change(2, "train.max_steps", 2, 4), Change(2, "train.clip_norm", 0.0, 1.0)]
    newest = list_checkpoints(recipe.directory)[-1]
    saved = json.loads((newest / "state.json").read_text())
    assert TrainState.read(saved, newest).changes == first
    del saved["changes"]  # as in earlier versions
    assert TrainState.read(saved, newest).changes == []
    state = train_tiny(with_train(longer, max_steps=6), tiny_data)
    assert state.changes == [*first, Change(4, "train.max_steps", 4, 6)]
    assert TrainState.load(list_checkpoints(recipe.directory)[-1]).changes == state.changes


@pytest.mark.slow
def test_unused_options_are_not_recorded_as_changes(tiny_recipe: Recipe, tiny_data: Path) -> None:
    recipe = with_train(tiny_recipe, schedule="constant", max_steps=2)
    train_tiny(recipe, tiny_data)
    assert train_tiny(with_train(recipe, log_every=3), tiny_data).changes == []
    tree = recipe.model_dump(mode="json", exclude_none=True) | {"decode": {"beam_size": 2}}
    wider = with_train(Recipe.model_validate(tree), max_steps=4)
    assert train_tiny(wider, tiny_data).changes == [Change(2, "train.max_steps", 2, 4)]


@pytest.mark.slow
def test_another_validation_text_discards_scores(
    tiny_recipe: Recipe, tiny_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    every: dict[str, Any] = {"validate_every": 2, "save_every": 2}
    recipe = with_train(tiny_recipe, schedule="constant", max_steps=4, keep_last=1, average_count=1, **every)
    train_tiny(recipe, tiny_data, valid_identity="a" * 64)
    capsys.readouterr()
    longer = with_train(recipe, max_steps=8, learning_rate=1.0)
    state = train_tiny(longer, tiny_data, valid_identity="b" * 64)
    assert capsys.readouterr().err.count("the validation set changed: earlier scores are not comparable; ") == 1
    assert list(state.scores) == ["4", "6", "8"] and state.best_step == 4
    assert Change(4, "validation set (SHA-256)", "a" * 12, "b" * 12) in state.changes
    assert [checkpoint.name for checkpoint in list_checkpoints(recipe.directory)] == ["step-00000004", "step-00000008"]
    assert metrics(longer, "valid/scored_from") == [4, 4, 4]
    capsys.readouterr()
    assert train_tiny(longer, tiny_data, valid_identity="b" * 64).changes == state.changes
    assert "validation set" not in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "then", "option"),
    [
        ({}, {"label_smoothing": 0.3}, "train.label_smoothing"),
        ({"ema_decay": 0.9}, {"ema_decay": 0.9, "average": "ema"}, "train.average"),
        ({}, {"best_metric": "bleu", "validate_bleu_every": 3}, "train.best_metric"),
    ],
)
def test_changed_score_options_discard_scores(
    before: dict[str, Any],
    then: dict[str, Any],
    option: str,
    tiny_recipe: Recipe,
    tiny_data: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe = with_train(tiny_recipe, schedule="constant", max_steps=6, validate_every=3)
    train_tiny(with_train(recipe, **before), tiny_data)
    capsys.readouterr()
    state = train_tiny(with_train(recipe, **then, max_steps=9), tiny_data)
    message = f"{option} changed: earlier scores are not comparable; discarding the best (update 6)"
    assert message in capsys.readouterr().err
    assert list(state.scores) == ["6", "9"] and state.scored_from == 6


@pytest.mark.slow
def test_search_options_discard_bleu_scores(tiny_recipe: Recipe, tiny_data: Path) -> None:
    recipe = with_train(tiny_recipe, schedule="constant", max_steps=6, validate_bleu_every=6)
    for metric, scored_from in (("loss", 0), ("nll", 0), ("bleu", 6)):
        run_dir = tiny_recipe.directory / metric
        train_tiny(with_train(recipe, run_dir, best_metric=metric), tiny_data)
        tree = with_train(recipe, run_dir, best_metric=metric, max_steps=12).model_dump(mode="json", exclude_none=True)
        tree["decode"]["beam_size"] = 2
        state = train_tiny(Recipe.model_validate(tree), tiny_data)
        assert state.scored_from == scored_from
        assert (Change(6, "decode.beam_size", 4, 2) in state.changes) == (metric == "bleu")


@pytest.mark.slow
def test_a_finished_run_names_the_limit(tiny_recipe: Recipe, tiny_data: Path) -> None:
    short = with_train(tiny_recipe, max_steps=12, max_minutes=1e-6, log_every=6)
    assert train_tiny(short, tiny_data).step == 6
    with pytest.raises(UserError, match=r"max_steps is 24, was 12: .* raise train\.max_minutes to continue training"):
        train_tiny(with_train(short, max_steps=24), tiny_data)
    with pytest.raises(UserError, match=r"raise train\.max_steps and train\.max_minutes to continue training"):
        train_tiny(with_train(short, max_steps=3, label_smoothing=0.3), tiny_data)


@pytest.mark.slow
def test_a_finished_run_rejects_other_micro_batches_and_another_best_metric(
    tiny_recipe: Recipe, tiny_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = with_train(tiny_recipe, max_steps=2)
    train_tiny(recipe, tiny_data)
    capsys.readouterr()
    changes: dict[str, tuple[Any, Any]] = {
        "micro_batch_tokens": (40, 80),
        "micro_batches": (4, "auto"),
        "activation_checkpointing": (True, False),
        "shapes": ("fixed", "auto"),
        "best_metric": ("bleu", "loss"),
        "adam_betas": ([0.8, 0.98], [0.9, 0.98]),
    }
    for option, (value, before) in changes.items():
        message = re.escape(f"train.{option} is {value}, was {before}: no update used this value")
        with pytest.raises(UserError, match=message):
            train_tiny(with_train(recipe, validate_bleu_every=6, **{option: value}), tiny_data)
    messages = capsys.readouterr().err
    assert "resuming from" not in messages and "changed options" not in messages


def test_a_lower_limit_that_ends_an_interrupted_run_is_named(tiny_recipe: Recipe, tmp_path: Path) -> None:
    saved = dump_recipe(with_train(tiny_recipe, max_epochs=3))
    (tmp_path / "recipe.toml").write_text(saved, encoding="utf-8")
    recipe, state = with_train(tiny_recipe, max_epochs=1), TrainState(step=14, epoch=1, update=5)
    message = "run would end at step 14, and train.max_epochs is 1, was 3: no update used this value; restore the old"
    with pytest.raises(UserError, match=message):
        require_used_options(recipe, state, tmp_path)


def test_a_run_that_ends_has_no_next_learning_rate(
    tiny_recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = with_train(tiny_recipe, max_steps=14, schedule="cosine", warmup_steps=2)
    (tmp_path / "recipe.toml").write_text(dump_recipe(whole), encoding="utf-8")
    for max_steps, has_next in ((8, True), (7, False)):
        log_resuming(with_train(whole, max_steps=max_steps), TrainState(step=7), tmp_path)
        messages = capsys.readouterr().err
        assert f"train.max_steps is {max_steps}, was 14" in messages
        assert ("the learning rate of update 8 is" in messages) == has_next


@pytest.mark.slow
def test_a_schedule_that_ends_early_is_recorded(tiny_recipe: Recipe, tiny_data: Path) -> None:
    whole = with_train(tiny_recipe, max_steps=8)
    train_tiny(whole, tiny_data)
    shutil.rmtree(list_checkpoints(whole.directory)[-1])
    ended = with_train(whole, max_steps=6, log_every=2)
    for _ in range(2):
        assert train_tiny(ended, tiny_data).changes == [Change(6, "train.max_steps", 8, 6)]


@pytest.mark.slow
def test_a_restart_after_later_updates_does_not_excuse_a_jump(tiny_recipe: Recipe, tiny_data: Path) -> None:
    ended = with_train(tiny_recipe, max_steps=6)
    train_tiny(ended, tiny_data)
    with pytest.raises(UserError, match=r"would be .* after 0, .*max_steps=6; .*\(train\.schedule_start=6\)"):
        train_tiny(with_train(ended, max_steps=40, schedule_start=12), tiny_data)


@pytest.mark.slow
def test_the_cause_of_a_refused_rate_is_named(tiny_recipe: Recipe, tiny_data: Path) -> None:
    recipe = with_train(tiny_recipe, max_steps=7, schedule="constant", warmup_steps=30)
    train_tiny(recipe, tiny_data)
    shutil.rmtree(list_checkpoints(recipe.directory)[-1])  # as if interrupted at update 6
    with pytest.raises(UserError, match=r"because the schedule was changed; .*\(train\.schedule_start=6\)"):
        train_tiny(with_train(recipe, warmup_steps=0), tiny_data)


@pytest.mark.slow
def test_a_time_limit_did_not_end_a_complete_run(
    tiny_recipe: Recipe, tiny_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = with_train(tiny_recipe, max_steps=6)
    train_tiny(recipe, tiny_data)
    train_tiny(with_train(recipe, max_minutes=1e-6), tiny_data)
    assert "training is complete at step 6; nothing to do\n" in capsys.readouterr().err


@pytest.mark.slow
def test_the_report_has_the_validation_that_chose_the_best_step(tiny_recipe: Recipe, tiny_data: Path) -> None:
    recipe = with_train(tiny_recipe, max_steps=6, ema_decay=0.9)
    world = World(0, 1, torch.device("cpu"))
    for average, then, name in (("last", "ema", "nll"), ("ema", "last", "average_nll")):
        run = tiny_recipe.directory / average
        train_tiny(with_train(recipe, run, average=average), tiny_data)
        finished = with_train(recipe, run, average=then)
        state = train_tiny(finished, tiny_data)
        summary = reporting._summarize_training(finished, world, state, [], None)
        assert (summary.valid_step, summary.valid_nll) == (6, state.best_validation[f"valid/{name}"])


@pytest.mark.slow
def test_the_report_has_the_machine_of_the_updates(
    tiny_recipe: Recipe, tiny_data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A finished run may be reported on another device, with another default precision."""

    def use_precision(precision: str) -> None:
        for module in ("nmt.train.update", "nmt.pipeline.reporting"):
            monkeypatch.setattr(f"{module}.choose_precision", lambda *_: precision)

    recipe = with_train(tiny_recipe, max_steps=6, schedule="constant", precision="auto")
    use_precision("bf16")
    train_tiny(recipe, tiny_data)
    use_precision("fp32")
    other = World(0, 1, torch.device("cuda"))
    state = train_tiny(recipe, tiny_data)
    summary = reporting._summarize_training(recipe, other, state, [], None)
    assert (summary.device, summary.precision, state.changes) == ("cpu", "bf16", [])
    capsys.readouterr()
    state = train_tiny(with_train(recipe, max_steps=12), tiny_data)
    assert "the precision is now fp32, was bf16" in capsys.readouterr().err
    assert state.changes[1:] == [Change(6, "precision", "bf16", "fp32")]
    assert reporting._summarize_training(recipe, other, state, [], None).precision == "fp32"
    state = train_tiny(with_train(recipe, max_steps=18, precision="bf16"), tiny_data)
    assert [change.option for change in state.changes[2:]] == ["train.max_steps", "train.precision"]


@pytest.mark.slow
@pytest.mark.parametrize("average", ["last", "ema"])
def test_the_model_has_the_search_options_of_the_report(
    average: Literal["last", "ema"], tiny_recipe: Recipe, tiny_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"ema_decay": 0.9} if average == "ema" else {"average_count": 1}
    recipe = with_train(tiny_recipe, max_steps=6, average=average, **options)
    train_tiny(recipe, tiny_data)
    for beam_size in (4, 3):
        tree = recipe.model_dump(mode="json", exclude_none=True) | {"decode": {"beam_size": beam_size}}
        changed = Recipe.model_validate(tree)
        averaging.update_model(changed)
        assert read_model_metadata(recipe.directory / "model").decode.beam_size == beam_size
    capsys.readouterr()
    averaging.update_model(changed)
    assert "is up to date" in capsys.readouterr().err
    (recipe.directory / "recipe.toml").write_text(dump_recipe(changed), encoding="utf-8")  # as `nmt run` does
    averaged = recipe.directory.parent / "averaged"
    pipeline.average(str(recipe.directory), str(averaged), average, 1)
    assert read_model_metadata(averaged).decode.beam_size == 3


@pytest.mark.slow
def test_an_average_of_the_best_needs_all_of_them(tiny_recipe: Recipe, tiny_data: Path, tmp_path: Path) -> None:
    recipe = with_train(tiny_recipe, max_steps=8, validate_every=2, save_every=2, keep_last=1, average_count=1)
    state = train_tiny(recipe, tiny_data)
    kept = {checkpoint_step(path) for path in list_checkpoints(recipe.directory)}
    removed = set(state.best_steps(3)) - kept
    assert removed
    steps = ", ".join(map(str, sorted(removed)))
    with pytest.raises(UserError, match=rf"lacks checkpoints that are among its 3 best \(steps {steps}\)"):
        pipeline.average(recipe.directory, tmp_path / "out", "best", 3)
    assert pipeline.average(recipe.directory, tmp_path / "out", "best", 1)


@pytest.mark.slow
def test_the_best_checkpoints_need_a_validation(
    tiny_recipe: Recipe, tiny_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = with_train(tiny_recipe, max_steps=6, average="best", average_count=1)
    state = train_tiny(recipe, tiny_data)
    assert state.scores
    monkeypatch.setattr(TrainState, "load", lambda path: replace(state, scores={}))
    with pytest.raises(UserError, match="has no validated checkpoint; the average of the best needs one"):
        averaging.update_model(recipe)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"average_count": 1}, "model is checkpoint step-00000006"),
        ({"average_count": 2}, "model is the average of 2 checkpoints, step-00000003 to step-00000006"),
        ({"average": "ema", "ema_decay": 0.9}, "model is the EMA at step-00000006"),
    ],
)
def test_the_model_is_described(
    options: dict[str, Any], expected: str, tiny_recipe: Recipe, tiny_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = with_train(tiny_recipe, max_steps=6, save_every=3, keep_last=2, **options)
    train_tiny(recipe, tiny_data)
    averaging.update_model(recipe)
    assert expected in capsys.readouterr().err.replace("\n", "")


@pytest.mark.slow
def test_patience_restarts_on_another_validation_text(tiny_recipe: Recipe, tiny_data: Path) -> None:
    recipe = with_train(tiny_recipe, patience=2, learning_rate=1e-12, max_steps=500, validate_every=2)
    stopped = train_tiny(recipe, tiny_data, valid_identity="a").step
    assert train_tiny(recipe, tiny_data, valid_identity="a").step == stopped
    assert train_tiny(recipe, tiny_data, valid_identity="b").step > stopped


@pytest.mark.slow
def test_a_finished_run_validates_on_another_text(tiny_recipe: Recipe, tiny_data: Path) -> None:
    recipe = with_train(tiny_recipe, max_steps=2)
    train_tiny(recipe, tiny_data, valid_identity="a")
    state = train_tiny(recipe, tiny_data, valid_identity="b")
    assert list(state.scores) == ["2"] and state.best_validation["valid/nll"] > 0
    assert TrainState.load(list_checkpoints(recipe.directory)[-1]) == state


@pytest.mark.slow
def test_scores_without_a_text_identity_are_kept(
    tiny_recipe: Recipe, tiny_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = with_train(tiny_recipe, max_steps=6)
    scores = train_tiny(recipe, tiny_data).scores  # as in versions without identities
    assert train_tiny(recipe, tiny_data, valid_identity="a").scores == scores
    assert "does not identify its validation set; scores are assumed" in capsys.readouterr().err
    tree = recipe.model_dump(mode="json", exclude_none=True)
    tree["data"]["valid"] = [{"kind": "text", "src": "c", "tgt": "d"}]
    assert train_tiny(Recipe.model_validate(tree), tiny_data, valid_identity="a").scored_from == 6


@pytest.mark.slow
def test_an_unchanged_recipe_logs_no_changes(
    tiny_recipe: Recipe, tiny_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = with_train(tiny_recipe, max_steps=7)
    train_tiny(recipe, tiny_data)
    shutil.rmtree(list_checkpoints(recipe.directory)[-1])
    capsys.readouterr()
    train_tiny(recipe, tiny_data)
    messages = capsys.readouterr().err
    assert "resuming from" in messages
    assert "changed options" not in messages and "learning rate" not in messages


@pytest.mark.slow
def test_a_best_step_worse_than_the_start_model_is_reported_after_a_resume_too(
    tiny_recipe: Recipe, tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_tiny(tiny_recipe, tiny_data)
    options = {"schedule": "constant", "warmup_steps": 0, "start_from": str(tiny_recipe.directory)}
    tuned = with_train(tiny_recipe, run_dir=tmp_path / "tuned", learning_rate=0.1, max_steps=2, **options)
    capsys.readouterr()
    train_tiny(with_train(tuned, validate_every=2), tiny_data, valid_identity="a")
    validations = [line for line in capsys.readouterr().err.splitlines() if "validation loss" in line]
    assert [line.rpartition(" (best")[2] for line in validations[1:]] == [", but worse than the initial model)"]
    slow = with_train(tuned, learning_rate=0.001, max_steps=4, validate_every=2)
    state = train_tiny(slow, tiny_data, valid_identity="a")
    assert state.best_step == 4
    assert "(best, but worse than the initial model)" in capsys.readouterr().err.replace("\n", " ")
    summary = reporting._summarize_training(slow, World(0, 1, torch.device("cpu")), state, [], None)
    assert summary.is_worse_than_start
    assert train_tiny(slow, tiny_data, valid_identity="b").start_score is None, "not comparable"


@pytest.mark.slow
def test_the_start_model_is_validated_first(
    tiny_recipe: Recipe, tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_tiny(with_train(tiny_recipe, max_steps=6), tiny_data)
    (last,) = metrics(tiny_recipe, "valid/nll")
    small = {"max_steps": 2, "validate_every": 2, "save_every": 2, "start_from": str(tiny_recipe.directory)}
    tuned = with_train(tiny_recipe, run_dir=tmp_path / "tuned", **small)
    capsys.readouterr()
    state = train_tiny(tuned, tiny_data)
    assert "initial weights: " in capsys.readouterr().err
    steps = metrics(tuned, "step")
    assert steps[0] == 0 and metrics(tuned, "valid/nll")[0] == pytest.approx(last, rel=1e-6)
    assert set(state.scores) == {"2"}  # step 0 has no checkpoint, so no score
    shutil.rmtree(tuned.directory / "checkpoints")  # as if killed before the first checkpoint
    train_tiny(tuned, tiny_data)
    assert metrics(tuned, "step") == steps  # step 0 is logged once


@pytest.mark.slow
def test_infinite_perplexity_is_never_the_best(
    tiny_recipe: Recipe, tiny_data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trainer_module, "validate", lambda *_: Validation(loss=800.0, nll=810.0))
    state = train_tiny(with_train(tiny_recipe, max_steps=6), tiny_data)
    assert state.best_step == 0 and state.best_validation == {}
    messages = capsys.readouterr().err
    assert "perplexity inf" in messages and "(best)" not in messages
