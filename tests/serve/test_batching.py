"""Dynamic batching: grouping, order, capacity, errors and closing."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from nmt.serve.batching import Batcher, BatchingOptions, QueueFullError


class FakeModel:
    """Doubles numbers, once `may_run` is set; 13 fails."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, list[int]]] = []
        self.may_run, self.has_started = threading.Event(), threading.Event()

    def __call__(self, group: str, items: list[int]) -> list[int]:
        self.has_started.set()
        assert self.may_run.wait(60)
        self.batches.append((group, items))
        if 13 in items:
            raise ValueError("13 is invalid")
        return [2 * item for item in items]


@pytest.fixture
def model() -> FakeModel:
    return FakeModel()


@pytest.fixture
def batcher(model: FakeModel) -> Iterator[Batcher]:
    batcher = Batcher(model, BatchingOptions(4, 10, max_delay=0.0))
    yield batcher
    model.may_run.set()
    batcher.close()


def block_worker(batcher: Batcher, model: FakeModel) -> list[Future[list[Any]]]:
    """Block the worker with one item; later items wait in the queue."""
    futures = batcher.submit("first", [0])
    assert model.has_started.wait(60)
    return futures


def results(futures: Sequence[Future[list[Any]]]) -> list[Any]:
    return [result for future in futures for result in future.result(20)]


@pytest.mark.parametrize(
    ("submissions", "batches"),
    [
        ([("a", [1]), ("b", [2]), ("a", [3, 4]), ("a", [5, 6])], [("a", [1, 3, 4]), ("b", [2]), ("a", [5, 6])]),
        (
            [("a", [1]), ("b", [2]), ("c", [3, 4]), ("d", [5, 6])],
            [("c", [3, 4]), ("a", [1]), ("d", [5, 6]), ("b", [2])],
        ),
    ],
    ids=["of_one_group", "of_the_largest_and_of_the_oldest_group"],
)
def test_batches_have_the_oldest_and_the_largest_group_in_turn(
    submissions: list[tuple[str, list[int]]], batches: list[Any], batcher: Batcher, model: FakeModel
) -> None:
    first = block_worker(batcher, model)
    submitted = [batcher.submit(group, items) for group, items in submissions]
    model.may_run.set()
    assert [results(futures) for futures in (first, *submitted)] == [[0], [2], [4], [6, 8], [10, 12]]
    assert model.batches == [("first", [0]), *batches]
    assert (batcher.num_batches, batcher.num_items, batcher.num_waiting) == (len(batches) + 1, 7, 0)


def test_large_submissions_are_split_and_results_keep_their_order(batcher: Batcher, model: FakeModel) -> None:
    model.may_run.set()
    assert results(batcher.submit("a", range(10))) == [2 * item for item in range(10)]
    assert max(len(items) for _, items in model.batches) == 4


def test_items_that_are_not_batchable_can_be_canceled_one_by_one(batcher: Batcher, model: FakeModel) -> None:
    block_worker(batcher, model)
    first, second, third = batcher.submit("a", [1, 2, 3], batchable=False)
    second.cancel()
    model.may_run.set()
    assert results([first, third]) == [2, 6]
    assert model.batches == [("first", [0]), ("a", [1]), ("a", [3])]


def test_a_full_queue_refuses_items_and_canceling_frees_capacity(batcher: Batcher, model: FakeModel) -> None:
    block_worker(batcher, model)
    waiting = batcher.submit("a", range(8))
    with pytest.raises(QueueFullError):
        batcher.submit("a", [1, 2, 3])
    assert batcher.num_waiting == 8
    waiting[0].cancel()
    assert batcher.num_waiting == 4
    more = batcher.submit("a", [1, 2, 3])
    model.may_run.set()
    assert results(more) == [2, 4, 6]
    assert [items for _, items in model.batches] == [[0], [4, 5, 6, 7], [1, 2, 3]]


def test_clients_take_turns_and_share_the_capacity(batcher: Batcher, model: FakeModel) -> None:
    block_worker(batcher, model)
    first = batcher.submit("a", range(1, 7), "greedy")
    with pytest.raises(QueueFullError):
        batcher.submit("a", [7, 8], "greedy")  # 8 of 10
    others = [batcher.submit("a", [item], client) for item, client in ((10, "b"), (11, "c"), (12, "b"))]
    model.may_run.set()
    assert [results(futures) for futures in (first, *others)] == [[2, 4, 6, 8, 10, 12], [20], [22], [24]]
    assert [items for _, items in model.batches[1:]] == [[10, 11, 12], [1, 2, 3, 4], [5, 6]]


def test_an_error_reaches_only_the_caller_that_causes_it(batcher: Batcher, model: FakeModel) -> None:
    block_worker(batcher, model)
    good, bad, other = (batcher.submit("a", [item]) for item in (1, 13, 2))
    model.may_run.set()
    assert results(good) + results(other) == [2, 4]
    with pytest.raises(ValueError, match="13 is invalid"):
        results(bad)


@pytest.mark.parametrize(("max_delay", "submitted", "batches"), [(1_000.0, [1, 2], [[1, 2]]), (0.01, [3], [[3]])])
def test_a_batch_starts_when_full_or_after_max_delay(
    model: FakeModel, max_delay: float, submitted: list[int], batches: list[list[int]]
) -> None:
    model.may_run.set()
    batcher = Batcher(model, BatchingOptions(2, 10, max_delay))
    futures = [future for item in submitted for future in batcher.submit("a", [item])]
    assert results(futures) == [2 * item for item in submitted]
    assert [items for _, items in model.batches] == batches
    batcher.close()


def test_closing_processes_the_queue_without_delay(model: FakeModel) -> None:
    model.may_run.set()
    batcher = Batcher(model, BatchingOptions(4, 10, max_delay=1_000.0))
    futures = batcher.submit("a", [1, 2])
    assert batcher.close()
    assert results(futures) == [2, 4]
    with pytest.raises(QueueFullError):
        batcher.submit("a", [1])


def test_closing_waits_for_a_running_batch_until_the_timeout(model: FakeModel) -> None:
    batcher = Batcher(model, BatchingOptions(1, 10))
    (future,) = batcher.submit("a", [1])
    assert not batcher.close(timeout=0.01)
    model.may_run.set()
    assert batcher.close()
    assert results([future]) == [2]


def test_idle_threads_share_the_queue_and_run_at_the_same_time(model: FakeModel) -> None:
    both_started = threading.Barrier(3)

    def wait_for_the_other_thread(group: str, items: list[int]) -> list[int]:
        both_started.wait(60)
        return model(group, items)

    batcher = Batcher(wait_for_the_other_thread, BatchingOptions(4, 10, max_delay=0.05), num_threads=2)
    with batcher._changed:  # the threads see no incomplete queue, even if this thread is slow
        futures = [batcher.submit("a", [item]) for item in range(4)]
    both_started.wait(60)
    model.may_run.set()
    assert [results(own) for own in futures] == [[0], [2], [4], [6]]
    assert sorted(model.batches) == [("a", [0, 1]), ("a", [2, 3])]
    batcher.close()
