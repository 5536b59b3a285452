"""Micro-batches across processes and resumes: load balance, equal results, changed sizes, one checkpoint."""

import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from nmt.data.loader import TrainingBatches, Update, empty_batch
from nmt.data.store import PairStore
from nmt.errors import UserError
from nmt.model.transformer import Transformer
from nmt.processes.distributed import World
from nmt.recipe import Recipe
from nmt.storage.run_folder import checkpoint_step, list_checkpoints
from nmt.storage.sealed import CorruptError, manifest_digest
from nmt.train import trainer as trainer_module
from nmt.train import update as update_module
from nmt.train.batching import _known_budget, micro_batch_multiple
from nmt.train.loss import TrainingLoss, linear_cross_entropy
from nmt.train.resume import choose_checkpoint
from nmt.train.state import Change, TrainState
from nmt.train.update import Updater
from nmt.train.validate import Validation
from tests.train.run_tiny import (
    metrics,
    train_in_processes,
    train_tiny,
    with_train,
    without_dropout,
)

CPU = torch.device("cpu")


# --- Any number of processes ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_and_two_processes_with_the_same_split_give_the_same_losses(
    tiny_recipe: Recipe, tiny_data: Path, tmp_path: Path
) -> None:
    """With dropout, which is seeded per micro-batch."""
    one = with_train(tiny_recipe, run_dir=tmp_path / "one", max_steps=12, micro_batches=4)
    train_tiny(one, tiny_data)
    two = with_train(tiny_recipe, run_dir=tmp_path / "two", max_steps=12, micro_batches=4)
    train_in_processes(two, tiny_data, 2)
    assert metrics(two, "train/loss") == pytest.approx(metrics(one, "train/loss"), rel=1e-6)
    assert metrics(two, "valid/loss") == pytest.approx(metrics(one, "valid/loss"), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("shapes", ["packed", "fixed"])
def test_without_dropout_any_number_of_processes_gives_the_same_losses(
    tiny_recipe: Recipe, tiny_data: Path, tmp_path: Path, shapes: str
) -> None:
    options = {"max_steps": 9, "micro_batch_tokens": 60, "shapes": shapes}
    one = without_dropout(tiny_recipe, tmp_path / "one", **options)
    train_tiny(one, tiny_data)
    three = without_dropout(tiny_recipe, tmp_path / "three", **options)
    train_in_processes(three, tiny_data, 3)
    assert metrics(three, "train/loss") == pytest.approx(metrics(one, "train/loss"), rel=1e-6)
    assert metrics(three, "train/gradient_norm") == pytest.approx(metrics(one, "train/gradient_norm"), rel=1e-6)
    state = TrainState.load(list_checkpoints(three.directory)[-1])
    assert state.processes == state.workload["processes"] == 3
    assert state.workload["micro_batches"] >= 3


@pytest.mark.slow
def test_passes_without_pairs_do_not_change_the_losses(tiny_recipe: Recipe, tiny_data: Path, tmp_path: Path) -> None:
    """Updates of one or two pairs on three processes."""
    options = {"max_steps": 6, "batch_tokens": 10, "micro_batch_tokens": 60}
    one = without_dropout(tiny_recipe, tmp_path / "one", **options)
    train_tiny(one, tiny_data)
    three = without_dropout(tiny_recipe, tmp_path / "three", **options)
    messages = train_in_processes(three, tiny_data, 3)
    assert metrics(three, "train/loss") == pytest.approx(metrics(one, "train/loss"), rel=1e-6)
    assert "of their time on padding and waiting; use fewer processes" in messages


@pytest.mark.slow
def test_micro_batching_is_logged_once(
    tiny_recipe: Recipe, tiny_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = train_tiny(with_train(tiny_recipe, max_steps=12), tiny_data)
    assert state.epoch == 1
    messages = capsys.readouterr().err
    assert messages.count("micro-batches per update: ") == 1
    assert "warning" not in messages


def test_much_padding_in_a_single_process_is_a_warning(
    tiny_recipe: Recipe, tiny_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for batch_tokens, warns in ((150, True), (1_000, False)):
        run_dir = tiny_recipe.directory / str(batch_tokens)
        sizes = {"batch_tokens": batch_tokens, "micro_batch_tokens": batch_tokens // 2, "max_steps": 1}
        train_tiny(with_train(tiny_recipe, run_dir=run_dir, shapes="fixed", **sizes), tiny_data)
        err = capsys.readouterr().err
        assert ("is spent on padding" in err) is warns
        assert ("16% of the time is spent on padding; raise train.batch_tokens" in err) is warns
        assert "processes spend" not in err


def test_pairs_larger_than_an_update_are_a_warning(
    tiny_recipe: Recipe, tiny_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = PairStore(tiny_data, "train").tgt.lengths
    longest = int(max(lengths))
    count = int((lengths == longest).sum())
    warning = (
        f"with more than train.batch_tokens ({longest}) target tokens: {count} of {len(lengths)}; each is an update"
    )
    for batch_tokens, warns in ((longest + 1, False), (longest, True)):  # with EOS, the longest has one token more
        run_dir = tiny_recipe.directory / str(batch_tokens)
        train_tiny(with_train(tiny_recipe, run_dir=run_dir, batch_tokens=batch_tokens, max_steps=1), tiny_data)
        err = capsys.readouterr().err
        assert ("target tokens" in err) is warns
        assert (warning in err) is warns


@pytest.mark.parametrize(
    ("micro_batches", "processes", "multiple"), [("auto", 1, 1), ("auto", 6, 6), (8, 1, 8), (8, 4, 8)]
)
def test_micro_batch_multiple(tiny_recipe: Recipe, micro_batches: Any, processes: int, multiple: int) -> None:
    recipe = with_train(tiny_recipe, micro_batches=micro_batches)
    assert micro_batch_multiple(recipe, World(0, processes, CPU)) == multiple


def test_micro_batches_must_be_divisible_by_the_world_size(tiny_recipe: Recipe) -> None:
    with pytest.raises(UserError, match=r"micro_batches is 8 with 3 processes; .* multiple of 3; set it to 9 or"):
        micro_batch_multiple(with_train(tiny_recipe, micro_batches=8), World(0, 3, CPU))


def test_ddp_does_not_broadcast_buffers(tiny_recipe: Recipe, tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1)
    try:
        model = Transformer(tiny_recipe.model, 40, 40)
        wrapped = Updater(tiny_recipe, World(0, 2, CPU), TrainingLoss(model, 0.1))._ddp
        assert wrapped is not None and dict(model.named_buffers())
        wrapped(empty_batch())  # determines whether the next pass broadcasts
        assert not wrapped.will_sync_module_buffers()
    finally:
        torch.distributed.destroy_process_group()


# --- Resuming with other sizes ----------------------------------------------------------------------------------------


def train_to_step_6(recipe: Recipe, data: Path) -> None:
    """Train to the end, which determines the schedule, then remove the checkpoints after step 6."""
    train_tiny(recipe, data)
    for directory in list_checkpoints(recipe.directory):
        if checkpoint_step(directory) > 6:
            shutil.rmtree(directory)


@pytest.mark.slow
def test_a_smaller_micro_batch_on_resume_is_used_and_logged(
    tiny_recipe: Recipe, tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = without_dropout(tiny_recipe, tmp_path / "run", micro_batch_tokens=150, max_steps=12, save_every=3)
    train_to_step_6(recipe, tiny_data)
    losses = metrics(recipe, "train/loss")
    assert len(losses) == 12
    capsys.readouterr()
    state = train_tiny(with_train(recipe, micro_batch_tokens=40), tiny_data)
    assert "train.micro_batch_tokens is now 40, was 150; dropout masks differ" in capsys.readouterr().err
    assert state.micro_batch_tokens == 40
    assert state.workload["micro_batches"] > 3
    assert metrics(recipe, "train/loss") == pytest.approx(losses, rel=1e-6)
    shutil.rmtree(list_checkpoints(recipe.directory)[-1])
    capsys.readouterr()
    train_tiny(with_train(recipe, micro_batch_tokens=40), tiny_data)
    messages = capsys.readouterr().err
    assert "resuming from" in messages and "train.micro_batch_tokens is now" not in messages


@pytest.mark.parametrize("requested", ["auto", 512])
def test_changed_activation_checkpointing_gets_its_own_budget(tiny_recipe: Recipe, requested: int | str) -> None:
    world, recipe = World(0, 1, CPU), with_train(tiny_recipe, micro_batch_tokens=requested)
    state = TrainState(step=6, micro_batch_tokens=512, processes=1)
    state.changes.append(Change(5, "train.activation_checkpointing", False, True))
    assert _known_budget(recipe, world, state) == 512
    state.changes.append(Change(6, "train.activation_checkpointing", True, False))
    assert _known_budget(recipe, world, state) is None


def test_auto_does_not_reuse_the_number_of_another_recipe_or_device(tiny_recipe: Recipe) -> None:
    world, recipe = World(0, 1, CPU), with_train(tiny_recipe, micro_batch_tokens="auto")
    state = TrainState(step=6, micro_batch_tokens=512, processes=1, device="cpu")
    assert _known_budget(recipe, world, state) == 512
    other = replace(state, device="cuda:1")
    assert _known_budget(recipe, world, other) is None
    explicit = with_train(tiny_recipe, micro_batch_tokens=512)
    assert _known_budget(explicit, world, other) is None
    assert _known_budget(with_train(explicit, max_steps=6), world, other) == 512, "a finished run needs no memory"
    assert _known_budget(with_train(recipe, max_steps=6), world, other) is None
    assert _known_budget(recipe, World(0, 1, torch.device("cuda", 0)), other) == 512, "the same kind of device"
    assert _known_budget(recipe, World(0, 2, CPU), state) is None
    assert _known_budget(with_train(recipe, micro_batch_tokens=256), world, state) is None
    assert _known_budget(recipe, World(0, 2, CPU), replace(state, processes=0, device="")) == 512, "unknown"
    assert _known_budget(recipe, world, TrainState()) is None
    state.changes.append(Change(6, "train.micro_batch_tokens", 512, "auto"))
    assert _known_budget(recipe, world, state) is None


@pytest.mark.slow
def test_another_world_size_gets_its_own_budget(tiny_recipe: Recipe, tiny_data: Path, tmp_path: Path) -> None:
    options = {"micro_batch_tokens": "auto", "batch_tokens": 2_000, "max_steps": 3, "schedule": "constant"}
    recipe = without_dropout(tiny_recipe, tmp_path / "run", **options)
    assert train_tiny(recipe, tiny_data).micro_batch_tokens > 1_000
    longer = with_train(recipe, max_steps=6)
    messages = train_in_processes(longer, tiny_data, 3)
    assert messages.count("the number of processes is now 3, was 1; dropout masks may differ from here on\n") == 1
    state = TrainState.load(list_checkpoints(recipe.directory)[-1])
    assert (state.processes, state.step) == (3, 6)
    assert state.micro_batch_tokens < 1_000
    assert Change(3, "processes", 1, 3) in state.changes
    finished = train_tiny(longer, tiny_data)  # such as `nmt run` in one process for the test sets
    assert (finished.processes, finished.workload) == (3, state.workload) and finished.changes == state.changes
    assert train_in_processes(longer, tiny_data, 2).count("training is complete at step 6; nothing to do") == 1


@pytest.mark.slow
def test_resuming_with_another_update_size_continues_the_epoch(
    tiny_recipe: Recipe, tiny_data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each pair of the epoch is used once, although the update size changes in the middle of the epoch."""
    seen: dict[int, list[int]] = {}
    following = TrainingBatches.__next__

    def watched(self: TrainingBatches) -> Update:
        update = following(self)
        seen.setdefault(update.epoch, []).extend(update.sentence_ids.tolist())
        return update

    recipe = with_train(tiny_recipe, max_steps=14)
    train_to_step_6(recipe, tiny_data)
    monkeypatch.setattr(TrainingBatches, "__next__", watched)
    train_tiny(with_train(recipe, max_steps=6), tiny_data)
    assert not seen  # nothing to do
    capsys.readouterr()
    train_tiny(with_train(recipe, batch_tokens=90, micro_batch_tokens=60), tiny_data)
    assert "train.batch_tokens is 90, was 150" in capsys.readouterr().err
    monkeypatch.undo()
    with TrainingBatches(PairStore(tiny_data, "train"), tiny_recipe.train, seed=tiny_recipe.seed) as batches:
        first = np.concatenate([next(batches).sentence_ids for _ in range(6)]).tolist()
    assert sorted(first + seen[0]) == list(range(240))


@pytest.mark.slow
def test_checkpoints_without_a_pair_count_need_the_same_update_size(
    tiny_recipe: Recipe, tiny_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions wrote such checkpoints."""

    def without_pairs(value: Any) -> dict[str, Any]:
        return {key: entry for key, entry in asdict(value).items() if key not in ("pair", "processes", "workload")}

    recipe = with_train(tiny_recipe, max_steps=7)
    monkeypatch.setattr(trainer_module, "asdict", without_pairs)
    train_to_step_6(recipe, tiny_data)
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"train.batch_tokens is 90, was 150; an earlier version"):
        train_tiny(with_train(recipe, batch_tokens=90), tiny_data)
    assert train_tiny(recipe, tiny_data).step == 7


# --- One checkpoint for all processes ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class SecondRank(World):
    """Rank 1 with a simulated rank 0."""

    text: str = ""

    def broadcast_text(self, text: str) -> str:
        return self.text


@pytest.mark.slow
def test_all_processes_use_the_checkpoint_of_rank_0(tiny_recipe: Recipe, tiny_data: Path, tmp_path: Path) -> None:
    train_tiny(with_train(tiny_recipe, max_steps=4, save_every=1), tiny_data)
    run = tiny_recipe.directory
    second = list_checkpoints(run)[1]
    other = SecondRank(1, 2, CPU, text=f"2 {manifest_digest(second)}")
    found = choose_checkpoint(run, other)
    assert found is not None and found[0] == second and found[1].state["step"] == 2
    assert choose_checkpoint(run, SecondRank(1, 2, CPU)) is None
    alone = choose_checkpoint(run, World(0, 1, CPU))
    assert alone is not None and alone[1].state["step"] == 4

    elsewhere = tmp_path / "elsewhere"  # a local disk, which lacks the checkpoint or has another one
    with pytest.raises(UserError, match=r"step-00000002 is missing or differs .*shared file system"):
        choose_checkpoint(elsewhere, other)
    shutil.copytree(run, elsewhere)
    shutil.rmtree(elsewhere / "checkpoints" / "step-00000002")
    (elsewhere / "checkpoints" / "step-00000003").rename(elsewhere / "checkpoints" / "step-00000002")
    with pytest.raises(UserError, match="step-00000002 is missing or differs"):
        choose_checkpoint(elsewhere, other)


@pytest.mark.slow
def test_only_rank_0_renames_a_corrupt_checkpoint(tiny_recipe: Recipe, tiny_data: Path) -> None:
    train_tiny(with_train(tiny_recipe, max_steps=2, save_every=1), tiny_data)
    run = tiny_recipe.directory
    last = list_checkpoints(run)[-1]
    digest = manifest_digest(last)
    (last / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(CorruptError, match="missing or corrupt"):
        choose_checkpoint(run, SecondRank(1, 2, CPU, text=f"2 {digest}"))
    assert last.is_dir()
    found = choose_checkpoint(run, World(0, 1, CPU))
    assert found is not None and found[1].state["step"] == 1
    assert not last.exists() and last.with_name(f"corrupt-{last.name}").is_dir()


# --- Best checkpoints, logged loss and cost of evaluation -------------------------------------------------------------


@pytest.mark.slow
def test_the_n_best_checkpoints_are_kept(tiny_recipe: Recipe, tiny_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation losses 3, 1, 2, 4, ...: the second best comes after the best."""
    losses = iter([3.0, 1.0, 2.0, 4.0, 5.0, 6.0])

    monkeypatch.setattr(trainer_module, "validate", lambda *_: Validation(loss=next(losses), nll=1.0))
    options: dict[str, Any] = {"validate_every": 2, "save_every": 12, "keep_last": 1, "keep_best": 2}
    recipe = with_train(tiny_recipe, max_steps=12, average_count=1, **options)
    state = train_tiny(recipe, tiny_data)
    assert state.best_steps(2) == [4, 6]
    assert list(map(checkpoint_step, list_checkpoints(recipe.directory))) == [4, 6, 12]


@pytest.mark.slow
def test_a_skipped_update_does_not_count_in_the_logged_loss(
    tiny_recipe: Recipe, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loss is NaN."""
    options = {"max_steps": 3, "log_every": 3, "learning_rate": 1e-9, "validate_every": 3, "save_every": 3}
    plain = without_dropout(tiny_recipe, tmp_path / "plain", **(options | {"log_every": 1}))
    train_tiny(plain, tiny_data)
    first, _, third = metrics(plain, "train/loss")

    accumulate, calls = update_module.Updater._accumulate_gradients, [0]

    def accumulate_with_nan(self: Updater, update: Update, step: int) -> Any:
        loss, nll = accumulate(self, update, step)
        calls[0] += 1
        return (loss * float("nan"), nll * float("nan")) if calls[0] == 2 else (loss, nll)

    def clip(self: Updater) -> torch.Tensor:
        return torch.tensor(float("nan") if calls[0] == 2 else 1.0)

    monkeypatch.setattr(update_module.Updater, "_accumulate_gradients", accumulate_with_nan)
    monkeypatch.setattr(update_module.Updater, "_clip_gradients", clip)
    recipe = without_dropout(tiny_recipe, tmp_path / "skipping", **options)
    state = train_tiny(recipe, tiny_data)
    assert state.skipped == 1
    (loss,) = metrics(recipe, "train/loss")
    assert min(first, third) < loss < max(first, third)
    assert metrics(recipe, "train/perplexity")[0] > 1


class CountMatmuls(TorchDispatchMode):
    """Counts the matmuls in a `with` block."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm)
        return func(*args, **(kwargs or {}))


def test_evaluation_computes_one_output_matmul() -> None:
    weight = nn.Parameter(torch.randn(40, 8))
    hidden, labels = torch.randn(9, 8), torch.arange(9)
    counts = []
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled), CountMatmuls() as mode:
            linear_cross_entropy(hidden, weight, labels, 0.1)
        counts.append(mode.count)
    assert counts == [3, 1]  # the logits; in training, also the gradients of `hidden` and `weight`
