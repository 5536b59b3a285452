"""An update: its gradient and, on fake tensors, the absence of synchronization."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from nmt.data.loader import DataPosition, MicroBatch, Update, empty_batch
from nmt.model import attention
from nmt.model.transformer import Transformer
from nmt.packing.packed import Batch, PackedSequences
from nmt.processes.distributed import World
from nmt.recipe import Recipe
from nmt.train import update as update_module
from nmt.train.loss import TrainingLoss
from nmt.train.update import Updater, dropout_seed
from tests.train.test_compiled_loss import SMALL, VOCAB, fixed_and_packed, use_dropout_of_a_gpu
from tests.varlen_kernel import varlen_kernel

RECIPE: dict[str, Any] = {
    "name": "fake",
    "src_lang": "en",
    "tgt_lang": "de",
    "data": {"train": [{"kind": "toy"}], "valid": [{"kind": "toy"}]},
    "model": SMALL | {"dropout": 0.1},
    "train": {"precision": "bf16", "clip_norm": 1.0, "device": "cpu"},
}


def make_update(batches: list[Batch], step: int) -> Update:
    """Return an update of these micro-batches on one rank; its position in the training text does not matter."""
    return Update(
        epoch=0,
        index=step,
        updates_in_epoch=9,
        micro_batches=[MicroBatch(number, batch, is_empty=False) for number, batch in enumerate(batches)],
        tgt_tokens=sum(batch.tgt_tokens for batch in batches),
        sentence_ids=np.arange(9),
        next=DataPosition(),
    )


@pytest.mark.parametrize("clip_norm", [0.0, 0.01, 1e9])
def test_the_gradient_of_all_micro_batches_is_clipped(clip_norm: float) -> None:
    options = {"precision": "fp32", "clip_norm": clip_norm}
    recipe = Recipe.model_validate(RECIPE | {"model": SMALL | {"dropout": 0.0}, "train": RECIPE["train"] | options})
    torch.manual_seed(1)
    loss = TrainingLoss(Transformer(recipe.model, VOCAB, VOCAB), 0.1).train()
    parameters, batches = list(loss.parameters()), [packed for _, packed in fixed_and_packed()[1][:3]]
    tokens = sum(batch.tgt_tokens for batch in batches)
    total, nll = (torch.stack(sums).sum() for sums in zip(*map(loss, batches), strict=True))
    expected = torch.autograd.grad(total / tokens, parameters)
    norm = torch.cat([gradient.flatten() for gradient in expected]).norm().item()
    updater = Updater(recipe, World(0, 1, torch.device("cpu")), loss)
    update = make_update(batches, 1)
    update.micro_batches.append(MicroBatch(len(batches), empty_batch(), is_empty=True))  # must not contribute
    result = updater(update, 1)
    assert [result.loss.item(), result.nll.item()] == pytest.approx([total.item(), nll.item()], rel=1e-6)
    assert result.grad_norm.item() == pytest.approx(norm, rel=1e-5) and 0.01 < norm < 1e9
    scale = 0.01 / norm if clip_norm == 0.01 else 1.0
    for parameter, gradient in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.grad, scale * gradient, rtol=1e-3, atol=1e-7)


def test_dropout_depends_on_the_step_and_the_number_of_a_micro_batch() -> None:
    """Otherwise, it would depend on the world size: ranks have micro-batches of different numbers."""
    recipe = Recipe.model_validate(RECIPE | {"train": RECIPE["train"] | {"precision": "fp32"}})
    torch.manual_seed(1)
    loss = TrainingLoss(Transformer(recipe.model, VOCAB, VOCAB), 0.1).train()
    updater = Updater(recipe, World(0, 1, torch.device("cpu")), loss)
    updater.schedule = lambda step: 0.0  # all updates have the same parameters
    batches = [packed for _, packed in fixed_and_packed()[1][:3]]
    whole = make_update(batches, 1)
    parts = [replace(whole, micro_batches=[micro]) for micro in whole.micro_batches]
    total = sum(updater(part, 5).loss.item() for part in parts)
    assert updater(whole, 5).loss.item() == pytest.approx(total, rel=1e-12)
    assert updater(whole, 5).loss.item() != updater(whole, 6).loss.item()


def test_dropout_seeds_differ() -> None:
    numbers = [(seed, step, micro_batch) for seed in (-1, 0, 1) for step in (1, 2, 3) for micro_batch in (0, 1, 2)]
    assert len({dropout_seed(*each) for each in numbers}) == len(numbers)


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the attention kernel, dropout and row count of a GPU."""
    for name, value in varlen_kernel().items():
        monkeypatch.setattr(attention, name, value, raising=False)
    use_dropout_of_a_gpu(monkeypatch)
    monkeypatch.setattr(update_module, "row_multiple", lambda precision, device: 1)


def without_contents(batch: Batch, mode: FakeTensorMode) -> Batch:
    def side(sequences: PackedSequences) -> PackedSequences:
        names = ("tokens", "positions", "cu_seqlens")
        tensors: dict[str, Any] = {name: mode.from_tensor(getattr(sequences, name)) for name in names}
        return replace(sequences, **tensors)

    return replace(batch, src=side(batch.src), tgt=side(batch.tgt), labels=mode.from_tensor(batch.labels))


@pytest.mark.slow
def test_a_compiled_update_does_not_synchronize(as_on_a_gpu: None) -> None:
    """Other updates: tests/train/test_training_without_gpu.py."""
    recipe = Recipe.model_validate(RECIPE)
    _, batches = fixed_and_packed()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with FakeTensorMode() as mode, torch._dynamo.config.patch(error_on_recompile=True):
        model = Transformer(recipe.model, VOCAB, VOCAB)
        model.use_kernel("varlen")
        loss = TrainingLoss(model, 0.1).train()
        updater = Updater(recipe, World(0, 1, torch.device("cpu")), loss)
        loss.compile_step(backend="aot_eager")
        for step in (1, 2):
            fixed = [without_contents(batch, mode) for batch, _ in batches[2 * step - 2 : 2 * step]]
            result = updater(make_update(fixed, step), step)
        with pytest.raises(DataDependentOutputException):  # the error of every synchronization
            result.loss.item()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
