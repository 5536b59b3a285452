"""What is worked on together, in which order, and what happens to what cannot be."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from nmt.serve.batching import Batcher, QueueFullError


class Work:
    """Doubles numbers as soon as it may; 13 fails."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, list[int]]] = []
        self.may_go, self.has_begun = threading.Event(), threading.Event()

    def __call__(self, group: str, items: list[int]) -> list[int]:
        self.has_begun.set()
        assert self.may_go.wait(20)
        self.batches.append((group, items))
        if 13 in items:
            raise ValueError("13 brings bad luck")
        return [2 * item for item in items]


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def batcher(work: Work) -> Iterator[Batcher]:
    batcher = Batcher(work, most_items=4, most_waiting=10, max_delay=0.0)
    yield batcher
    work.may_go.set()
    batcher.close()


def busy(batcher: Batcher, work: Work) -> list[Future[list[Any]]]:
    """Keep the worker with one item, so that what comes then waits in the queue."""
    futures = batcher.submit("first", [0])
    assert work.has_begun.wait(20)
    return futures


def results(futures: Sequence[Future[list[Any]]]) -> list[Any]:
    return [result for future in futures for result in future.result(20)]


def test_what_waits_is_worked_on_together_by_group_in_order(batcher: Batcher, work: Work) -> None:
    first = busy(batcher, work)
    own = [batcher.submit(group, items) for group, items in (("a", [1]), ("b", [2]), ("a", [3, 4]), ("a", [5, 6]))]
    work.may_go.set()
    assert [results(futures) for futures in (first, *own)] == [[0], [2], [4], [6, 8], [10, 12]]
    assert work.batches == [("first", [0]), ("a", [1, 3, 4]), ("b", [2]), ("a", [5, 6])]
    assert (batcher.num_batches, batcher.num_items, batcher.num_waiting) == (4, 7, 0)


def test_many_items_of_one_caller_are_split_and_come_back_in_order(batcher: Batcher, work: Work) -> None:
    work.may_go.set()
    assert results(batcher.submit("a", range(10))) == [2 * item for item in range(10)]
    assert max(len(items) for _, items in work.batches) == 4


def test_a_full_queue_takes_nothing_and_a_canceled_item_frees_its_place(batcher: Batcher, work: Work) -> None:
    busy(batcher, work)
    waiting = batcher.submit("a", range(8))
    with pytest.raises(QueueFullError):
        batcher.submit("a", [1, 2, 3])
    assert batcher.num_waiting == 8
    waiting[0].cancel()
    assert batcher.num_waiting == 4
    more = batcher.submit("a", [1, 2, 3])
    work.may_go.set()
    assert results(more) == [2, 4, 6]
    assert [items for _, items in work.batches] == [[0], [4, 5, 6, 7], [1, 2, 3]]


def test_an_error_reaches_its_own_caller_alone(batcher: Batcher, work: Work) -> None:
    busy(batcher, work)
    good, bad, other = (batcher.submit("a", [item]) for item in (1, 13, 2))
    work.may_go.set()
    assert results(good) + results(other) == [2, 4]
    with pytest.raises(ValueError, match="bad luck"):
        results(bad)


@pytest.mark.parametrize(("max_delay", "submitted", "batches"), [(1_000.0, [1, 2], [[1, 2]]), (0.01, [3], [[3]])])
def test_items_wait_for_others_but_not_for_ever(
    work: Work, max_delay: float, submitted: list[int], batches: list[list[int]]
) -> None:
    work.may_go.set()
    batcher = Batcher(work, most_items=2, most_waiting=10, max_delay=max_delay)
    futures = [future for item in submitted for future in batcher.submit("a", [item])]
    assert results(futures) == [2 * item for item in submitted]
    assert [items for _, items in work.batches] == batches
    batcher.close()


def test_closing_finishes_what_is_queued_without_a_delay(work: Work) -> None:
    work.may_go.set()
    batcher = Batcher(work, most_items=4, most_waiting=10, max_delay=1_000.0)
    futures = batcher.submit("a", [1, 2])
    batcher.close()
    assert results(futures) == [2, 4]
    with pytest.raises(QueueFullError):
        batcher.submit("a", [1])
