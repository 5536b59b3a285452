"""Workload of the WMT14 recipes on up to 64 processes, and of small examples."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nmt.bench.corpora import WMT14
from nmt.data.epoch_plan import EpochPlan, plan_epoch
from nmt.packing.packed import BatchShape
from nmt.packing.shapes import UpdateStatistics
from nmt.recipe import Recipe, load_recipe
from nmt.train.batching import Batching, Workload, describe_workload
from nmt.train.state import TrainState
from tests.train.run_tiny import with_train

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


@cache
def wmt_lengths() -> tuple[np.ndarray, np.ndarray]:
    return WMT14.sample(60_000, 256, np.random.Generator(np.random.PCG64(3)))


def plan_of(batch_tokens: int, micro_batch_tokens: int, multiple: int, *, fixed: bool = False) -> EpochPlan:
    needs = UpdateStatistics.from_lengths(*wmt_lengths(), batch_tokens=batch_tokens)
    return plan_epoch(
        *wmt_lengths(),
        batch_tokens=batch_tokens,
        src_batch_tokens=needs.src_tokens,
        micro_batch_tokens=micro_batch_tokens,
        seed=1,
        epoch=0,
        shape=needs.shape(micro_batch_tokens, multiple) if fixed else None,
        multiple=multiple,
    )


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2, 8, 64])
def test_wmt14_recipes_are_balanced(processes: int) -> None:
    recipes = [load_recipe(path).train for path in RECIPES.glob("wmt14-en-*.toml")]
    assert [(train.batch_tokens, train.micro_batch_tokens) for train in recipes] == [(25_000, 12_500)] * 4
    plan = plan_of(25_000, 12_500, processes)
    work = Workload.from_plan(plan, processes)
    assert work.useful == 1.0  # no padding and no empty passes
    assert work.slowest <= 1.05
    assert work.efficiency >= (0.97 if processes <= 8 else 0.95)
    for update in range(20):
        loads = np.zeros((processes, 2))
        for number, ids in enumerate(plan.micro_batches(update)):
            loads[number % processes] += [(side[ids] + 1).sum() for side in wmt_lengths()]
        assert loads.sum(axis=1).max() <= 1.05 * loads.sum(axis=1).mean()


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "least"), [(1, 0.99), (2, 0.99), (8, 0.985), (16, 0.97), (64, 0.92)])
def test_fixed_shape_has_little_padding_on_many_processes(processes: int, least: float) -> None:
    work = Workload.from_plan(plan_of(25_000, 12_500, processes, fixed=True), processes)
    assert work.micro_batches == max(2, processes)
    assert (work.slowest, work.efficiency) == (1.0, work.useful)
    assert work.efficiency >= least


def test_more_processes_than_pairs() -> None:
    lengths = np.full(12, 9)
    plan = plan_epoch(lengths, lengths, batch_tokens=40, micro_batch_tokens=40, seed=1, epoch=0, multiple=16)
    assert [len(part) for part in plan.micro_batches(0)] == [1] * 4 + [0] * 12
    work = Workload.from_plan(plan, 16)
    assert (work.micro_batches, work.useful, work.slowest, work.efficiency) == (4, 1.0, 4.0, 0.25)


def test_work_includes_padding() -> None:
    order, starts, lengths = np.arange(3), np.array([0, 3]), np.array([9, 4, 4])
    plain = EpochPlan(order, starts, lengths, lengths, micro_batch_tokens=20, multiple=2)
    work = Workload.from_plan(plain, 2)  # 10 tokens a side on one process, 5 + 5 on the other
    assert (work.micro_batches, work.useful, work.slowest) == (2, 1.0, 1.0)
    assert Workload.from_plan(plain, 1).slowest == 1.0
    padded = EpochPlan(order, starts, lengths, lengths, 20, BatchShape(16, 16, 6, 10), multiple=2)
    assert Workload.from_plan(padded, 2) == Workload(2, 2, 40 / 64, 1.0)


def test_padding_is_logged_if_there_is_any() -> None:
    assert describe_workload(Workload(1, 3.0, 1.0, 1.0)) == "micro-batches per update: 3 on average"
    assert describe_workload(Workload(1, 3.0, 0.99, 1.0)).endswith("; 1.0% of their positions are padding")
    work = Workload(4, 6.0, 0.99, 1.1)
    assert describe_workload(work) == (
        "micro-batches per update: 6 on average, 1.5 for each of 4 processes; 90.0% of their time is useful, and the "
        "busiest computes 10.0% more tokens than the mean"
    )


def test_the_incomplete_last_update_does_not_count() -> None:
    """Loads of 10 and 20 tokens a side, then 10 and 10; the last update has one pair."""
    order, starts, lengths = np.arange(6), np.array([0, 2, 4, 6]), np.array([9, 19, 9, 9, 4, 4])
    plan = EpochPlan(order, starts, lengths, lengths, micro_batch_tokens=20, multiple=2)
    work = Workload.from_plan(plan, 2)
    assert (work.micro_batches, work.useful, work.slowest) == (2, 1.0, (40 + 20) / (30 + 20))
    only = EpochPlan(order[:2], starts[:2], lengths, lengths, micro_batch_tokens=20, multiple=2)
    assert Workload.from_plan(only, 2).slowest == 40 / 30


@pytest.mark.parametrize(
    ("before", "requested", "expected"),
    [
        ((0, 0), "auto", ["train.micro_batch_tokens is 512, the largest useful size"]),
        ((0, 0), 512, []),
        ((512, 2), "auto", []),
        ((512, 0), "auto", []),  # of an earlier version
        ((256, 2), 512, ["train.micro_batch_tokens is now 512, was 256; dropout masks differ"]),
        ((512, 3), "auto", ["the number of processes is now 2, was 3; dropout masks may differ"]),
    ],
)
def test_changed_micro_batches_are_logged(
    before: tuple[int, int],
    requested: Any,
    expected: list[str],
    tiny_recipe: Recipe,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe = with_train(tiny_recipe, micro_batch_tokens=requested)
    state = TrainState(micro_batch_tokens=before[0], processes=before[1])
    for efficiency, warns in ((0.9, False), (0.89, True)):
        Batching(900, 512, 2, None, Workload(2, 4.0, efficiency, 1.0)).announce(recipe, state)
        lines = capsys.readouterr().err.replace("\n", " ")
        assert all(text in lines for text in expected), lines
        assert (lines.count("train.micro_batch_tokens") + lines.count("the number of processes")) == len(expected)
        assert ("2 processes spend 11% of their time on padding and waiting" in lines) is warns
