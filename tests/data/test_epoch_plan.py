"""Plans of epochs: updates, micro-batches, order, and mixtures of corpora."""

import math
import time
import tracemalloc
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.data.epoch_plan import plan_by_length, plan_epoch
from nmt.data.mixture import Mixture

LENGTH_PAIRS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=80)


def columns(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([src for src, _ in pairs], dtype=np.int32), np.array([tgt for _, tgt in pairs], dtype=np.int32)


@given(
    LENGTH_PAIRS,
    st.integers(1, 200),
    st.none() | st.integers(1, 200),
    st.integers(31, 100),
    st.integers(-3, 3),
    st.integers(0, 3),
)
@pytest.mark.slow
def test_updates_fill_their_budget_and_micro_batches_fit_theirs(
    pairs: list[tuple[int, int]],
    batch_tokens: int,
    src_batch_tokens: int | None,
    micro_batch_tokens: int,
    seed: int,
    epoch: int,
) -> None:
    src, tgt = columns(pairs)
    options: dict[str, Any] = {"batch_tokens": batch_tokens, "src_batch_tokens": src_batch_tokens}
    options |= {"seed": seed, "epoch": epoch}
    plan = plan_epoch(src, tgt, micro_batch_tokens=micro_batch_tokens, **options)
    updates = [plan.sentences(k).tolist() for k in range(len(plan))]
    assert sorted(i for update in updates for i in update) == list(range(len(pairs)))

    def fits(update: list[int]) -> bool:
        src_tokens, tgt_tokens = (int(side[update].sum()) + len(update) for side in (src, tgt))
        return tgt_tokens <= batch_tokens and (src_batch_tokens is None or src_tokens <= src_batch_tokens)

    assert [tgt[update].sum() + len(update) for update in updates] == [plan.tgt_tokens(k) for k in range(len(plan))]
    for k, update in enumerate(updates):
        assert fits(update) or len(update) == 1
        if k + 1 < len(updates):  # the next pair would not have fit
            assert not fits([*update, updates[k + 1][0]])

    for k, update in enumerate(updates):
        micro_batches = plan.micro_batches(k)
        assert sorted(np.concatenate(micro_batches).tolist()) == sorted(update)
        for ids in micro_batches:
            assert len(ids) > 0
            assert max(src[ids].sum(), tgt[ids].sum()) + len(ids) <= micro_batch_tokens
        target_lengths = [int(tgt[i]) for ids in micro_batches for i in ids]
        assert target_lengths == sorted(target_lengths)

    other = plan_epoch(src, tgt, micro_batch_tokens=micro_batch_tokens + 50, **options)
    assert [other.sentences(k).tolist() for k in range(len(other))] == updates


@given(LENGTH_PAIRS, st.integers(31, 100))
@pytest.mark.slow
def test_no_more_micro_batches_than_greedy_splitting(pairs: list[tuple[int, int]], budget: int) -> None:
    src, tgt = columns(pairs)
    plan = plan_epoch(src, tgt, batch_tokens=100_000, micro_batch_tokens=budget, seed=1, epoch=0)
    assert len(plan) == 1
    count, src_sum, tgt_sum = 1, 0, 0
    for i in sorted(plan.sentences(0), key=lambda i: (tgt[i], src[i])):
        src_sum, tgt_sum = src_sum + src[i] + 1, tgt_sum + tgt[i] + 1
        if max(src_sum, tgt_sum) > budget:
            count, src_sum, tgt_sum = count + 1, src[i] + 1, tgt[i] + 1
    assert len(plan.micro_batches(0)) <= count


def heaviest_part_of_the_best_split(costs: list[tuple[int, int]], num_parts: int) -> float:
    """Return the minimum weight of the heaviest part over all splits into `num_parts` non-empty parts.

    costs: source and target tokens of each pair; a part weighs as much as its longer side
    """

    def weight(start: int, end: int) -> int:
        return max(sum(src for src, _ in costs[start:end]), sum(tgt for _, tgt in costs[start:end]))

    best = [0.0] + [math.inf] * len(costs)  # best[end] is the minimum for the first `end` pairs
    for _ in range(num_parts):
        best = [
            min((max(best[start], weight(start, end)) for start in range(end)), default=math.inf)
            for end in range(len(costs) + 1)
        ]
    return best[-1]


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=20), st.integers(31, 100))
def test_micro_batches_are_balanced(pairs: list[tuple[int, int]], budget: int) -> None:
    src, tgt = columns(pairs)
    plan = plan_epoch(src, tgt, batch_tokens=100_000, micro_batch_tokens=budget, seed=1, epoch=0)
    micro_batches = plan.micro_batches(0)
    heaviest = max(max(src[ids].sum(), tgt[ids].sum()) + len(ids) for ids in micro_batches)
    order = np.concatenate(micro_batches)
    costs = [(int(src[i]) + 1, int(tgt[i]) + 1) for i in order]
    assert heaviest == heaviest_part_of_the_best_split(costs, len(micro_batches))


