"""Dynamic batching: worker threads process queued items of many callers in batches."""

from __future__ import annotations

import math
import threading
from bisect import insort
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from time import monotonic
from typing import Any

_CLIENT_FRACTION = 0.75  # of the queue, for several requests of a client; the rest is for other clients


class QueueFullError(Exception):
    """The items exceed the free capacity of the queue."""


@dataclass(frozen=True)
class BatchingOptions:
    """Options of dynamic batching.

    batch_size: maximum number of items in a batch
    queue_size: maximum number of waiting items
    max_delay:  seconds that an incomplete batch waits for further items
    """

    batch_size: int = 64
    queue_size: int = 4_096
    max_delay: float = 0.005


@dataclass(eq=False)
class _Job:
    """Items of one caller that are processed in the same batch.

    batchable:  whether other jobs of the group may be in its batch
    finish_tag: the queue is sorted by it (self-clocked fair queueing, Golestani 1994): number of items, plus the later
                of the virtual time and the finish tag of the client's previous job
    """

    group: Hashable
    items: Sequence[Any]
    client: Hashable
    batchable: bool
    finish_tag: int
    submitted_at: float = field(default_factory=monotonic)
    future: Future[list[Any]] = field(default_factory=Future)


class Batcher:
    """A bounded queue and its worker threads.

    Clients take turns. All items of a batch have the same group: alternately that of the first item and the largest
    group. A batch starts when `batch_size` items wait, over all groups, or when the first has waited for `max_delay`.
    The waiting items are distributed among the idle threads. If a batch fails, each job is retried alone, so only the
    job that causes an error receives it. Canceling a future removes its items from the queue.

    batch_size:             maximum number of items in a batch
    num_waiting:            number of items in the queue
    num_batches, num_items: processed so far
    """

    def __init__(
        self, process: Callable[[Any, list[Any]], Sequence[Any]], options: BatchingOptions, num_threads: int = 1
    ) -> None:
        """Start the threads. process(group, items) returns one result per item; the threads call it concurrently."""
        self.num_waiting = self.num_batches = self.num_items = 0
        self.batch_size = options.batch_size
        self._process = process
        self._options = options
        self._jobs: list[_Job] = []  # the queue
        self._virtual_time = 0  # latest finish tag of the jobs that have left the queue
        self._changed = threading.Condition()
        self._is_closed = self._takes_first = False
        self._num_idle = num_threads
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(num_threads)]
        for thread in self._threads:
            thread.start()

    def submit(
        self, group: Hashable, items: Sequence[Any], client: Hashable = None, *, batchable: bool = True
    ) -> list[Future[list[Any]]]:
        """Queue items and return futures of their results, in order. If it raises QueueFullError, it queues none.

        client:    if it has waiting items, all its items may fill at most 75% of the queue; None has no such limit
        batchable: must be equal for all items of a group; False for expensive items: each is a batch with its own
                   future, so the waiting ones can be canceled
        """
        jobs: list[_Job] = []
        with self._changed:
            if self._is_closed or not self._has_capacity(client, len(items)):
                raise QueueFullError
            finish_tag = max([self._virtual_time, *(job.finish_tag for job in self._jobs if job.client == client)])
            size = self.batch_size if batchable else 1
            for start in range(0, len(items), size):
                part = items[start : start + size]
                finish_tag += len(part)
                jobs.append(_Job(group, part, client, batchable, finish_tag))
            was_empty = not self._jobs
            for job in jobs:
                insort(self._jobs, job, key=attrgetter("finish_tag"))
            self.num_waiting += len(items)
            # A thread that waits for a batch to fill only needs to know when it is full.
            if was_empty or self.num_waiting >= self.batch_size:
                self._changed.notify()
        for job in jobs:
            job.future.add_done_callback(partial(self._remove_if_canceled, job))
        return [job.future for job in jobs]

    def close(self, timeout: float | None = None) -> bool:
        """Accept no more items, process the queued ones, and join the threads; return whether they have ended.

        timeout: for each thread, in seconds
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout)
        return not any(thread.is_alive() for thread in self._threads)

    def _has_capacity(self, client: Hashable, num_items: int) -> bool:
        """Return whether further items of a client fit into the queue."""
        capacity = self._options.queue_size
        num_of_client = sum(len(job.items) for job in self._jobs if job.client == client)
        if num_of_client and client is not None and num_of_client + num_items > _CLIENT_FRACTION * capacity:
            return False
        return self.num_waiting + num_items <= capacity

    def _remove_if_canceled(self, job: _Job, future: Future[list[Any]]) -> None:
        if future.cancelled():
            with self._changed:
                if job in self._jobs:
                    self._remove(job)

    def _remove(self, job: _Job) -> None:
        self._jobs.remove(job)
        self.num_waiting -= len(job.items)

    def _run(self) -> None:
        while batch := self._next_batch():
            running = [job for job in batch if job.future.set_running_or_notify_cancel()]
            if running:
                self._process_jobs(running)
            with self._changed:
                self._num_idle += 1

    def _next_batch(self) -> list[_Job]:
        """Wait for a batch and remove it from the queue. Return an empty one after `close`."""
        with self._changed:
            while not self._is_ready():
                if self._is_closed:
                    return []
                deadline = self._jobs[0].submitted_at + self._options.max_delay if self._jobs else None
                self._changed.wait(None if deadline is None else deadline - monotonic())
            batch = self._take_batch()
            self._num_idle -= 1
            if self._jobs:
                self._changed.notify()  # another thread
            return batch

    def _take_batch(self) -> list[_Job]:
        """Remove a batch from the queue; the waiting items are distributed among the idle threads."""
        max_items = min(math.ceil(self.num_waiting / self._num_idle), self.batch_size)
        group = self._choose_group()
        batch: list[_Job] = []
        num_items = 0
        for job in [job for job in self._jobs if job.group == group]:
            if batch and (not job.batchable or num_items + len(job.items) > max_items):
                break
            batch.append(job)
            num_items += len(job.items)
            self._virtual_time = max(self._virtual_time, job.finish_tag)
            self._remove(job)
        return batch

    def _choose_group(self) -> Hashable:
        """Return the group of the first job and the largest group in turn: batches are large, and no job starves."""
        self._takes_first = not self._takes_first
        if self._takes_first:
            return self._jobs[0].group
        sizes: Counter[Hashable] = Counter()
        for job in self._jobs:
            sizes[job.group] += len(job.items)
        return sizes.most_common(1)[0][0]

    def _is_ready(self) -> bool:
        if not self._jobs:
            return False
        has_waited = monotonic() - self._jobs[0].submitted_at >= self._options.max_delay
        return self._is_closed or has_waited or self.num_waiting >= self.batch_size

    def _process_jobs(self, jobs: list[_Job]) -> None:
        """Set the results or the exception of each job's future."""
        try:
            results = iter(self._process(jobs[0].group, [item for job in jobs for item in job.items]))
        except Exception as error:  # any exception goes to the caller; the worker thread must survive
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
            else:
                for job in jobs:
                    self._process_jobs([job])
            return
        with self._changed:
            self.num_batches += 1
            self.num_items += sum(len(job.items) for job in jobs)
        for job in jobs:
            job.future.set_result([next(results) for _ in job.items])
