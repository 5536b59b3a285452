"""Updates, checkpoints and resumption of training."""

import gc
import itertools
import math
import re
import shutil
import time
import weakref
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.checkpoint import load_checkpoint, load_model, model_tensors, read_tensors, save_checkpoint, write_ema
from nmt.data.epoch_plan import plan_epoch
from nmt.data.loader import Update, make_batch
from nmt.data.store import PairStore
from nmt.errors import UserError
from nmt.model.transformer import Transformer
from nmt.packing.shapes import UpdateStatistics
from nmt.recipe import Recipe
from nmt.storage.run_folder import checkpoint_step, list_checkpoints
from nmt.train import compilation
from nmt.train import trainer as trainer_module
from nmt.train import update as update_module
from nmt.train.data import ValidationBleu
from nmt.train.loss import TrainingLoss
from nmt.train.schedule import learning_rate
from nmt.train.state import require_same_run
from nmt.train.update import Updater, UpdateResult
from nmt.train.validate import Validation
from tests.train.run_tiny import final_files, metrics, train_tiny, with_train, without_dropout


@pytest.mark.slow
def test_the_model_learns_and_logs_metrics(tiny_recipe: Recipe, tiny_data: Path) -> None:
    options: dict[str, Any] = {"max_steps": 60, "validate_every": 20, "save_every": 20, "learning_rate": 0.01}
    recipe = with_train(tiny_recipe, **options)
    state = train_tiny(recipe, tiny_data)
    losses = metrics(recipe, "train/loss")
    assert state.step == len(losses) == 60
    assert losses[-1] < losses[0] - 0.3
    assert state.epoch == 60 // state.updates_in_epoch
    assert metrics(recipe, "train/epoch") == pytest.approx([step / state.updates_in_epoch for step in range(1, 61)])
    for kind, count in (("train", 60), ("valid", 3)):
        nlls, perplexities = metrics(recipe, f"{kind}/nll"), metrics(recipe, f"{kind}/perplexity")
        assert len(nlls) == count and perplexities == pytest.approx([math.exp(nll) for nll in nlls])
        assert nlls != metrics(recipe, f"{kind}/loss")  # which is smoothed
    assert metrics(recipe, "valid/best_step")[-1] == state.best_step
    assert metrics(recipe, "train/learning_rate") == [
        pytest.approx(learning_rate(recipe.train, 16, step)) for step in range(1, 61)
    ]
    assert all(speed > 0 for speed in metrics(recipe, "train/tokens_per_second"))
    assert [path.name for path in list_checkpoints(recipe.directory)] == [
        "step-00000020",
        "step-00000040",
        "step-00000060",
    ]
    assert any((recipe.directory / "tensorboard").iterdir())


def test_updates_equal_plain_torch(tiny_recipe: Recipe, tiny_data: Path) -> None:
    """Accumulation over micro-batches, Adam and the schedule, in a few lines."""
    recipe = without_dropout(tiny_recipe, tiny_recipe.directory, max_steps=3, validate_every=3, save_every=3)
    train_tiny(recipe, tiny_data)

    store = PairStore(tiny_data, "train")
    options = recipe.train
    torch.manual_seed(recipe.seed)
    model = Transformer(recipe.model, 40, 40)
    adam = torch.optim.Adam(model.parameters(), betas=options.adam_betas, eps=options.adam_epsilon)
    lengths = store.src.lengths, store.tgt.lengths
    needs = UpdateStatistics.from_lengths(*lengths, batch_tokens=options.batch_tokens)
    budgets: dict[str, Any] = {"batch_tokens": needs.tgt_tokens, "src_batch_tokens": needs.src_tokens}
    plan = plan_epoch(*lengths, **budgets, micro_batch_tokens=10**9, seed=recipe.seed, epoch=0)
    for step in (1, 2, 3):
        batch = make_batch(store, plan.sentences(step - 1))
        loss = F.cross_entropy(model.logits(model(batch.src, batch.tgt)), batch.labels, label_smoothing=0.1)
        adam.zero_grad()
        loss.backward()
        adam.param_groups[0]["lr"] = learning_rate(options, 16, step)
        adam.step()
    trained = read_tensors(list_checkpoints(recipe.directory)[-1] / "model.safetensors")
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(
            *(without_key_biases(name, one) for one in (trained[name], parameter.detach())), rtol=1e-3, atol=1e-5
        )