@pytest.mark.slow
@given(LENGTH_PAIRS, st.integers(31, 100), st.integers(1, 9))
def test_micro_batches_partition_the_update(pairs: list[tuple[int, int]], budget: int, multiple: int) -> None:
    src, tgt = columns(pairs)
    plan = plan_epoch(src, tgt, batch_tokens=400, micro_batch_tokens=budget, seed=1, epoch=0, multiple=multiple)
    for update in range(len(plan)):
        parts = plan.micro_batches(update)
        assert len(parts) % multiple == 0
        assert sorted(np.concatenate(parts).tolist()) == sorted(plan.sentences(update).tolist())
        assert all(max(src[ids].sum(), tgt[ids].sum()) + len(ids) <= budget for ids in parts)
        assert [part.tolist() for band in plan.bands(update) for part in band] == [part.tolist() for part in parts]
        longest = [max(tgt[np.concatenate(band)].tolist()) for band in plan.bands(update)]
        assert longest == sorted(longest)  # bands are sorted by length


@pytest.mark.slow
@given(LENGTH_PAIRS, st.integers(1, 200), st.none() | st.integers(1, 200), st.integers(0, 5))
def test_plan_from_an_update_start(
    pairs: list[tuple[int, int]], batch_tokens: int, src_batch_tokens: int | None, skipped: int
) -> None:
    src, tgt = columns(pairs)
    options: dict[str, Any] = {"batch_tokens": batch_tokens, "src_batch_tokens": src_batch_tokens}
    options |= {"seed": 1, "epoch": 0}
    plan = plan_epoch(src, tgt, micro_batch_tokens=50, **options)
    skipped = min(skipped, len(plan))
    rest = plan_epoch(src, tgt, micro_batch_tokens=50, first_pair=int(plan.starts[skipped]), **options)
    assert rest.starts.tolist() == plan.starts[skipped:].tolist()
    assert rest.order.tolist() == plan.order.tolist()


def test_order_depends_only_on_seed_and_epoch() -> None:
    lengths = np.arange(1000, dtype=np.int32) % 50
    plan = {
        key: plan_epoch(lengths, lengths, batch_tokens=500, micro_batch_tokens=100, seed=key[0], epoch=key[1]).order
        for key in ((1, 0), (1, 1), (2, 0))
    }
    again = plan_epoch(lengths.copy(), lengths, batch_tokens=500, micro_batch_tokens=100, seed=1, epoch=0).order
    assert (again == plan[1, 0]).all()
    assert (plan[1, 0] != plan[1, 1]).any() and (plan[1, 0] != plan[2, 0]).any()


def test_order_is_stable_across_versions() -> None:
    # Runs must resume in the same order after an upgrade of nmt.
    lengths = np.ones(10, dtype=np.int32)
    plan = plan_epoch(lengths, lengths, batch_tokens=6, micro_batch_tokens=6, seed=1, epoch=0)
    assert plan.order.tolist() == [8, 4, 7, 0, 1, 2, 5, 9, 6, 3]
    assert plan.starts.tolist() == [0, 3, 6, 9, 10]


