"""Dynamic batching: items of many callers are worked on together, by one thread, in the order of their arrival."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import monotonic
from typing import Any


class QueueFullError(Exception):
    """The queue cannot hold further items now."""


@dataclass(eq=False)
class _Job:
    """Items of one caller that are worked on in one batch."""

    group: Hashable
    items: Sequence[Any]
    arrived: float = field(default_factory=monotonic)
    future: Future[list[Any]] = field(default_factory=Future)


class Batcher:
    """A bounded queue, and the thread that works on what waits in it.

    A batch holds items of one group. It is begun when it is full, or when the first of its items has waited for
    `max_delay` seconds. Where a batch fails, each of its jobs is tried alone, and its error goes to its own caller.
    Canceling a future removes its items from the queue.

    num_batches, num_items: worked on so far
    """

    def __init__(
        self, work: Callable[[Any, list[Any]], Sequence[Any]], *, most_items: int, most_waiting: int, max_delay: float
    ) -> None:
        """work: gives one result for each item; most_items: of a batch; most_waiting: items in the queue."""
        self.num_batches = self.num_items = 0
        self._work, self._max_delay = work, max_delay
        self._most_items, self._most_waiting = most_items, most_waiting
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def num_waiting(self) -> int:
        """Items in the queue."""
        return sum(len(job.items) for job in list(self._jobs))

    def submit(self, group: Hashable, items: Sequence[Any]) -> list[Future[list[Any]]]:
        """Queue items, and return futures of their results, in order; QueueFullError where they do not all fit."""
        parts = [items[start : start + self._most_items] for start in range(0, len(items), self._most_items)]
        jobs = [_Job(group, part) for part in parts]
        with self._changed:
            if self.num_waiting + len(items) > self._most_waiting or self._is_closed:
                raise QueueFullError
            self._jobs.extend(jobs)
            self._changed.notify()
        for job in jobs:
            job.future.add_done_callback(lambda _, job=job: self._drop(job))  # type: ignore[misc]
        return [job.future for job in jobs]

    def close(self) -> None:
        """Accept nothing more, finish what is queued, and end the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _drop(self, job: _Job) -> None:
        """Remove a job if it was canceled while it waited."""
        if job.future.cancelled():
            with self._changed:
                if job in self._jobs:
                    self._jobs.remove(job)

    def _run(self) -> None:
        while batch := self._take():
            running = [job for job in batch if job.future.set_running_or_notify_cancel()]
            if running:
                self._answer(running)

    def _take(self) -> list[_Job]:
        """The next batch, as soon as it is full or has waited long enough; an empty one after the end."""
        with self._changed:
            while not self._jobs or not self._is_due():
                if self._is_closed and not self._jobs:
                    return []
                self._changed.wait(self._jobs[0].arrived + self._max_delay - monotonic() if self._jobs else None)
            batch: list[_Job] = []
            count, group = 0, self._jobs[0].group
            for job in [job for job in self._jobs if job.group == group]:
                if count + len(job.items) > self._most_items:
                    break
                count += len(job.items)
                batch.append(job)
                self._jobs.remove(job)
            return batch

    def _is_due(self) -> bool:
        waited = monotonic() - self._jobs[0].arrived
        return self._is_closed or waited >= self._max_delay or self.num_waiting >= self._most_items

    def _answer(self, jobs: list[_Job]) -> None:
        """Give each job its results, or what went wrong."""
        try:
            results = iter(self._work(jobs[0].group, [item for job in jobs for item in job.items]))
        except Exception as error:  # of whatever kind, it must reach the caller, and not end the thread
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
            else:
                for job in jobs:
                    self._answer([job])
            return
        self.num_batches += 1
        self.num_items += sum(len(job.items) for job in jobs)
        for job in jobs:
            job.future.set_result([next(results) for _ in job.items])
