"""Updates and validation on a simulated GPU: no mixed devices, and updates do not synchronize.

Forward pass, loss, backward pass, clipping, Adam's fused step and the gradient scaler all run. See `simulated_cuda` for
what that cannot show.
"""

from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt.data.store import PairStore
from nmt.model.transformer import Transformer
from nmt.packing.packed import Batch
from nmt.processes.distributed import World
from nmt.recipe import Recipe
from nmt.train.ema import ExponentialMovingAverage
from nmt.train.loss import TrainingLoss
from nmt.train.update import Updater, UpdateResult
from nmt.train.validate import validate
from tests.simulated_cuda import CUDA, SynchronizationError, contents, on_gpu, simulated_cuda
from tests.train.test_compiled_loss import VOCAB, fixed_and_packed
from tests.train.test_update import make_update

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")

MODEL = {"d_model": 32, "d_ff": 24, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1, "dropout": 0.1}
WORLD = World(0, 1, CUDA)
VALIDATION = "train/validate.py:validate"


def make_recipe(model: dict[str, Any], train: dict[str, Any]) -> Recipe:
    corpora = [{"kind": "toy"}]
    return Recipe.model_validate(
        {
            "name": "fake",
            "src_lang": "en",
            "tgt_lang": "de",
            "data": {"train": corpora, "valid": corpora},
            "model": MODEL | model,
            "train": {"precision": "bf16", "clip_norm": 1.0, "device": "cpu"} | train,
        }
    )


def make_loss(recipe: Recipe, vocab: int = VOCAB) -> TrainingLoss:
    return TrainingLoss.from_recipe(on_gpu(Transformer(recipe.model, vocab, vocab)), recipe).train()


def run_updates(updater: Updater, fixed: bool) -> list[UpdateResult]:
    """Run two updates of two micro-batches each, of one shape if `fixed`."""
    _, batches = fixed_and_packed()
    results = []
    for step in (1, 2):
        pair = batches[2 * step - 2 : 2 * step]
        micro_batches = [fixed_batch if fixed else packed for fixed_batch, packed in pair]
        on_device = next(updater.loss.parameters()).is_cuda
        if on_device:
            micro_batches = [batch.map(torch.Tensor.pin_memory) for batch in micro_batches]
        results.append(updater(make_update(micro_batches, step), step))
    return results


OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bf16": ({}, {}),
    "fp16, separate embeddings": ({"tied_embeddings": "none", "output_bias": True}, {"precision": "fp16"}),
    "fp32, pre-norm": (
        {"norm_order": "pre", "activation": "swish", "attention_dropout": 0.1, "activation_dropout": 0.1},
        {"precision": "fp32"},
    ),
    "adamw, not clipped, dropout ramp": (
        {"attention_dropout": 0.1, "word_dropout": 0.1},
        {"optimizer": "adamw", "weight_decay": 0.1, "clip_norm": 0, "dropout_ramp_steps": 10},
    ),
    "r-drop, activation checkpointing": ({}, {"rdrop": 1.0, "activation_checkpointing": True}),
    "guided alignment": ({"num_decoder_layers": 2}, {"guided_alignment": True}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_an_update_does_not_synchronize(name: str) -> None:
    recipe = make_recipe(*OPTIONS[name])
    with simulated_cuda() as mode:
        loss = make_loss(recipe)
        loss.model.use_activation_checkpointing(recipe.train.activation_checkpointing)
        results = run_updates(Updater(recipe, WORLD, loss), fixed=False)
        assert not mode.synchronizations
        for result in results:
            assert {value.device for value in vars(result).values()} == {CUDA}
        assert all(weight.grad is not None and weight.grad.device == CUDA for weight in loss.parameters())
        with pytest.raises(SynchronizationError):
            results[0].loss.item()


@pytest.mark.slow
def test_an_update_of_one_shape_does_not_synchronize() -> None:
    """Runs the compiled code eagerly; tests/train/test_update.py compiles it on fake CPU tensors."""
    recipe = make_recipe({}, {})
    with simulated_cuda() as mode:
        loss = make_loss(recipe)
        updater = Updater(recipe, WORLD, loss)
        loss._compiled = loss._compilable_forward
        run_updates(updater, fixed=True)
    assert not mode.synchronizations


@pytest.mark.slow
def test_the_ema_does_not_synchronize() -> None:
    recipe = make_recipe({}, {})
    with simulated_cuda() as mode:
        loss = make_loss(recipe)
        average = ExponentialMovingAverage(loss.model, 0.999)
        average.update(1)
        with average.applied():
            average.update(2)
    assert not mode.synchronizations


@pytest.mark.slow
@pytest.mark.parametrize("fixed", [False, True])
def test_updates_equal_those_on_a_cpu(fixed: bool) -> None:
    """In fp32 without dropout: losses, and weights after two updates."""
    recipe = make_recipe({"dropout": 0.0}, {"precision": "fp32"})
    torch.manual_seed(1)
    model = Transformer(recipe.model, VOCAB, VOCAB)
    found = []
    for device in (torch.device("cpu"), CUDA):
        with simulated_cuda() if device == CUDA else nullcontext():
            copy = deepcopy(model)
            loss = TrainingLoss.from_recipe(on_gpu(copy) if device == CUDA else copy, recipe).train()
            if fixed:
                loss._compiled = loss._compilable_forward
            results = run_updates(Updater(recipe, World(0, 1, device), loss), fixed)
            tensors = [result.loss for result in results] + list(copy.parameters())
            found.append([contents(tensor) for tensor in tensors])
    for expected, value in zip(*found, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_validation_synchronizes_once(tiny_data: Path) -> None:
    recipe = make_recipe({}, {"precision": "fp32"})
    store = PairStore(tiny_data, "valid")
    torch.manual_seed(1)
    model = Transformer(recipe.model, VOCAB, VOCAB)
    expected = validate(
        TrainingLoss.from_recipe(model, recipe), store, World(0, 1, torch.device("cpu")), 30, lambda: None
    )
    with simulated_cuda({VALIDATION}) as mode:
        loss, batches = TrainingLoss.from_recipe(on_gpu(model), recipe), list[int]()
        found = validate(loss, store, WORLD, 30, lambda: batches.append(1))
    assert len(batches) > 2
    assert vars(found) == pytest.approx(vars(expected), rel=1e-5)
    assert mode.synchronizations == {VALIDATION: 1}


@pytest.mark.slow
def test_synchronization_in_an_update_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    clip = Updater._clip_gradients

    def look(self: Updater) -> torch.Tensor:
        norm = clip(self)
        assert norm.isfinite(), "this reads a value of the device"
        return norm

    monkeypatch.setattr(Updater, "_clip_gradients", look)
    recipe = make_recipe({}, {})
    with simulated_cuda(), pytest.raises(SynchronizationError, match="a number is read"):
        run_updates(Updater(recipe, WORLD, make_loss(recipe)), fixed=False)


@pytest.mark.slow
def test_mixed_devices_in_an_update_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = make_recipe({}, {})
    monkeypatch.setattr(Batch, "to", lambda self, device: self)
    with simulated_cuda(), pytest.raises(AssertionError, match="gets device tensors and a host tensor"):
        run_updates(Updater(recipe, WORLD, make_loss(recipe)), fixed=False)
