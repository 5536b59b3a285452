"""Fixed-shape micro-batches: completeness and padding."""

import math
from statistics import pstdev
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.bench.corpora import WMT14
from nmt.data.epoch_plan import plan_epoch
from nmt.packing.packed import BatchShape
from nmt.packing.shapes import UpdateStatistics, balance, pack_pairs

LONGEST = 256


@pytest.fixture(scope="module")
def wmt() -> tuple[np.ndarray, np.ndarray]:
    """Sentence lengths, distributed as in WMT14, of pairs for 400 updates as large as in Vaswani et al. 2017."""
    return WMT14.sample(360_000, LONGEST, np.random.Generator(np.random.PCG64(3)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch_tokens", "micro_batch_tokens", "parts", "max_padding"),
    [
        (25_000, 25_000, 1, 0.006),
        (25_000, 12_500, 2, 0.007),
        (25_000, 4_096, 7, 0.0095),
        (25_000, 3_125, 8, 0.0095),
        (100_000, 12_500, 8, 0.005),
        (8_192, 4_096, 2, 0.013),
    ],
)
def test_padding_is_small(
    wmt: tuple[np.ndarray, np.ndarray], batch_tokens: int, micro_batch_tokens: int, parts: int, max_padding: float
) -> None:
    """Padding of both sides together is below 1% for updates at least as large as the paper's."""
    src, tgt = wmt
    statistics = UpdateStatistics.from_lengths(src, tgt, batch_tokens=batch_tokens)
    shape = statistics.shape(micro_batch_tokens)
    sizes: dict[str, Any] = {"batch_tokens": batch_tokens, "micro_batch_tokens": micro_batch_tokens}
    plan = plan_epoch(src, tgt, **sizes, src_batch_tokens=statistics.src_tokens, seed=1, epoch=0, shape=shape)
    updates = range(min(len(plan) - 1, 60))  # without the incomplete last update
    ids = np.concatenate([plan.sentences(update) for update in updates])
    counts = [len(plan.micro_batches(update)) for update in updates]
    num_micro_batches = sum(counts)
    capacity = num_micro_batches * (shape.src_tokens + shape.tgt_tokens)
    assert set(counts) <= {parts, parts + 1}
    assert 1 - (src[ids] + tgt[ids] + 2).sum() / capacity < max_padding
    assert (tgt[ids] + 1).sum() / len(updates) > 0.994 * batch_tokens  # the source limit ends few updates early
    assert shape.tgt_tokens <= 1.01 * micro_batch_tokens
    assert len(ids) / num_micro_batches > 0.84 * shape.num_sentences  # few padding sentences are needed


@pytest.mark.slow
@pytest.mark.parametrize(("src_mean", "parts"), [(14.0, 2), (28.0, 2), (36.0, 3)])
def test_padding_is_small_if_sources_are_shorter_or_longer_than_targets(
    wmt: tuple[np.ndarray, np.ndarray], src_mean: float, parts: int
) -> None:
    src = np.maximum(1, np.rint(wmt[0] * (src_mean / WMT14.src_mean))).astype(np.int64)
    tgt = wmt[1]
    statistics = UpdateStatistics.from_lengths(src, tgt, batch_tokens=25_000)
    shape = statistics.shape(12_500)
    sizes: dict[str, Any] = {"src_batch_tokens": statistics.src_tokens, "micro_batch_tokens": 12_500}
    plan = plan_epoch(src, tgt, batch_tokens=25_000, **sizes, seed=1, epoch=0, shape=shape)
    updates = [plan.micro_batches(update) for update in range(100)]
    assert np.mean([len(micro_batches) for micro_batches in updates]) < parts * 1.02
    ids = np.concatenate([np.concatenate(micro_batches) for micro_batches in updates])
    num_micro_batches = sum(len(micro_batches) for micro_batches in updates)
    assert 1 - (tgt[ids] + 1).sum() / (num_micro_batches * shape.tgt_tokens) < 0.01
    assert 1 - (src[ids] + 1).sum() / (num_micro_batches * shape.src_tokens) < 0.02


pairs_strategy = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=60)


@pytest.mark.slow
@given(pairs_strategy, st.integers(1, 300), st.integers(1, 300))
def test_packing_partitions_arbitrary_pairs(
    pairs: list[tuple[int, int]], batch_tokens: int, micro_batch_tokens: int
) -> None:
    src, tgt = np.array(pairs).T
    statistics = UpdateStatistics.from_lengths(src, tgt, batch_tokens=batch_tokens)
    shape = statistics.shape(micro_batch_tokens)
    sizes: dict[str, Any] = {"batch_tokens": batch_tokens, "micro_batch_tokens": micro_batch_tokens}
    plan = plan_epoch(src, tgt, **sizes, src_batch_tokens=statistics.src_tokens, seed=5, epoch=2, shape=shape)
    seen: list[int] = []
    for update in range(len(plan)):
        parts = plan.micro_batches(update)
        ids = np.concatenate(parts)
        assert sorted(ids) == sorted(plan.sentences(update))
        for part in parts:
            assert shape.holds(int(src[part].sum()) + len(part), int(tgt[part].sum()) + len(part), len(part))
        seen += ids.tolist()
    assert sorted(seen) == list(range(len(pairs)))