def without_key_biases(name: str, tensor: Tensor) -> Tensor:
    """Remove biases of keys: softmax ignores them, so their gradient is rounding noise, which Adam amplifies."""
    kind = name.rpartition(".")[0].rpartition(".")[2]
    if not name.endswith(".bias") or kind not in ("qkv", "kv"):
        return tensor
    parts = dict(zip(kind, tensor.chunk(len(kind)), strict=True))
    return torch.cat([part for letter, part in parts.items() if letter != "k"])


def remove_checkpoints_after(recipe: Recipe, step: int) -> None:
    """Undo the updates after a step, as if the run had been killed; the schedule is that of the whole run."""
    for directory in list_checkpoints(recipe.directory):
        if checkpoint_step(directory) > step:
            shutil.rmtree(directory)


def require_same_training(one: Recipe, other: Recipe) -> None:
    """Require equal losses and weights, up to the order of summation.

    The relative error of a gradient is about 1e-7. Adam divides by the scale of the gradient and moves a weight by at
    most about the learning rate, 3e-3, at each of 6 updates, so weights differ by about 1e-7, about a rounding error.
    """
    for name in ("train/loss", "valid/loss", "train/gradient_norm"):
        assert metrics(one, name) == pytest.approx(metrics(other, name), rel=1e-6)
    mine, theirs = (read_tensors(list_checkpoints(run.directory)[-1] / "model.safetensors") for run in (one, other))
    assert mine.keys() == theirs.keys()
    for name in mine:
        torch.testing.assert_close(
            without_key_biases(name, mine[name]), without_key_biases(name, theirs[name]), rtol=1e-6, atol=1e-6
        )


