"""Updates on a GPU: agreement with the CPU, precisions, compilation, resuming, synchronization, memory."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from nmt.processes.device_memory import peak_memory
from nmt.recipe import Recipe
from nmt.storage.run_folder import list_checkpoints
from nmt.train.memory import MicroBatchShape, missing_moment_bytes
from tests.gpu.gpu_training import VOCAB, gradient, make_recipe, trainer_of
from tests.train.run_tiny import write_reversed_pairs

pytestmark = pytest.mark.gpu

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    write_reversed_pairs(folder, VOCAB, max_length=13)
    return folder


def updates(recipe: Recipe, pairs: Path, count: int = 1) -> tuple[list[float], torch.Tensor]:
    """Return the losses of the first updates and the gradient of the last one."""
    with trainer_of(recipe, pairs) as trainer, trainer.batches() as batches:
        losses = []
        for step in range(1, count + 1):
            update = next(batches)
            losses.append(trainer.updater(update, step).loss.item() / update.tgt_tokens)
        return losses, gradient(trainer)


def distance(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


def test_a_float32_update_equals_the_cpu(pairs: Path, tmp_path: Path, gpu: torch.device) -> None:
    assert torch.get_float32_matmul_precision() == "highest", "TF32 must be off"
    (cpu_losses, expected), (losses, found) = (
        updates(make_recipe(tmp_path / str(device), device), pairs) for device in (CPU, gpu)
    )
    assert losses == pytest.approx(cpu_losses, rel=1e-6)
    assert distance(found, expected) <= 1e-5


@pytest.mark.parametrize(("precision", "limit"), [("bf16", 0.05), ("fp16", 0.01)])
def test_a_16_bit_update_is_close_to_float32_on_the_cpu(
    precision: str, limit: float, pairs: Path, tmp_path: Path, gpu: torch.device
) -> None:
    cpu_losses, expected = updates(make_recipe(tmp_path / "cpu", CPU), pairs)
    losses, found = updates(make_recipe(tmp_path / "gpu", gpu, precision=precision), pairs)
    assert losses == pytest.approx(cpu_losses, rel=limit / 5)
    assert 0 < distance(found, expected) <= limit


def test_an_fp16_overflow_skips_the_update_and_reduces_the_scale(
    pairs: Path, tmp_path: Path, gpu: torch.device
) -> None:
    with (
        trainer_of(make_recipe(tmp_path / "run", gpu, precision="fp16"), pairs) as trainer,
        trainer.batches() as batches,
    ):
        trainer.updater.loss_scaler = torch.amp.GradScaler(gpu.type, init_scale=2.0**60)
        before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
        result = trainer.updater(next(batches), 1)
        assert result.skipped.item() == 1.0
        assert trainer.updater.loss_scaler.get_scale() == 2.0**59
        assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.model.state_dict().items())
        trainer.updater.loss_scaler = torch.amp.GradScaler(gpu.type, init_scale=2.0**10)
        assert trainer.updater(next(batches), 2).skipped.item() == 0.0
        assert not all(torch.equal(tensor, before[name]) for name, tensor in trainer.model.state_dict().items())


def test_one_compiled_graph_gives_the_gradients_of_eager_steps(
    pairs: Path, tmp_path: Path, real_gpu: torch.device
) -> None:
    """Both round in bf16, in a different order: their distance must be similar to that from float32."""
    _, exact = updates(make_recipe(tmp_path / "exact", CPU), pairs)
    recipe = make_recipe(tmp_path / "run", real_gpu, precision="bf16")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with trainer_of(recipe, pairs) as trainer, trainer.batches() as batches:
        micros = [micro.batch for _ in range(3) for micro in next(batches).micro_batches]
    found, losses = [], []
    for compiled in (False, True):
        with trainer_of(recipe, pairs) as trainer, torch._dynamo.config.patch(error_on_recompile=True):
            if compiled:
                trainer.loss.compile_step("inductor")
            gradients = []
            for batch in micros:
                trainer.loss.zero_grad(set_to_none=True)
                with torch.autocast(real_gpu.type, torch.bfloat16):
                    loss, _ = trainer.loss(batch.to(real_gpu))
                (loss / batch.tgt_tokens).backward()
                gradients.append(gradient(trainer))
                losses.append(loss.item())
        found.append(gradients)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert len(micros) >= 6 and exact.norm() > 0
    _, eager_whole = updates(make_recipe(tmp_path / "eager", real_gpu, precision="bf16"), pairs)
    rounding = distance(eager_whole, exact)
    assert losses[len(micros) :] == pytest.approx(losses[: len(micros)], rel=1e-3)
    for eager, traced in zip(*found, strict=True):
        assert distance(traced, eager) <= 4 * rounding
    torch._dynamo.reset()


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_resumed_run_has_the_losses_of_an_uninterrupted_one(
    precision: str, pairs: Path, tmp_path: Path, gpu: torch.device
) -> None:
    """With dropout. Some kernels sum in nondeterministic order."""
    if precision != "fp16" and not torch.cuda.is_available():
        pytest.skip("one precision is enough on a simulated GPU")
    losses = []
    for stops in (False, True):
        recipe = make_recipe(tmp_path / f"run-{stops}", gpu, dropout=0.2, precision=precision, keep_last=9)
        with trainer_of(recipe, pairs) as trainer:
            trainer.run()
        if stops:
            for directory in list_checkpoints(recipe.directory)[1:]:
                shutil.rmtree(directory)
            with trainer_of(recipe, pairs) as trainer:
                assert trainer.state.step == 4
                trainer.run()
        lines = (recipe.directory / "metrics.jsonl").read_text().splitlines()
        losses.append([entry["train/loss"] for entry in map(json.loads, lines) if "train/loss" in entry])
    assert len(losses[0]) == 12
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_an_update_does_not_synchronize(pairs: Path, tmp_path: Path, real_gpu: torch.device) -> None:
    for precision in ("fp32", "bf16", "fp16"):
        recipe = make_recipe(tmp_path / precision, real_gpu, dropout=0.1, precision=precision, clip_norm=1.0)
        with trainer_of(recipe, pairs) as trainer, trainer.batches() as batches:
            for step in (1, 2):  # warm-up
                result = trainer.updater(next(batches), step)
            torch.cuda.set_sync_debug_mode("error")
            try:
                for step in (3, 4, 5):
                    result = trainer.updater(next(batches), step)
                with pytest.raises(RuntimeError, match="synchroniz"):  # the check itself works
                    result.loss.item()
            finally:
                torch.cuda.set_sync_debug_mode("default")


def test_an_update_needs_the_estimated_memory(pairs: Path, tmp_path: Path, real_gpu: torch.device) -> None:
    recipe = make_recipe(tmp_path / "run", real_gpu, batch_tokens=3_000, micro_batch_tokens=3_000, precision="bf16")
    with trainer_of(recipe, pairs) as trainer, trainer.batches() as batches:
        assert trainer.batching.shape is not None
        batch = MicroBatchShape.from_batch_shape(trainer.batching.shape).batch().to(real_gpu)

        def step() -> None:
            with torch.autocast("cuda", torch.bfloat16):
                loss, _ = trainer.loss(batch)
            loss.backward()

        before = torch.cuda.memory_allocated(real_gpu)
        estimate = before + peak_memory(step, real_gpu) + missing_moment_bytes(trainer.updater.optimizer)
        trainer.loss.zero_grad(set_to_none=True)
        torch.cuda.reset_peak_memory_stats(real_gpu)
        for number in range(1, 6):
            trainer.updater(next(batches), number)
        assert 0.6 * estimate <= torch.cuda.max_memory_allocated(real_gpu) <= 1.1 * estimate