@pytest.mark.parametrize("longest", [7, 64, 255, 1023, 2047])
@pytest.mark.parametrize("parts", [1, 3, 8])
def test_each_pair_fits_into_a_micro_batch_that_is_hardly_larger(longest: int, parts: int) -> None:
    lengths = np.array([longest, *range(0, longest, 7)])
    for src, tgt in ((lengths, lengths), (lengths, lengths // 3), (lengths // 3, lengths)):
        shape = UpdateStatistics.from_lengths(src, tgt, batch_tokens=2 * longest).shape(2 * longest, parts)
        assert all(shape.holds(a + 1, b + 1, 1) for a in (*lengths, 1) for b in (*lengths, 1))


def test_statistics_of_updates_of_six_target_tokens() -> None:
    """Two pairs, each with 5 source and 3 target tokens on average."""
    src, tgt = np.array([3, 5, 3, 5]), np.array([1, 1, 3, 3])
    found = UpdateStatistics.from_lengths(src, tgt, batch_tokens=6)
    deviation = math.sqrt(2) * pstdev(s - 10 / 6 * t for s, t in zip(src.tolist(), tgt.tolist(), strict=True))
    assert (found.mean_src_tokens, found.tgt_tokens, found.longest) == (10, 6, 6)
    assert (found.src_deviation, found.num_sentences) == pytest.approx((deviation, 2 + 3 * math.sqrt(2) / 3))
    assert found.src_tokens == math.ceil(10 + deviation / 2) == 12
    assert UpdateStatistics.from_lengths(src, tgt, batch_tokens=99).tgt_tokens == 12, "all pairs"


@pytest.mark.parametrize(
    ("statistics", "micro_batch_tokens", "multiple", "expected"),
    [
        ((2_000, 40, 1_000, 50, 65), 500, 1, (520, 264, 16, 65)),  # 2020 / 4 + 8 + 3, and 1000 / 4 + 8
        ((2_000, 40, 1_000, 50, 65), 2_000, 1, (2_032, 1_000, 56, 65)),  # one micro-batch needs no slack
        ((500, 40, 1_000, 50, 65), 500, 1, (280, 512, 31, 65)),  # 280 tokens of padding instead of 140
        ((2_000, 0, 2_000, 50, 10), 100, 8, (112, 112, 13, 10)),  # 24 micro-batches with a slack of 24
        ((2_000, 0, 2_000, 50, 10), 50, 1, (80, 80, 9, 10)),  # 40 with the same slack
    ],
)
def test_shapes_computed_by_hand(
    statistics: tuple[int, int, int, int, int],
    micro_batch_tokens: int,
    multiple: int,
    expected: tuple[int, int, int, int],
) -> None:
    assert UpdateStatistics(*statistics).shape(micro_batch_tokens, multiple) == BatchShape(*expected)


def test_large_updates_get_more_micro_batches() -> None:
    tgt = np.full(50, 9)
    shape = UpdateStatistics.from_lengths(tgt, tgt, batch_tokens=500).shape(500)
    sizes = {n: [len(part) for part in pack_pairs(np.arange(50), np.full(50, n), tgt, shape)] for n in (9, 10, 29)}
    assert sizes == {9: [50], 10: [25, 25], 29: [13, 13, 12, 12]}  # 17 sentences of 30 tokens do not fit into 504


def test_micro_batches_of_an_update_are_balanced_and_a_multiple() -> None:
    lengths, shape = np.array([9, 0, 9, 0, 4, 4]), BatchShape(64, 64, 20, 10)
    for multiple, expected in ((1, [6]), (2, [3, 3]), (8, [1] * 6 + [0] * 2)):
        parts = pack_pairs(np.arange(6), lengths, lengths, shape, multiple)
        assert sorted(map(len, parts), reverse=True) == expected
    assert [sorted(lengths[part]) for part in pack_pairs(np.arange(6), lengths, lengths, shape, 2)] == [[0, 4, 9]] * 2


@pytest.mark.parametrize("weight", [1.0, 1.25, 0.67])
def test_each_pair_goes_where_the_squared_loads_grow_least(weight: float) -> None:
    random = np.random.default_rng(3)
    src, tgt = random.integers(1, 60, 80), random.integers(1, 60, 80)
    loads, expected = [[0.0, 0.0] for _ in range(5)], np.zeros(80, dtype=np.int64)
    for pair in sorted(range(80), key=lambda pair: -(src[pair] + tgt[pair])):
        x, y = src[pair] / src.sum(), tgt[pair] / tgt.sum()
        expected[pair] = min(range(5), key=lambda part: x * loads[part][0] + weight * y * loads[part][1])
        loads[expected[pair]][0] += x
        loads[expected[pair]][1] += y
    assert balance(src, tgt, 5, weight).tolist() == expected.tolist()
    assert balance(src, tgt, 1, weight).tolist() == [0] * 80