@pytest.mark.slow
def test_micro_batches_of_one_shape_train_the_same_model(
    tiny_recipe: Recipe, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = without_dropout(tiny_recipe, tmp_path / "packed", max_steps=6)
    train_tiny(packed, tiny_data)
    sizes = set()
    make_update = Updater.__call__

    def watched(self: Updater, update: Update, step: int) -> UpdateResult:
        for batch in (micro.batch for micro in update.micro_batches):
            sizes.add((batch.src.total, batch.tgt.total, batch.num_sentences, batch.tgt.max_length))
        return make_update(self, update, step)

    monkeypatch.setattr(Updater, "__call__", watched)
    fixed = without_dropout(tiny_recipe, tmp_path / "fixed", max_steps=6, shapes="fixed")
    train_tiny(fixed, tiny_data)
    assert len(sizes) == 1
    require_same_training(fixed, packed)


@pytest.mark.slow
def test_a_step_compiled_as_one_graph_trains_the_same_model(
    tiny_recipe: Recipe, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, with another attention kernel and compiler backend; validation is not compiled."""
    packed = without_dropout(tiny_recipe, tmp_path / "packed", max_steps=6)
    train_tiny(packed, tiny_data)

    def compile_step(self: TrainingLoss) -> None:
        self.model.use_kernel("masked")
        compile_for_real(self, backend="aot_eager")

    compile_for_real = TrainingLoss.compile_step
    monkeypatch.setattr(TrainingLoss, "compile_step", compile_step)
    monkeypatch.setattr(compilation, "choose_kernel", lambda q, p: "varlen")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    whole = without_dropout(tiny_recipe, tmp_path / "whole", max_steps=6, compile=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        train_tiny(whole, tiny_data)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    require_same_training(whole, packed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"ema_decay": 0.9, "rdrop": 1.0, "activation_checkpointing": True, "dropout_ramp_steps": 12}],
    ids=["plain", "all"],
)
def test_a_run_that_is_resumed_twice_has_the_same_bits(
    tiny_recipe: Recipe, tiny_data: Path, options: dict[str, Any]
) -> None:
    """The first resume repeats updates 7 to 18, in two epochs; the second starts from a checkpoint of the first."""
    recipe = with_train(tiny_recipe, max_steps=18, **options)
    train_tiny(recipe, tiny_data)
    losses, files = metrics(recipe, "train/loss"), final_files(recipe)
    for stop in (6, 12):
        remove_checkpoints_after(recipe, stop)
        train_tiny(recipe, tiny_data)
        assert metrics(recipe, "train/loss") == losses
        assert final_files(recipe) == files


@pytest.mark.slow
def test_a_dropout_ramp_starts_at_zero(tiny_recipe: Recipe, tiny_data: Path, tmp_path: Path) -> None:
    plain = without_dropout(tiny_recipe, tmp_path / "plain", max_steps=7)
    rising = with_train(tiny_recipe, run_dir=tmp_path / "rising", max_steps=7, dropout_ramp_steps=24)
    for recipe in (plain, rising):
        train_tiny(recipe, tiny_data)
    first, second = metrics(plain, "train/loss"), metrics(rising, "train/loss")
    assert first[:6] == second[:6]  # in the first quarter of the ramp
    assert first[6] != second[6]


@pytest.mark.slow
def test_resuming_with_another_recipe_is_rejected(tiny_recipe: Recipe, tiny_data: Path) -> None:
    train_tiny(with_train(tiny_recipe, max_steps=6), tiny_data)
    tree = tiny_recipe.model_dump(mode="json", exclude_none=True)
    tree["model"]["d_ff"], tree["seed"] = 64, 5
    with pytest.raises(UserError, match=r"another recipe: seed is 5, was 1; model\.d_ff is 64, was 32;"):
        train_tiny(Recipe.model_validate(tree), tiny_data)


@pytest.mark.slow
def test_a_corpus_may_state_the_languages_of_the_recipe_later(tiny_recipe: Recipe, tiny_data: Path) -> None:
    train_tiny(with_train(tiny_recipe, max_steps=1), tiny_data)
    tree = tiny_recipe.model_dump(mode="json", exclude_none=True)
    tree["data"]["train"][0]["src_lang"] = tiny_recipe.src_lang
    require_same_run(Recipe.model_validate(tree))
    tree["data"]["train"][0]["src_lang"] = "fr"
    with pytest.raises(UserError, match=r"recipe: data\.train\.0\.src_lang is fr, was not set; these must"):
        require_same_run(Recipe.model_validate(tree))
    other = tiny_recipe.model_copy(update={"src_lang": "fr"})
    with pytest.raises(UserError, match=r"recipe: src_lang is fr, was en; these must"):
        require_same_run(other)


def test_resuming_with_an_unreadable_recipe_is_rejected(tiny_recipe: Recipe, tiny_data: Path) -> None:
    train_tiny(with_train(tiny_recipe, max_steps=1), tiny_data)
    (checkpoint,) = list_checkpoints(tiny_recipe.directory)
    (checkpoint / "recipe.toml").write_text("[model]\nlayers = 3\n")
    with pytest.raises(UserError, match="is not a readable recipe; it must be unchanged since it was saved"):
        require_same_run(tiny_recipe)


@pytest.mark.slow
def test_old_checkpoints_are_removed_except_the_best(
    tiny_recipe: Recipe, tiny_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([1.0, 2.0, 3.0, 4.0])  # of steps 2, 4, 6 and 8
    monkeypatch.setattr(trainer_module, "validate", lambda *_: Validation(loss=next(losses), nll=1.0))
    kept: dict[str, Any] = {"keep_last": 2, "average_count": 2, "keep_best": 1}
    recipe = with_train(tiny_recipe, max_steps=8, validate_every=2, save_every=2, **kept)
    assert train_tiny(recipe, tiny_data).best_step == 2
    assert list(map(checkpoint_step, list_checkpoints(recipe.directory))) == [2, 6, 8]


@pytest.mark.slow
def test_an_update_without_finite_gradient_changes_nothing(
    tiny_recipe: Recipe, tiny_data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    norms = itertools.cycle([math.nan, math.inf])
    monkeypatch.setattr(update_module.Updater, "_clip_gradients", lambda self: torch.tensor(next(norms)))
    recipe = with_train(tiny_recipe, max_steps=3, validate_every=3, save_every=3, schedule="constant")
    state = train_tiny(recipe, tiny_data)
    torch.manual_seed(recipe.seed)
    fresh = dict(Transformer(recipe.model, 40, 40).named_parameters())
    saved = read_tensors(list_checkpoints(recipe.directory)[-1] / "model.safetensors")
    assert state.skipped == 3
    assert all(torch.equal(saved[name], parameter) for name, parameter in fresh.items())
    optimizer = read_tensors(list_checkpoints(recipe.directory)[-1] / "optimizer.safetensors")
    assert optimizer and not any(tensor.any() for tensor in optimizer.values())  # moments and step counts are 0
    messages = capsys.readouterr().err
    warning = r"skipped update 1 \(1 of epoch 1\): the gradient is not finite; pairs (\d+, ){7}\d+ and \d+ more\n"
    assert re.search(warning, messages)
    assert "diverged" not in messages
    with pytest.raises(
        UserError, match=r"20 consecutive updates .*; remove their checkpoints, and resume with a lower"
    ):
        train_tiny(with_train(recipe, max_steps=100), tiny_data)


def test_a_diverged_loss_is_named_with_advice(
    tiny_recipe: Recipe, tiny_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = with_train(tiny_recipe, max_steps=2, validate_every=2, schedule="constant", learning_rate=1e9)
    train_tiny(with_train(recipe, warmup_steps=0), tiny_data)
    warning = (
        r"warning: the validation nll of step 2 is (nan|inf|[\d.e+]+): training has diverged.*lower train.learning_rate"
    )
    assert re.search(warning, capsys.readouterr().err)


@pytest.mark.slow
def test_a_corrupt_checkpoint_falls_back_to_the_previous_one(
    tiny_recipe: Recipe, tiny_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = with_train(tiny_recipe, max_steps=12)
    train_tiny(recipe, tiny_data)
    expected = final_files(recipe)
    broken = list_checkpoints(recipe.directory)[-1] / "model.safetensors"
    content = bytearray(broken.read_bytes())
    content[len(content) // 2] ^= 1
    broken.write_bytes(content)
    capsys.readouterr()
    assert train_tiny(recipe, tiny_data).step == 12
    messages = capsys.readouterr().err
    assert "set aside as corrupt-step-00000012" in messages
    assert f"resuming from {recipe.directory / 'checkpoints' / 'step-00000006'}" in messages
    assert final_files(recipe) == expected


@pytest.mark.slow
def test_resuming_keeps_running_metrics(tiny_recipe: Recipe, tiny_data: Path) -> None:
    """A log line covers updates before and after the stop at step 6."""
    recipe = with_train(tiny_recipe, log_every=8, max_steps=8)
    train_tiny(recipe, tiny_data)
    (loss,) = metrics(recipe, "train/loss")
    remove_checkpoints_after(recipe, 6)
    train_tiny(recipe, tiny_data)
    assert metrics(recipe, "train/loss") == [loss]


@pytest.mark.slow
def test_the_last_validation_has_the_score_that_selects_the_best(tiny_recipe: Recipe, tiny_data: Path) -> None:
    recipe = with_train(tiny_recipe, validate_every=6, validate_bleu_every=6, best_metric="bleu", max_steps=8)
    scores = iter([10.0, 12.5])
    state = train_tiny(recipe, tiny_data, translate=lambda *_: ValidationBleu(next(scores), ""))
    assert state.scores == {"6": 10.0, "8": 12.5}
    assert state.best_step == 8


@pytest.mark.slow
def test_memory_holds_one_copy_of_a_checkpoint(
    tiny_recipe: Recipe, tiny_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    def copy(model: nn.Module) -> dict[str, Tensor]:
        events.append("copied")
        return model_tensors(model)

    def save(*given: Any) -> Path:
        time.sleep(0.3 if len(events) == 1 else 0.0)  # the first write takes longer than an update
        events.append("written")
        return save_checkpoint(*given)

    monkeypatch.setattr("nmt.train.trainer.model_tensors", copy)
    monkeypatch.setattr("nmt.train.trainer.save_checkpoint", save)
    train_tiny(with_train(tiny_recipe, max_steps=3, save_every=1), tiny_data)
    assert events == ["copied", "written"] * 3


@pytest.mark.slow
def test_the_ema_is_validated_and_saved(tiny_recipe: Recipe, tiny_data: Path, tmp_path: Path) -> None:
    recipe = with_train(tiny_recipe, ema_decay=0.9, average="ema", max_steps=12)
    state = train_tiny(recipe, tiny_data)
    averaged = metrics(recipe, "valid/average_loss")
    assert len(averaged) == 2
    assert state.best_score == pytest.approx(-min(averaged))
    last = list_checkpoints(recipe.directory)[-1]
    write_ema(last, tmp_path / "model")
    assert read_tensors(tmp_path / "model" / "model.safetensors").keys() == load_checkpoint(last).average.keys()
    own = load_model(tmp_path / "model", torch.device("cpu")).model
    with torch.no_grad():
        store = PairStore(tiny_data, "valid")
        batch = make_batch(store, np.arange(len(store)))
        loss = F.cross_entropy(own.logits(own(batch.src, batch.tgt)), batch.labels, label_smoothing=0.1)
    assert float(loss) == pytest.approx(averaged[-1], rel=1e-5)


@pytest.mark.slow
def test_fine_tuning_starts_from_another_run(
    tiny_recipe: Recipe, tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_tiny(with_train(tiny_recipe, max_steps=6), tiny_data)
    start = list_checkpoints(tiny_recipe.directory)[-1]
    small = {"max_steps": 1, "validate_every": 1, "save_every": 1, "start_from": str(start)}
    tuned = with_train(tiny_recipe, run_dir=tmp_path / "tuned", **small, freeze=["encoder", "embeddings"])
    train_tiny(tuned, tiny_data)
    before = read_tensors(start / "model.safetensors")
    after = read_tensors(list_checkpoints(tuned.directory)[-1] / "model.safetensors")
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]) == name.startswith(("encoder.", "output.weight")), name

    assert "the initial model was trained on different text" not in capsys.readouterr().err
    kept = with_train(tiny_recipe, run_dir=tmp_path / "kept", **small, start_optimizer="kept")
    train_tiny(kept.model_copy(update={"tgt_lang": "fr"}), tiny_data)
    warning = (
        "the initial model was trained on different text: languages: en to de in the initial model and en to fr in "
    )
    assert f"{warning}the recipe" in capsys.readouterr().err
    optimizer = read_tensors(list_checkpoints(kept.directory)[-1] / "optimizer.safetensors")
    assert {float(tensor) for name, tensor in optimizer.items() if name.startswith("step/")} == {7.0}


@pytest.mark.slow
def test_another_architecture_with_equal_shapes_is_rejected(
    tiny_recipe: Recipe, tiny_data: Path, tmp_path: Path
) -> None:
    train_tiny(with_train(tiny_recipe, max_steps=1, validate_every=1, save_every=1), tiny_data)
    changes = {"max_steps": 1, "validate_every": 1, "save_every": 1, "start_from": str(tiny_recipe.directory)}
    heads = tiny_recipe.model.num_heads
    cases = [
        (
            {"num_heads": 1},
            f": model.num_heads is {heads} in the initial model and 1 in the recipe; they must be equal",
        ),
        (
            {"activation": "gelu", "num_decoder_layers": 2},
            "num_decoder_layers is 1 in the initial model and 2 in the recipe, model.activation",
        ),
        ({"dropout": 0.5, "activation_dropout": 0.1, "max_positions": 2048}, None),  # compatible with any weights
    ]
    for number, (options, message) in enumerate(cases):
        tree = tiny_recipe.model_dump(mode="json", exclude_none=True)
        tree["model"] |= options
        other = with_train(Recipe.model_validate(tree), run_dir=tmp_path / f"other{number}", **changes)
        with pytest.raises(UserError, match=message) if message else nullcontext():
            train_tiny(other, tiny_data)


@pytest.mark.slow
def test_fp16_scales_the_loss_and_resumes_bit_identically(tiny_recipe: Recipe, tiny_data: Path, tmp_path: Path) -> None:
    whole = with_train(tiny_recipe, run_dir=tmp_path / "whole", precision="fp16", max_steps=12)
    train_tiny(whole, tiny_data)
    losses, files = metrics(whole, "train/loss"), final_files(whole)
    plain = with_train(tiny_recipe, run_dir=tmp_path / "plain", precision="fp32", max_steps=12)
    train_tiny(plain, tiny_data)
    assert losses == pytest.approx(metrics(plain, "train/loss"), rel=0.01)
    state = load_checkpoint(list_checkpoints(whole.directory)[-1]).state
    assert state["loss_scale"]["scale"] > 1
    remove_checkpoints_after(whole, 6)
    train_tiny(whole, tiny_data)
    assert metrics(whole, "train/loss") == losses
    assert final_files(whole) == files
    assert load_checkpoint(list_checkpoints(whole.directory)[-1]).state["loss_scale"] == state["loss_scale"]


@pytest.mark.slow
def test_a_run_continues_in_fp16(tiny_recipe: Recipe, tiny_data: Path) -> None:
    """Its checkpoint has no loss scale."""
    run = with_train(tiny_recipe, precision="fp32", max_steps=2, save_every=2)
    train_tiny(run, tiny_data)
    train_tiny(with_train(run, precision="fp16", max_steps=4), tiny_data)
    assert load_checkpoint(list_checkpoints(run.directory)[-1]).state["loss_scale"]["scale"] > 1


@pytest.mark.slow
def test_a_trainer_is_freed_without_garbage_collection(
    tiny_recipe: Recipe, tiny_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainers: list[weakref.ref[trainer_module.Trainer]] = []
    record_start = trainer_module.Trainer._record_start

    def remember(trainer: trainer_module.Trainer) -> None:
        trainers.append(weakref.ref(trainer))
        record_start(trainer)

    monkeypatch.setattr(trainer_module.Trainer, "_record_start", remember)
    recipe = with_train(tiny_recipe, max_steps=2, schedule="constant")
    train_tiny(recipe, tiny_data)  # the first use of a meta device in a process leaves a cycle in torch
    gc.collect()
    gc.disable()
    try:
        train_tiny(with_train(recipe, max_steps=4), tiny_data)  # resumes
        remaining = [reference() for reference in trainers]
    finally:
        gc.enable()
    assert remaining == [None, None]
