"""Signals during the stages of a run."""

import signal
from pathlib import Path
from typing import Any

import pytest

from nmt.storage.run_folder import list_checkpoints
from nmt.train import trainer as trainer_module
from tests.calling import Nmt, one_line
from tests.train.small_run import recipe as recipe

pytestmark = pytest.mark.usefixtures("no_curves")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_preparation_without_leftovers(
    number: signal.Signals, status: int, recipe: Path, tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_recipe: object, directory: Path, _on_read: object) -> None:
        (directory / "train.src.tokens.npy").write_bytes(b"")
        signal.raise_signal(number)

    monkeypatch.setattr("nmt.data.prepare._prepare_all", interrupted)
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        ended, _, err = nmt("prepare", recipe, f"run_dir={tmp_path / 'run'}")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (ended, one_line(err)) == (status, "interrupted")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status", "started"),
    [
        (signal.SIGTERM, 143, "nmt.pipeline.steps.build_model"),
        (signal.SIGUSR1, 143, "nmt.pipeline.scoring.Translator.load"),
        (signal.SIGINT, 130, "nmt.pipeline.scoring.Translator.load"),
    ],
)
def test_a_signal_before_or_after_training_ends_the_run_cleanly(
    number: signal.Signals,
    status: int,
    started: str,
    recipe: Path,
    tmp_path: Path,
    nmt: Nmt,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(started, lambda *_args, **_options: signal.raise_signal(number))
    before = signal.signal(number, lambda *_: None)
    try:
        ended, _, err = nmt("run", recipe, f"run_dir={tmp_path / 'run'}", "train.max_steps=1")
    finally:
        signal.signal(number, before)
    assert (ended, err.splitlines()[-1]) == (status, "nmt: interrupted")


@pytest.mark.slow
def test_a_signal_during_training_saves_a_checkpoint(
    recipe: Path, tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("train", recipe, f"run_dir={tmp_path / 'run'}")
    update = trainer_module.Trainer.update

    def update_and_stop(trainer: trainer_module.Trainer, given: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return update(trainer, given)

    with monkeypatch.context() as patch:
        patch.setattr(trainer_module.Trainer, "update", update_and_stop)
        status, _, err = nmt(*command)
    assert status == 143
    assert err.endswith("stopped by a signal (exit status 143); rerun the same command to resume\n")
    assert [path.name for path in list_checkpoints(tmp_path / "run")] == ["step-00000001"]
    assert nmt(*command)[0] == 0