def test_oversized_pairs_are_alone() -> None:
    src, tgt = np.array([3, 500, 3]), np.array([3, 3, 500])
    plan = plan_epoch(src, tgt, batch_tokens=50, micro_batch_tokens=20, seed=1, epoch=0)
    assert sorted(sorted(ids.tolist()) for k in range(len(plan)) for ids in plan.micro_batches(k)) == [[0], [1], [2]]
    assert [ids.tolist() for ids in plan_by_length(src, tgt, micro_batch_tokens=20)] == [[0], [1], [2]]


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=80), st.integers(31, 100))
def test_plan_by_length(pairs: list[tuple[int, int]], budget: int) -> None:
    src, tgt = columns(pairs)
    plan = plan_by_length(src, tgt, micro_batch_tokens=budget)
    order = [int(i) for ids in plan for i in ids]
    assert sorted(order) == list(range(len(pairs)))
    assert [tgt[i] for i in order] == sorted(tgt)
    assert all(0 < max(src[ids].sum(), tgt[ids].sum()) + len(ids) <= budget for ids in plan)


def test_empty_plans() -> None:
    nothing = np.array([], dtype=np.int32)
    assert len(plan_epoch(nothing, nothing, batch_tokens=10, micro_batch_tokens=10, seed=1, epoch=0)) == 0
    assert plan_by_length(nothing, nothing, micro_batch_tokens=10) == []


def test_time_to_plan_a_large_corpus() -> None:
    lengths = np.random.default_rng(0).integers(1, 60, 300_000).astype(np.int32)
    started = time.process_time()
    plan = plan_epoch(lengths, lengths, batch_tokens=25_000, micro_batch_tokens=4_096, seed=1, epoch=0)
    assert time.process_time() - started < 2.0  # About 0.05 s; WMT14 English-French has 120 times as many pairs.
    started = time.process_time()
    for k in range(20):
        plan.micro_batches(k)
    assert time.process_time() - started < 1.0  # About 1 ms each.


# --- Several corpora ---

SIZES = st.lists(st.integers(0, 25), min_size=1, max_size=5).filter(any)
WEIGHTS = st.lists(st.floats(1e-3, 1e3), min_size=5, max_size=5)
TEMPERATURES = st.floats(1.0, 100.0)


@pytest.mark.parametrize(
    ("sizes", "weights", "temperature", "expected"),
    [
        ((900, 100), (1, 1), 1.0, (900, 100)),
        ((900, 100), (0.1, 0.1), 1.0, (900, 100)),
        ((900, 100), (1, 1), 2.0, (750, 250)),  # ratio 30:10
        ((900, 100), (1, 3), 2.0, (500, 500)),
        ((600, 200), (1, 3), 1.0, (400, 400)),
        ((0, 10, 30), (5, 3, 1), 1.0, (0, 20, 20)),
        ((7, 7, 6), (1, 1, 2), 1.0, (6, 5, 9)),  # rounded from 5.38, 5.38 and 9.23
        ((3, 97), (1e-9, 1), 1.0, (1, 99)),
        ((1, 1, 98), (1e-9, 1e-9, 1), 1.0, (1, 1, 98)),
        ((5,), (17.0,), 3.0, (5,)),
        ((40_000_000, 4_000), (1, 1), 2.0, (39_607_921, 396_079)),  # ratio 100:1
    ],
)
def test_mixture_examples(
    sizes: tuple[int, ...], weights: tuple[float, ...], temperature: float, expected: tuple[int, ...]
) -> None:
    mixture = Mixture.from_weights(sizes, weights, temperature)
    assert mixture == Mixture(sizes, expected)
    assert mixture.contains_each_pair_once == (expected == sizes)


