"""Delivery of results from worker threads to an event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from threading import Lock
from typing import Any


class Delivery:
    """Notifies an event loop when futures of worker threads are done. One wake-up covers all futures done by then.

    `asyncio.wrap_future` wakes the loop for each future with a system call, which also interrupts the worker.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self._lock = loop, Lock()
        self._done: list[asyncio.Future[None]] = []

    def watch(self, future: Future[Any]) -> asyncio.Future[None]:
        """Return a future of the loop that is done when `future` is, even if `future` fails or is canceled."""
        signal: asyncio.Future[None] = self.loop.create_future()
        future.add_done_callback(lambda _: self._put(signal))
        return signal

    def _put(self, signal: asyncio.Future[None]) -> None:
        with self._lock:
            is_first = not self._done
            self._done.append(signal)
        if is_first and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            done, self._done = self._done, []
        for signal in done:
            if not signal.done():
                signal.set_result(None)
