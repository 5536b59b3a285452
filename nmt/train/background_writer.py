"""Write checkpoints in the background during training."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class BackgroundWriter:
    """Runs one write at a time in a thread. Leaving the `with` block waits for it.

    If a write fails, the next call raises its exception.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="writer")
        self._pending: Future[None] | None = None

    def submit(self, write: Callable[[], None]) -> None:
        """Wait for the previous write, then start `write`."""
        self.wait()
        self._pending = self._thread.submit(write)

    def check(self) -> None:
        """Raise the exception of a write that has failed; do not wait."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Wait for the pending write."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def __enter__(self) -> BackgroundWriter:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._thread.shutdown(wait=True)
        if error is None:
            self.wait()