@given(SIZES, WEIGHTS, TEMPERATURES)
def test_mixture_rounds_quotas(sizes: list[int], weights: list[float], temperature: float) -> None:
    mixture = Mixture.from_weights(sizes, weights[: len(sizes)], temperature)
    assert sum(mixture.pairs_per_epoch) == sum(sizes)
    assert [num_shown > 0 for num_shown in mixture.pairs_per_epoch] == [size > 0 for size in sizes]
    wanted = np.array(weights[: len(sizes)]) * np.array(sizes, dtype=float) ** (1 / temperature)
    quotas = sum(sizes) * wanted / wanted.sum()
    # A non-empty corpus with a quota below 1 may get its only pair from a larger corpus.
    num_raised = sum(quota < 1 for quota, size in zip(quotas, sizes, strict=True) if size)
    for num_shown, quota in zip(mixture.pairs_per_epoch, quotas, strict=True):
        assert quota - 1 - num_raised - 1e-6 < num_shown < quota + 1 + 1e-6


@given(SIZES, st.floats(1e-9, 1e9))
@pytest.mark.slow
def test_equal_weights_show_each_pair_once(sizes: list[int], weight: float) -> None:
    assert Mixture.from_weights(sizes, [weight] * len(sizes), 1.0).contains_each_pair_once


@pytest.mark.slow
@given(SIZES, WEIGHTS, TEMPERATURES, st.integers(-3, 3))
def test_mixture_samples_permutations(sizes: list[int], weights: list[float], temperature: float, seed: int) -> None:
    mixture = Mixture.from_weights(sizes, weights[: len(sizes)], temperature)
    ends = np.cumsum(sizes)
    nonempty = [corpus for corpus, size in enumerate(sizes) if size]
    shown: dict[int, list[int]] = {corpus: [] for corpus in nonempty}  # the pairs of all epochs
    for epoch in range(6):
        sampled = mixture.sample_epoch(seed, epoch)
        assert sampled.tolist() == mixture.sample_epoch(seed, epoch).tolist()
        corpora = np.searchsorted(ends, sampled, side="right")
        assert Counter(corpora.tolist()) == {corpus: mixture.pairs_per_epoch[corpus] for corpus in nonempty}
        for corpus in nonempty:
            shown[corpus] += sampled[corpora == corpus].tolist()
            start = ends[corpus] - sizes[corpus]
            times_shown = np.bincount(np.array(shown[corpus]) - start, minlength=sizes[corpus])
            assert np.ptp(times_shown) <= 1
    for corpus in nonempty:
        size = sizes[corpus]
        for start in range(0, len(shown[corpus]) - size + 1, size):
            permutation = shown[corpus][start : start + size]
            assert len(set(permutation)) == size


def test_mixture_permutations_differ() -> None:
    mixture = Mixture((40, 40, 40), (80, 20, 20))
    first, second = np.split(mixture.sample_epoch(1, 0)[:80], 2)
    starts = {
        "first": first.tolist()[:20],
        "second": second.tolist()[:20],
        "other corpus": (mixture.sample_epoch(1, 0)[80:100] - 40).tolist(),
        "other seed": mixture.sample_epoch(2, 0)[:20].tolist(),
        "negative seed": mixture.sample_epoch(-1, 0)[:20].tolist(),
        "shuffling": np.random.Generator(np.random.PCG64([1, 0])).permutation(40).tolist()[:20],
        "in order": list(range(20)),
    }
    assert len({tuple(start) for start in starts.values()}) == len(starts)


