"""Whole runs on a tiny corpus: resume to the bit, any number of processes, signals, what is logged and kept."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from run_tiny import train_tiny
from torch.nn import functional as F

from nmt.checkpoint import list_checkpoints, load_checkpoint, read_tensors
from nmt.data.loader import make_batch
from nmt.data.packing import plan_epoch
from nmt.data.store import PairStore
from nmt.model.transformer import Transformer
from nmt.recipe import Recipe, UserError, dump_recipe
from nmt.train import trainer as trainer_module
from nmt.train.schedule import learning_rate

RUN_TINY = Path(__file__).with_name("run_tiny.py")


def with_train(recipe: Recipe, run_dir: Path | None = None, **changes: Any) -> Recipe:
    tree = recipe.model_dump(mode="json", exclude_none=True)
    tree["train"] |= changes
    if run_dir is not None:
        tree["run_dir"] = str(run_dir)
    return Recipe.model_validate(tree)


def metrics(recipe: Recipe, name: str) -> list[float]:
    lines = (recipe.directory / "metrics.jsonl").read_text().splitlines()
    return [entry[name] for entry in map(json.loads, lines) if name in entry]


def final_files(recipe: Recipe) -> tuple[bytes, bytes]:
    last = list_checkpoints(recipe.directory)[-1]
    return (last / "model.safetensors").read_bytes(), (last / "optimizer.safetensors").read_bytes()


def test_the_model_learns_and_everything_is_noted(tiny_recipe: Recipe, tiny_data: Path) -> None:
    recipe = with_train(tiny_recipe, max_steps=150, validate_every=50, save_every=50)
    position = train_tiny(recipe, tiny_data)
    losses = metrics(recipe, "train/loss")
    assert position.step == len(losses) == 150
    assert losses[-1] < losses[0] - 0.3
    assert position.epoch == 150 // position.updates_in_epoch
    assert len(metrics(recipe, "valid/loss")) == 3
    assert metrics(recipe, "train/learning_rate") == [
        pytest.approx(learning_rate(recipe.train, 16, step)) for step in range(1, 151)
    ]
    assert all(speed > 0 for speed in metrics(recipe, "train/tokens_per_second"))
    assert [path.name for path in list_checkpoints(recipe.directory)] == [
        "step-00000050",
        "step-00000100",
        "step-00000150",
    ]
    assert any((recipe.directory / "tensorboard").iterdir())


def test_one_update_equals_plain_torch_on_one_big_padded_free_batch(tiny_recipe: Recipe, tiny_data: Path) -> None:
    """Accumulation over micro-batches, normalisation by all tokens, Adam and the schedule, done over in a few lines."""
    tree = tiny_recipe.model_dump(mode="json", exclude_none=True)
    tree["model"]["dropout"] = 0.0
    recipe = with_train(Recipe.model_validate(tree), max_steps=3, validate_every=3, save_every=3)
    train_tiny(recipe, tiny_data)

    store = PairStore(tiny_data, "train")
    options = recipe.train
    torch.manual_seed(recipe.seed)
    model = Transformer(recipe.model, 40, 40)
    adam = torch.optim.Adam(model.parameters(), betas=options.adam_betas, eps=options.adam_epsilon)
    plan = plan_epoch(
        store.src.lengths, store.tgt.lengths, batch_tokens=options.batch_tokens, micro_batch_tokens=10**9,
        seed=recipe.seed, epoch=0,
    )  # fmt: skip
    for step in (1, 2, 3):
        batch = make_batch(store, plan.sentences(step - 1))
        loss = F.cross_entropy(model.logits(model(batch.src, batch.tgt)), batch.labels, label_smoothing=0.1)
        adam.zero_grad()
        loss.backward()
        adam.param_groups[0]["lr"] = learning_rate(options, 16, step)
        adam.step()
    trained = read_tensors(list_checkpoints(recipe.directory)[-1] / "model.safetensors")
    for name, parameter in model.named_parameters():
        if not name.endswith(
            ".k.bias"
        ):  # softmax does not see it: its gradient is rounding noise, which Adam scales up
            torch.testing.assert_close(trained[name], parameter.detach(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("stops", [[6], [6, 12, 18]], ids=["once", "three times"])
def test_stop_and_resume_gives_the_same_bits(
    tiny_recipe: Recipe, tiny_data: Path, tmp_path: Path, stops: list[int]
) -> None:
    whole = with_train(tiny_recipe, run_dir=tmp_path / "whole")
    train_tiny(whole, tiny_data)
    parts = with_train(tiny_recipe, run_dir=tmp_path / "parts")
    for stop in stops:  # the schedule must not see the earlier end, so the run is cut short by removing what follows
        train_tiny(parts, tiny_data)
        for directory in list_checkpoints(parts.directory):
            if int(directory.name.removeprefix("step-")) > stop:
                for file in directory.iterdir():
                    file.unlink()
                directory.rmdir()
    train_tiny(parts, tiny_data)
    assert metrics(parts, "train/loss") == metrics(whole, "train/loss")
    assert final_files(parts) == final_files(whole)


def test_a_second_start_of_a_finished_run_does_nothing(tiny_recipe: Recipe, tiny_data: Path) -> None:
    train_tiny(tiny_recipe, tiny_data)
    before = (tiny_recipe.directory / "metrics.jsonl").read_bytes()
    assert train_tiny(tiny_recipe, tiny_data).step == 24
    assert (tiny_recipe.directory / "metrics.jsonl").read_bytes() == before


def test_a_run_is_not_continued_with_another_recipe(tiny_recipe: Recipe, tiny_data: Path) -> None:
    train_tiny(with_train(tiny_recipe, max_steps=6), tiny_data)
    tree = tiny_recipe.model_dump(mode="json", exclude_none=True)
    tree["model"]["d_ff"], tree["seed"] = 64, 5
    with pytest.raises(UserError, match=r"another seed, model\.d_ff;"):
        train_tiny(Recipe.model_validate(tree), tiny_data)


def run_in_processes(recipe: Recipe, data: Path, processes: int) -> None:
    recipe.directory.mkdir(parents=True)
    path = recipe.directory / "given.toml"
    path.write_text(dump_recipe(recipe))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(RUN_TINY.parents[2])}
    done = subprocess.run(
        [*launcher, str(RUN_TINY), str(path), str(data)], env=environment, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr


def test_one_and_two_processes_give_the_same_losses(tiny_recipe: Recipe, tiny_data: Path, tmp_path: Path) -> None:
    one = with_train(tiny_recipe, run_dir=tmp_path / "one", max_steps=12)
    train_tiny(one, tiny_data)
    two = with_train(tiny_recipe, run_dir=tmp_path / "two", max_steps=12)
    run_in_processes(two, tiny_data, 2)
    assert metrics(two, "train/loss") == pytest.approx(metrics(one, "train/loss"), rel=1e-6)
    assert metrics(two, "valid/loss") == pytest.approx(metrics(one, "valid/loss"), rel=1e-6)


def test_sigterm_saves_and_exits_143_and_the_run_goes_on(tiny_recipe: Recipe, tiny_data: Path) -> None:
    recipe = with_train(tiny_recipe, max_steps=100_000, save_every=100_000, validate_every=100_000, schedule="constant")
    recipe.directory.mkdir(parents=True)
    path = recipe.directory / "given.toml"
    path.write_text(dump_recipe(recipe))
    environment = os.environ | {"PYTHONPATH": str(RUN_TINY.parents[2])}
    process = subprocess.Popen([sys.executable, str(RUN_TINY), str(path), str(tiny_data)], env=environment)
    log = recipe.directory / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (log.exists() and log.stat().st_size):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 143
    (saved,) = list_checkpoints(recipe.directory)
    step = load_checkpoint(saved).state["step"]
    assert step == len(metrics(recipe, "train/loss")) > 0
    assert train_tiny(with_train(recipe, max_steps=step + 2), tiny_data).step == step + 2


def test_patience_ends_a_run_that_does_not_improve(tiny_recipe: Recipe, tiny_data: Path) -> None:
    recipe = with_train(tiny_recipe, patience=2, learning_rate=1e-12, max_steps=500, validate_every=2)
    position = train_tiny(recipe, tiny_data)
    assert position.validations_without_best == 2
    assert position.step < 500


def test_epoch_limit_ends_at_the_end_of_an_epoch(tiny_recipe: Recipe, tiny_data: Path) -> None:
    position = train_tiny(with_train(tiny_recipe, max_epochs=2, max_steps=500), tiny_data)
    assert (position.epoch, position.update) == (2, 0)
    assert position.step == 2 * position.updates_in_epoch


def test_old_checkpoints_go_and_the_best_stays(tiny_recipe: Recipe, tiny_data: Path) -> None:
    recipe = with_train(tiny_recipe, keep_last=2, average_last=2, keep_best=1, learning_rate=0.5, warmup_steps=0)
    position = train_tiny(recipe, tiny_data)
    steps = [int(path.name.removeprefix("step-")) for path in list_checkpoints(recipe.directory)]
    assert steps == sorted({position.best_step, 18, 24})


def test_an_update_without_finite_gradient_changes_nothing(
    tiny_recipe: Recipe, tiny_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_module.Trainer, "_clip_gradients", lambda self: float("nan"))
    recipe = with_train(tiny_recipe, max_steps=3, validate_every=3, save_every=3)
    position = train_tiny(recipe, tiny_data)
    torch.manual_seed(recipe.seed)
    fresh = dict(Transformer(recipe.model, 40, 40).named_parameters())
    saved = read_tensors(list_checkpoints(recipe.directory)[-1] / "model.safetensors")
    assert position.skipped == 3
    assert all(torch.equal(saved[name], parameter) for name, parameter in fresh.items())
    with pytest.raises(UserError, match="20 updates in a row"):
        train_tiny(with_train(recipe, max_steps=100), tiny_data)


def test_a_corrupt_checkpoint_is_set_aside_and_the_one_before_is_used(
    tiny_recipe: Recipe, tiny_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_tiny(tiny_recipe, tiny_data)
    expected = final_files(tiny_recipe)
    broken = list_checkpoints(tiny_recipe.directory)[-1] / "model.safetensors"
    content = bytearray(broken.read_bytes())
    content[len(content) // 2] ^= 1
    broken.write_bytes(content)
    assert train_tiny(tiny_recipe, tiny_data).step == 24
    assert "corrupt" in capsys.readouterr().err
    assert final_files(tiny_recipe) == expected
