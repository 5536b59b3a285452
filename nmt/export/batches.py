"""Batches of sentences for CTranslate2, a queue that posts only a few at a time, and a callback for tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from time import sleep
from typing import Any

from nmt.special_ids import EOS_ID

_MIN_POLL_SECONDS, _MAX_POLL_SECONDS = 0.0002, 0.001


@dataclass(eq=False)
class Batch:
    """Sentences that are decoded together: their indices, the call that posts them, and the results of that call.

    length_exponent: CTranslate2 divides log-probabilities by this power of the output length
    """

    indices: list[int]
    post: Callable[[], list[Any]]
    length_exponent: float
    results: list[Any] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        """Whether all results have been computed."""
        return bool(self.results) and all(result.done() for result in self.results)


class BatchQueue:
    """Batches from several threads; only a few are posted, because posted batches cannot be canceled.

    max_posted: maximum number of posted batches that are not done
    """

    def __init__(self, max_posted: int) -> None:
        self._max_posted = max_posted
        self._lock = Lock()
        self._waiting: deque[Batch] = deque()
        self._posted: list[Batch] = []

    def add(self, batches: Sequence[Batch]) -> None:
        """Append batches."""
        with self._lock:
            self._waiting.extend(batches)
        self._post()

    def wait(self, batch: Batch) -> None:
        """Wait for the results of a batch, and post others meanwhile."""
        poll(partial(self._advance, batch))

    def cancel(self, batches: Collection[Batch]) -> None:
        """Remove those batches that have not been posted."""
        with self._lock:
            self._waiting = deque(batch for batch in self._waiting if batch not in batches)

    def _post(self) -> None:
        with self._lock:
            self._posted = [batch for batch in self._posted if not batch.is_done]
            while self._waiting and len(self._posted) < self._max_posted:
                batch = self._waiting.popleft()
                try:
                    batch.results = batch.post()
                except (RuntimeError, ValueError) as error:  # for the thread that waits for this batch
                    failed: Future[Any] = Future()
                    failed.set_exception(error)
                    batch.results = [failed] * len(batch.indices)
                self._posted.append(batch)

    def _advance(self, batch: Batch) -> bool:
        """Post further batches, and return whether this one is done and no other thread reads it any longer."""
        self._post()
        with self._lock:
            return bool(batch.results) and batch not in self._posted


def split_batches(lengths: Sequence[tuple[int, int]], batch_tokens: int) -> Iterator[list[int]]:
    """Yield batches of indices of sentences with equal lengths, longest first.

    Each has at most `batch_tokens` source tokens, EOS included; a longer sentence is a batch of its own.

    lengths: of source and target (or its prefix), without EOS
    """
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i], reverse=True):
        longest = lengths[batch[0]] if batch else (0, 0)
        is_full = (len(batch) + 1) * (longest[0] + 1) > batch_tokens
        if batch and (is_full or lengths[i] != longest):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def poll(is_done: Callable[[], bool]) -> None:
    """Poll at short intervals, because Python handles signals only between bytecode instructions."""
    interval = _MIN_POLL_SECONDS
    while not is_done():
        sleep(interval)
        interval = min(2 * interval, _MAX_POLL_SECONDS)


class TokenReporter:
    """Calls a function with the token ids of an output so far.

    A thread of CTranslate2 keeps its callback for a moment after the results are available. If the callback then held
    the last reference to the translator, releasing it would make the thread join itself, and the process would abort.
    Therefore `release` drops the function, which may refer to the translator.
    """

    def __init__(self, on_tokens: Callable[[list[int]], None] | None, ids: Mapping[str, int]) -> None:
        self._on_tokens, self._ids = on_tokens, ids
        self._tokens: list[int] = []

    def report(self, step: Any) -> bool:
        """CTranslate2 calls this for each token, including those of the prefix; return whether to stop the search."""
        on_tokens = self._on_tokens
        if on_tokens is not None and step.token_id != EOS_ID:
            self._tokens.append(self._ids[step.token])
            on_tokens(self._tokens)
        return on_tokens is None

    def release(self) -> None:
        """Drop the function, and stop a search that is still running."""
        self._on_tokens = None