def test_plan_of_a_mixture() -> None:
    src = np.random.default_rng(0).integers(0, 20, 1000).astype(np.int32)
    tgt = src[::-1]
    mixture = Mixture((900, 100), (500, 500))
    options: dict[str, Any] = {"batch_tokens": 500, "micro_batch_tokens": 100, "seed": 1, "mixture": mixture}
    for epoch in (0, 3):
        plan = plan_epoch(src, tgt, epoch=epoch, **options)
        assert sorted(plan.order.tolist()) == sorted(mixture.sample_epoch(1, epoch).tolist())
        assert plan.starts[0] == 0 and plan.starts[-1] == 1000
        fractions = [(plan.sentences(k) >= 900).mean() for k in range(len(plan))]  # of the second corpus
        assert min(fractions[:-1]) > 0 and max(fractions[:-1]) < 1  # corpora are shuffled together
        for k in range(len(plan)):
            micro_batches = plan.micro_batches(k)
            assert sorted(np.concatenate(micro_batches).tolist()) == sorted(plan.sentences(k).tolist())
            assert all(max(src[ids].sum(), tgt[ids].sum()) + len(ids) <= 100 for ids in micro_batches)
        again = plan_epoch(src, tgt, epoch=epoch, **options)
        assert again.order.tobytes() == plan.order.tobytes()
    assert plan_epoch(src, tgt, epoch=1, **options).order.tolist() != plan.order.tolist()


@given(LENGTH_PAIRS, st.integers(0, 80), st.integers(0, 3))
@pytest.mark.slow
def test_trivial_mixture_changes_nothing(pairs: list[tuple[int, int]], first: int, epoch: int) -> None:
    src, tgt = columns(pairs)
    sizes = (min(first, len(pairs)), len(pairs) - min(first, len(pairs)))
    options: dict[str, Any] = {"batch_tokens": 60, "micro_batch_tokens": 31, "seed": 1, "epoch": epoch}
    without, plain = plan_epoch(src, tgt, **options), plan_epoch(src, tgt, mixture=Mixture(sizes, sizes), **options)
    assert plain.order.tobytes() == without.order.tobytes() and plain.order.dtype == without.order.dtype
    assert plain.starts.tobytes() == without.starts.tobytes()


def test_mixture_order_is_stable_across_versions() -> None:
    lengths = np.ones(10, dtype=np.int32)
    mixture = Mixture((7, 3), (4, 6))
    options: dict[str, Any] = {"batch_tokens": 6, "micro_batch_tokens": 6, "seed": 1, "mixture": mixture}
    assert mixture.sample_epoch(1, 0).tolist() == [5, 3, 4, 6, 7, 9, 8, 7, 8, 9]
    assert plan_epoch(lengths, lengths, epoch=0, **options).order.tolist() == [8, 7, 7, 5, 3, 4, 9, 9, 8, 6]
    assert plan_epoch(lengths, lengths, epoch=1, **options).order.tolist() == [7, 0, 7, 8, 2, 1, 1, 9, 8, 9]


def test_time_to_sample_a_large_mixture() -> None:
    mixture = Mixture.from_weights([1_000_000, 2_000], [1, 1], 5.0)
    started = time.process_time()
    mixture.sample_epoch(1, 5)
    assert time.process_time() - started < 2.0  # About 0.02 s.


def test_memory_to_plan_a_pair() -> None:
    src, tgt = (np.random.default_rng(side).integers(1, 60, 100_000).astype(np.int32) for side in range(2))
    options: dict[str, Any] = {"batch_tokens": 25_000, "src_batch_tokens": 25_000, "micro_batch_tokens": 4_096}
    tracemalloc.start()
    plan_epoch(src, tgt, seed=1, epoch=2, **options)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    needed = 4 + 4 + 2 * 8  # bytes: the order, the lengths of one side in this order, the ends of both sides
    assert peak <= (needed + 2) * len(src)


def test_order_is_that_of_a_numpy_permutation() -> None:
    lengths = np.ones(1000, dtype=np.int32)
    plan = plan_epoch(lengths, lengths, batch_tokens=100, micro_batch_tokens=100, seed=1, epoch=2)
    shuffled = np.random.Generator(np.random.PCG64([1, 2])).permutation(np.arange(1000, dtype=np.int32))
    assert plan.order.dtype == np.int32
    assert plan.order.tolist() == shuffled.tolist()
