"""Training that is stopped, is interrupted, runs out of patience or of disk space, or reaches its last epoch."""

import errno
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nmt.checkpoint import load_checkpoint
from nmt.errors import UserError
from nmt.models import TranslationModel
from nmt.processes.distributed import World
from nmt.recipe import Recipe
from nmt.storage import sealed
from nmt.storage.run_folder import checkpoint_step, list_checkpoints
from nmt.train import trainer as trainer_module
from nmt.train.background_writer import BackgroundWriter
from nmt.train.data import ValidationBleu
from nmt.train.signals import Stopped
from nmt.train.trainer import Trainer
from nmt.train.validate import Validation, validate
from tests.train.run_tiny import final_files, metrics, train_tiny, with_train


@pytest.mark.slow
def test_a_stopped_run_keeps_the_metrics_and_checkpoints_of_an_uninterrupted_one(
    tiny_recipe: Recipe, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = with_train(
        tiny_recipe, run_dir=tmp_path / "whole", max_steps=12, save_every=4, validate_every=6, keep_best=0
    )
    train_tiny(whole, tiny_data)
    parts = with_train(whole, run_dir=tmp_path / "parts")
    update = trainer_module.Trainer.update

    def update_or_stop(trainer: trainer_module.Trainer, given: Any) -> Any:
        if trainer.state.step + 1 in (5, 6, 10):
            os.kill(os.getpid(), signal.SIGTERM)
        return update(trainer, given)

    with monkeypatch.context() as patch:
        patch.setattr(trainer_module.Trainer, "update", update_or_stop)
        for saved in ([4, 5], [4, 6], [4, 8, 10]):
            with pytest.raises(Stopped):
                train_tiny(parts, tiny_data)
            assert list(map(checkpoint_step, list_checkpoints(parts.directory))) == saved
        train_tiny(parts, tiny_data)
    names = [[path.name for path in list_checkpoints(recipe.directory)] for recipe in (whole, parts)]
    assert names == [["step-00000004", "step-00000008", "step-00000012"]] * 2
    assert metrics(parts, "train/loss") == metrics(whole, "train/loss")
    assert final_files(parts) == final_files(whole)


@pytest.mark.slow
def test_an_interrupted_run_can_end_at_its_last_update(
    tiny_recipe: Recipe, tiny_data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A lower limit makes the update the last one, which is logged and validated as usual."""
    recipe = with_train(tiny_recipe, max_steps=8, validate_every=50, save_every=50, log_every=50)
    update = trainer_module.Trainer.update

    def update_and_stop(trainer: trainer_module.Trainer, given: Any) -> Any:
        if trainer.state.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return update(trainer, given)

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(trainer_module.Trainer, "update", update_and_stop)
        train_tiny(recipe, tiny_data)
    with pytest.raises(UserError, match=r"max_steps is 4, but \S+ has 6 updates; it must be at least 6"):
        train_tiny(with_train(recipe, max_steps=4), tiny_data)
    state = train_tiny(with_train(recipe, max_steps=6), tiny_data)
    assert list(state.scores) == ["6"] and not state.is_interim and not state.unlogged["tokens"]
    assert len(metrics(recipe, "train/nll")) == len(metrics(recipe, "valid/nll")) == 1
    capsys.readouterr()
    train_tiny(with_train(recipe, max_steps=6), tiny_data)
    assert "training is complete at step 6; nothing to do" in capsys.readouterr().err


@pytest.mark.slow
def test_patience_ends_a_run_that_does_not_improve_and_a_second_start_does_nothing(
    tiny_recipe: Recipe, tiny_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = with_train(tiny_recipe, patience=2, learning_rate=1e-12, max_steps=500, validate_every=2, log_every=500)
    state = train_tiny(recipe, tiny_data)
    assert state.validations_without_best == 2
    assert len(metrics(recipe, "train/loss")) == 1  # at the end, although `log_every` is larger
    assert state.step < 500
    reason = f"step {state.step}, because train.patience was reached"
    assert f"training ended at {reason}\n" in capsys.readouterr().err
    written = (recipe.directory / "metrics.jsonl").read_bytes()
    assert train_tiny(recipe, tiny_data).step == state.step
    assert f"training is complete at {reason}; nothing to do\n" in capsys.readouterr().err
    assert (recipe.directory / "metrics.jsonl").read_bytes() == written


@pytest.mark.slow
def test_max_epochs_ends_training_at_the_end_of_an_epoch(
    tiny_recipe: Recipe, tiny_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A warning names the last update, also after resuming within an epoch."""
    options: dict[str, Any] = {"max_epochs": 2, "save_every": 1, "keep_last": 100, "warmup_steps": 1}
    recipe = with_train(tiny_recipe, schedule="linear", max_steps=500, **options)
    state = train_tiny(recipe, tiny_data)
    assert (state.epoch, state.update) == (2, 0)
    assert state.step == 2 * state.updates_in_epoch
    warning = f"training ends after about {state.step} updates (train.max_epochs)"
    assert warning in capsys.readouterr().err
    for checkpoint in list_checkpoints(recipe.directory)[state.updates_in_epoch // 2 :]:
        shutil.rmtree(checkpoint)
    assert train_tiny(recipe, tiny_data).step == state.step
    assert warning in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["loss", "decoding"])
def test_a_stop_during_validation_is_prompt(
    tiny_recipe: Recipe, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The step is saved without validation, which the next start runs."""
    signals = iter([signal.SIGTERM])

    def send_signal_once() -> None:
        for number in signals:
            os.kill(os.getpid(), number)

    def validate_and_stop(*arguments: Any) -> Validation:
        send_signal_once()
        return validate(*arguments)

    def translate_and_stop(_model: TranslationModel, check_stop: Callable[[], None]) -> ValidationBleu:
        send_signal_once()
        check_stop()
        return ValidationBleu(12.5, "")

    options = {"validate_bleu_every": 6, "best_metric": "bleu", "keep_best": 2, "max_steps": 12}
    whole = with_train(tiny_recipe, run_dir=tmp_path / "whole", **options)
    train_tiny(whole, tiny_data, translate=lambda *_: ValidationBleu(12.5, ""))
    parts = with_train(tiny_recipe, run_dir=tmp_path / "parts", **options)
    if moment == "loss":
        monkeypatch.setattr(trainer_module, "validate", validate_and_stop)
    with pytest.raises(Stopped):
        train_tiny(parts, tiny_data, translate=translate_and_stop)
    (stopped,) = list_checkpoints(parts.directory)
    assert load_checkpoint(stopped).state["validation_due"]
    state = train_tiny(parts, tiny_data, translate=translate_and_stop)
    assert final_files(parts) == final_files(whole)
    assert set(state.scores) == {"6", "12"}
    assert metrics(parts, "valid/loss") == metrics(whole, "valid/loss")
    assert not load_checkpoint(stopped).state["validation_due"]  # the checkpoint is updated too


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["loss", "nll"])
def test_early_stopping_uses_the_loss_or_the_nll(
    tiny_recipe: Recipe, tiny_data: Path, monkeypatch: pytest.MonkeyPatch, metric: str
) -> None:
    losses = iter([Validation(3.0, 2.0), Validation(3.1, 1.9), Validation(2.9, 1.95)])
    monkeypatch.setattr(trainer_module, "validate", lambda *_: next(losses))
    recipe = with_train(tiny_recipe, validate_every=2, save_every=2, max_steps=6, patience=1, best_metric=metric)
    state = train_tiny(recipe, tiny_data)
    assert (state.step, state.best_step) == ((4, 2) if metric == "loss" else (6, 4))
    assert state.scores["4"] == (-3.1 if metric == "loss" else -1.9)


@pytest.mark.slow
def test_a_signal_during_the_last_write_stops_the_run(
    tiny_recipe: Recipe, tiny_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, signals = sealed.write_synced, iter([signal.SIGTERM])

    def write_after_signal(path: Path, data: bytes) -> None:
        for number in signals:
            os.kill(os.getpid(), number)
        write(path, data)

    monkeypatch.setattr(sealed, "write_synced", write_after_signal)
    recipe = with_train(tiny_recipe, max_steps=2, save_every=10)
    with pytest.raises(Stopped):
        train_tiny(recipe, tiny_data)
    (last,) = list_checkpoints(recipe.directory)
    assert load_checkpoint(last).state["step"] == recipe.train.max_steps


def test_all_ranks_wait_without_a_timeout_for_the_writes_of_rank_0(
    tiny_recipe: Recipe, tiny_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the next synchronization point, the others would report after NMT_TIMEOUT_SECONDS that rank 0 hangs."""
    write, wait, run_on_main = Trainer._write, BackgroundWriter.wait, World.run_on_main
    is_awaited, on_main, waits = threading.Event(), threading.Event(), list[bool]()

    def write_once_awaited(*arguments: Any) -> None:
        assert is_awaited.wait(60)
        is_awaited.clear()
        write(*arguments)

    def recorded_wait(writer: BackgroundWriter) -> None:
        if writer._pending is not None:
            waits.append(on_main.is_set())
            is_awaited.set()
        wait(writer)

    def recorded_run(world: World, work: Callable[[], object]) -> None:
        on_main.set()
        run_on_main(world, work)
        on_main.clear()

    monkeypatch.setattr(Trainer, "_write", write_once_awaited)
    monkeypatch.setattr(BackgroundWriter, "wait", recorded_wait)
    monkeypatch.setattr(World, "run_on_main", recorded_run)
    train_tiny(with_train(tiny_recipe, max_steps=2, save_every=1), tiny_data)
    assert waits == [True, True]


@pytest.mark.slow
def test_a_full_disk_ends_the_run_and_keeps_checkpoints(
    tiny_recipe: Recipe, tiny_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = sealed.write_synced

    def full(path: Path, data: bytes) -> None:
        if "step-00000004" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, data)

    monkeypatch.setattr(sealed, "write_synced", full)
    with pytest.raises(UserError, match="disk is full"):
        train_tiny(with_train(tiny_recipe, save_every=2), tiny_data)
    (kept,) = list_checkpoints(tiny_recipe.directory)
    assert load_checkpoint(kept).state["step"] == 2
