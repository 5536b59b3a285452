"""Memory of the largest step, compared with whole plans, exact counts and simulated machines."""

import platform
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from nmt.checkpoint import Checkpoint, model_tensors, save_checkpoint
from nmt.data.epoch_plan import EpochPlan, plan_epoch
from nmt.devices.allocator import keep_freed_memory
from nmt.errors import UserError
from nmt.model.transformer import Transformer
from nmt.packing.packed import BatchShape
from nmt.processes.device_memory import available_memory, peak_memory
from nmt.processes.distributed import World
from nmt.processes.host_memory import resident_memory
from nmt.recipe import ModelRecipe, TrainRecipe
from nmt.train import memory as memory_module
from nmt.train.ema import ExponentialMovingAverage
from nmt.train.loss import TrainingLoss
from nmt.train.memory import (
    BUDGET_STEP,
    LARGEST_ON_CPU,
    MARGIN,
    MemoryProbe,
    MicroBatchShape,
    checkpoint_copy_bytes,
    heaviest_shape,
    missing_moment_bytes,
)
from nmt.train.optimizer import build_optimizer, optimizer_tensors
from tests.forked import PROCESSES

CPU = torch.device("cpu")
MB = 1 << 20


def corpus(pairs: int, seed: int = 1, longest: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Realistic lengths: many short sentences, few long ones, correlated sides."""
    random = np.random.default_rng(seed)
    src = np.minimum(random.lognormal(2.2, 0.6, pairs).astype(np.int64) + 1, longest)
    tgt = np.clip((src * random.normal(1.1, 0.2, pairs)).astype(np.int64), 1, longest)
    return src, tgt


def plan_of(src: np.ndarray, tgt: np.ndarray, budget: int, batch_tokens: int = 9_000, epoch: int = 0) -> EpochPlan:
    return plan_epoch(src, tgt, batch_tokens=batch_tokens, micro_batch_tokens=budget, seed=1, epoch=epoch)


# --- The worst shape --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("budget", [200, 700, 2_000, 20_000])
def test_heaviest_shape_is_a_bound_for_all_epochs(budget: int) -> None:
    src, tgt = corpus(20_000, longest=150)
    src[77], tgt[77] = 150, 2  # the only long source with a short target
    worst = heaviest_shape(plan_of(src, tgt, budget))
    assert worst.tokens == (budget if budget < 20_000 else pytest.approx(9_000, rel=0.03))
    heaviest = 0
    for epoch in range(3):
        plan = plan_of(src, tgt, budget, epoch=epoch)
        for update in range(len(plan)):
            for ids in plan.micro_batches(update):
                src_longest, tgt_longest = int(src[ids].max()) + 1, int(tgt[ids].max()) + 1
                assert max(src[ids].sum(), tgt[ids].sum()) + len(ids) <= worst.tokens * 1.02
                real = MicroBatchShape(len(ids), worst.tokens, src_longest, tgt_longest).attention_size()
                heaviest = max(heaviest, real)
    assert heaviest <= worst.attention_size() < heaviest * 1.5


def test_a_long_source_with_a_short_target_is_considered() -> None:
    src, tgt = np.full(20_000, 5), np.full(20_000, 5)
    plan = plan_of(src, tgt, 300, batch_tokens=600)
    src[plan.order[-500]] = 90
    worst = heaviest_shape(plan)
    for update in range(memory_module._MAX_SAMPLED_UPDATES):
        assert src[plan.sentences(update)].max() == 5  # the pair is not in the sample
    assert (worst.src_longest, worst.tgt_longest) == (91, 6)
    assert worst.num_sentences == 1 + (300 - 91) // 6 + 1


def test_heaviest_shape_of_a_single_pair() -> None:
    worst = heaviest_shape(plan_of(np.array([30]), np.array([20]), 10))
    assert worst == MicroBatchShape(1, 10, 31, 21)
    batch = worst.batch()
    assert (batch.src.total, batch.tgt.total) == (31, 21)


@pytest.mark.parametrize(("sentences", "tokens"), [(1, 40), (2, 41), (7, 100), (40, 100), (99, 138)])
def test_a_trial_batch_has_its_shape(sentences: int, tokens: int) -> None:
    batch = MicroBatchShape(sentences, tokens, src_longest=40, tgt_longest=25).batch()
    for side, longest in ((batch.src, 40), (batch.tgt, 25)):
        assert side.num_sentences == sentences
        assert side.total == tokens
        assert side.max_length == int(side.lengths.max())
        assert side.max_length == max(longest, -(-tokens // sentences))
        assert int(side.lengths.min()) >= 1
    assert batch.tgt_tokens == batch.tgt.total


def test_part_of_a_trial_batch_includes_the_longest_pair() -> None:
    shape = MicroBatchShape(101, 540, src_longest=40, tgt_longest=20)
    part = shape.batch(part=21)
    assert (part.num_sentences, part.src.total, part.tgt.total) == (21, 40 + 500 // 5, 20 + 520 // 5)
    assert (part.src.max_length, part.tgt.max_length) == (40, 20)


# --- Measuring memory -------------------------------------------------------------------------------------------------


def in_fresh_process(function: Callable[[], Any]) -> Any:
    """Run a function of this module in a new process, without memory freed by other tests."""
    with ProcessPoolExecutor(1, mp_context=PROCESSES) as pool:
        return pool.submit(function).result(120)


def allocate_for_a_while() -> None:
    tensors = [torch.ones(MB // 4) for _ in range(64)]  # of 1 MB: glibc may keep the memory when they are freed
    time.sleep(0.2)  # longer than the polling interval, also on a busy machine
    del tensors
    torch.ones(MB // 4)


def two_peaks() -> list[int]:
    return [peak_memory(allocate_for_a_while, CPU) for _ in range(2)]


@pytest.mark.slow
def test_peak_memory_is_repeatable() -> None:
    assert all(60 * MB < peak < 80 * MB for peak in in_fresh_process(two_peaks))


def write(root: Path, files: dict[str, object]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


MEMINFO = {"proc/meminfo": "MemTotal:       9000 kB\nMemAvailable:   5000 kB\nSwapFree: 0 kB"}
GROUPS_V2 = {"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/memory.max": "max"}
GROUPS_V1 = {"proc/self/cgroup": "5:cpu:/x\n4:cpu,memory:/outside/of/the/container\n0::/"}


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({}, None),
        (MEMINFO, 5_000 * 1024),
        (
            MEMINFO | GROUPS_V2 | {"sys/fs/cgroup/a/b/memory.current": 7, "sys/fs/cgroup/a/b/memory.stat": "anon 5"},
            5_000 * 1024,
        ),
        (
            MEMINFO
            | GROUPS_V2
            | {
                "sys/fs/cgroup/a/memory.max": 900_000,
                "sys/fs/cgroup/a/memory.current": 500_000,
                "sys/fs/cgroup/a/memory.stat": "anon 5\nactive_file 9\ninactive_file 80000",
            },
            480_000,
        ),
        (
            MEMINFO
            | GROUPS_V1
            | {
                "sys/fs/cgroup/memory/memory.limit_in_bytes": 600_000,
                "sys/fs/cgroup/memory/memory.usage_in_bytes": 500_000,
                "sys/fs/cgroup/memory/memory.stat": "inactive_file 7\ntotal_inactive_file 10000",
            },
            110_000,
        ),
    ],
    ids=["no /proc", "machine", "unlimited cgroup", "parent cgroup", "cgroup v1"],
)
def test_available_memory_is_the_minimum_of_machine_and_control_groups(
    files: dict[str, object], left: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    root = write(tmp_path, files)
    assert available_memory(CPU, root) == left
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert available_memory(CPU, root) == (left // 2 if left else None)


def resident_megabytes_with_freed_tensors() -> tuple[int, int]:
    """Return the resident memory before and after `available_memory`, with 256 MB that glibc keeps for reuse."""
    keep_freed_memory()
    tensors = [torch.ones(MB) for _ in range(64)]
    del tensors
    before = resident_memory()
    available_memory(CPU)
    return before // MB, resident_memory() // MB


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="requires glibc")
def test_freed_memory_is_available() -> None:
    before, after = in_fresh_process(resident_megabytes_with_freed_tensors)
    assert after < before - 200


def test_available_memory_of_this_machine() -> None:
    left = available_memory(CPU)
    assert left is None or MB < left < 1 << 50


def test_missing_moments_before_and_after_the_first_update() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(10, 5), torch.nn.Linear(5, 3))
    model[1].requires_grad_(False)
    optimizer = build_optimizer(model, TrainRecipe())
    assert missing_moment_bytes(optimizer) == 2 * 4 * (10 * 5 + 5)
    model(torch.ones(1, 10)).sum().backward()
    optimizer.step()
    assert missing_moment_bytes(optimizer) == 0
    held = sum(s["exp_avg"].nbytes + s["exp_avg_sq"].nbytes for s in optimizer.state.values())
    assert held == 2 * 4 * (10 * 5 + 5)


# --- Refusing and choosing budgets ------------------------------------------------------------------------------------


def kept_memory(run: Callable[[], None], device: torch.device) -> int:
    """Return the bytes saved for the backward pass of `run`, a measure without noise."""
    storages: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return sum(tensor.untyped_storage().nbytes() for tensor in storages.values())


class IdenticalRanks(World):
    """A world of identical machines."""

    def max(self, value: int) -> int:
        return value


class RankWithLessMemory(World):
    """A world whose other rank rejects more than 512 tokens.

    The maximum is either that of flags (1: too large) or that of negative budgets.
    """

    def max(self, value: int) -> int:
        return 1 if value >= 0 else max(value, -512)


def probe_with(available: float | None, **changes: Any) -> MemoryProbe:
    """A probe of a small model with `available` bytes."""
    torch.manual_seed(1)
    recipe = ModelRecipe(d_model=16, d_ff=32, num_heads=2, num_encoder_layers=1, num_decoder_layers=1, max_positions=64)
    probe = MemoryProbe(
        TrainingLoss(Transformer(recipe, 40, 40), 0.1),
        plan_of(*corpus(5_000), budget=0),
        World(0, 1, CPU),
        "fp32",
        reserve=0,
        available=lambda device: available if available is None else int(available),
        measure=kept_memory,
    )
    return replace(probe, **changes)


@cache
def need(budget: int) -> int:
    """Return the bytes that the largest step under a budget saves for the backward pass."""
    probe = probe_with(None)
    batch = heaviest_shape(replace(probe.plan, micro_batch_tokens=budget)).batch()
    return kept_memory(lambda: probe.loss.train()(batch)[0].backward(), CPU)


def need_with_margin(budget: int) -> float:
    """Return slightly more than the minimum available memory with which `auto` selects a budget."""
    return need(budget) / (1 - MARGIN) * 1.02


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (130, "train.micro_batch_tokens=130 exceeds .* must be at most 61;"),
        (4_000, "train.micro_batch_tokens=4000 exceeds"),
    ],
)
def test_require_rejects_a_budget_that_does_not_fit(budget: int, message: str) -> None:
    probe_with(need(budget) * 1.05).require(budget, 61)
    with pytest.raises(UserError, match=message):
        probe_with(need(budget) * 0.95).require(budget, 61)


@pytest.mark.slow
def test_a_fixed_shape_is_tried_as_it_is() -> None:
    shape = BatchShape(src_tokens=904, tgt_tokens=1_000, num_sentences=60, max_length=61)
    batch = MicroBatchShape.from_batch_shape(shape).batch()
    assert (batch.src.total, batch.tgt.total, batch.src.num_sentences) == (1_000, 1_000, 60)
    assert (batch.src.max_length, batch.tgt.max_length) == (61, 61)
    probe = probe_with(None, shape=lambda budget: replace(shape, src_tokens=budget, tgt_tokens=budget))
    needed = kept_memory(lambda: probe.loss.train()(batch)[0].backward(), CPU)
    replace(probe, available=lambda device: int(needed * 1.05)).require(1_000, 61)
    with pytest.raises(UserError, match="exceeds the memory"):
        replace(probe, available=lambda device: int(needed * 0.95)).require(1_000, 61)


@pytest.mark.slow
def test_reserved_memory_counts() -> None:
    probe_with(need(1_000) * 1.05 + 10_000, reserve=10_000).require(1_000, 61)
    with pytest.raises(UserError, match="exceeds the memory"):
        probe_with(need(1_000) * 1.05 + 10_000, reserve=10_000 + need(1_000) // 9).require(1_000, 61)


@pytest.mark.slow
def test_the_error_names_the_largest_budget_that_fits() -> None:
    with pytest.raises(UserError) as refusal:
        probe_with(need_with_margin(1_280)).require(4_000, 61)
    assert str(refusal.value) == (
        "a micro-batch with train.micro_batch_tokens=4000 exceeds the memory of cpu; the number must be at most 1280; "
        "set it to 1280, or set train.activation_checkpointing to true"
    )
    with pytest.raises(UserError, match="must be at most 300;"):  # 256 would be less than a sentence may have
        probe_with(need_with_margin(310)).require(4_000, 300)
    with pytest.raises(UserError) as refusal:
        probe_with(1).require(4_000, 61)
    assert str(refusal.value) == (
        "a micro-batch with a sentence of 61 tokens exceeds the memory of cpu; it must fit; "
        "lower data.max_tokens or choose a smaller model, or set train.activation_checkpointing to true"
    )


@pytest.mark.slow
@pytest.mark.parametrize("best", [256, 2_304])
def test_auto_selects_the_largest_budget_with_a_margin(best: int) -> None:
    probe = probe_with(need_with_margin(best))
    assert probe.largest_budget(61) == best
    probe.require(200, 61)


@pytest.mark.slow
def test_limits_of_auto() -> None:
    assert probe_with(1e12).largest_budget(61) == LARGEST_ON_CPU == 4_096
    assert probe_with(1e12, plan=plan_of(*corpus(5_000), budget=0, batch_tokens=1_000)).largest_budget(61) == 1_024
    eight: dict[str, Any] = {"world": IdenticalRanks(0, 8, CPU)}
    eight["plan"] = replace(plan_of(*corpus(5_000), budget=0), multiple=8)
    assert probe_with(1e12, **eight).largest_budget(61) == 1_280  # about 9,000 in 8 parts
    assert probe_with(1e12, **eight).largest_budget(1_500) == 1_536
    with pytest.raises(UserError, match="with a sentence of 1500 tokens"):
        probe_with(need(1_280), **eight).largest_budget(1_500)


def test_unknown_memory_rejects_nothing() -> None:
    probe_with(None).require(10_000_000, 61)
    assert probe_with(None).largest_budget(61) == LARGEST_ON_CPU


@pytest.mark.slow
@pytest.mark.parametrize("error", [torch.OutOfMemoryError(), RuntimeError("CUDA error: out of memory")])
def test_a_step_that_runs_out_of_memory_does_not_fit(error: RuntimeError) -> None:
    """Libraries that allocate memory themselves raise other errors than torch."""
    ran: list[int] = []

    def measure(run: Callable[[], None], device: torch.device) -> int:
        kept = kept_memory(run, device)
        ran.append(kept)
        if kept > need(700):
            raise error
        return 0

    assert 512 <= probe_with(1e12, measure=measure).largest_budget(61) < 4_096
    assert max(ran) > need(700)


def test_other_errors_of_a_step_are_raised() -> None:
    def measure(run: Callable[[], None], device: torch.device) -> int:
        raise RuntimeError("a defect")

    with pytest.raises(RuntimeError, match="a defect"):
        probe_with(1e12, measure=measure).largest_budget(61)


@pytest.mark.parametrize("rdrop", [0.0, 1.0])
def test_a_gpu_limits_the_number_of_sentences(rdrop: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "_MAX_SENTENCES", 500)
    monkeypatch.setattr(MemoryProbe, "_measure", lambda probe, batch: 0)
    probe = probe_with(1e12, world=World(0, 1, torch.device("cuda", 0)))
    probe.loss.rdrop = rdrop
    budget = probe.largest_budget(61)
    passes = 2 if rdrop else 1
    sizes = [probe._heaviest_shape(size).num_sentences * passes for size in (budget, budget + BUDGET_STEP)]
    assert sizes[0] <= 500 < sizes[1]
    with pytest.raises(UserError, match=f"must be at most {budget}"):
        probe.require(budget + BUDGET_STEP, 61)


@pytest.mark.slow
def test_a_cpu_runs_only_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "_SAMPLE_TOKENS", 300)
    sizes: list[int] = []

    def measure(run: Callable[[], None], device: torch.device) -> int:
        sizes.append(kept_memory(run, device))
        return sizes[-1]

    with pytest.raises(UserError, match="exceeds the memory"):
        probe_with(need(1_000), measure=measure).require(3_000, 61)
    assert max(sizes) < need(3_000) / 8


def peak_of_a_save() -> tuple[int, int]:
    """Return the peak memory for writing a checkpoint of 12 million parameters with EMA, and the reserved memory."""
    recipe = ModelRecipe(d_model=256, d_ff=1024, num_heads=4, num_encoder_layers=6, num_decoder_layers=6)
    model = Transformer(recipe, 2_000, 2_000)
    optimizer = build_optimizer(model, TrainRecipe())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    average = ExponentialMovingAverage(model, 0.9)

    def save() -> None:
        tensors, moments = model_tensors(model), optimizer_tensors(optimizer, model)
        checkpoint = Checkpoint(tensors, moments, average.tensors(), {})
        files = {"model.safetensors": lambda: safetensors.torch.save(tensors)}
        with tempfile.TemporaryDirectory() as folder:
            save_checkpoint(Path(folder), 1, checkpoint, files, "")

    return peak_memory(save, CPU), checkpoint_copy_bytes(model, 1, CPU)


@pytest.mark.slow
def test_writing_a_checkpoint_needs_at_most_about_the_reserve() -> None:
    taken, reserved = in_fresh_process(peak_of_a_save)
    assert 0.6 * reserved < taken < 1.05 * reserved
    assert checkpoint_copy_bytes(torch.nn.Linear(9, 9), 1, torch.device("cuda", 0)) == 0


@pytest.mark.slow
def test_all_processes_use_the_minimum_memory() -> None:
    world = RankWithLessMemory(0, 2, CPU)
    assert probe_with(1e12, world=world).largest_budget(61) == 512
    with pytest.raises(UserError, match="must be at most 512;"):
        probe_with(1e12, world=world).require(2_000, 61)


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
def test_trial_steps_change_no_state(training: bool) -> None:
    probe = probe_with(need(2_000), measure=peak_memory)
    probe.loss.train(training)
    before = {name: tensor.clone() for name, tensor in probe.loss.state_dict().items()}
    random_state = torch.get_rng_state()
    with pytest.raises(UserError, match="exceeds the memory"):
        replace(probe, reserve=1 << 60).require(2_000, 61)
    replace(probe, available=lambda device: 1 << 50).require(2_000, 61)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert probe.loss.training == training
    assert all(parameter.grad is None for parameter in probe.loss.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in probe.loss.state_dict().items())


@pytest.mark.gpu
def test_a_gpu_runs_the_full_step() -> None:
    device = torch.device("cuda", 0)
    probe = replace(probe_with(0, world=World(0, 1, device), measure=peak_memory), available=available_memory)
    probe.loss.to(device)
    probe.require(2_000, 61)
    assert probe.largest_budget(61) >= 2_048
    left = available_memory(device)
    assert left is not None
    with pytest.raises(UserError, match="the memory of cuda:0"):
        replace(probe, reserve=left).require(2_000, 61)
    assert available_memory(device) == pytest.approx(left, rel=0.01)
