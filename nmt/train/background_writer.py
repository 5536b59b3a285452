"""Writing checkpoints while training goes on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType


class BackgroundWriter:
    """Does pieces of writing in a thread, one after the other; at most one is under way.

    What fails there is raised here, by the next call. Leaving the `with` block waits for what is under way.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="writer")
        self._pending: Future[None] | None = None

    def submit(self, write: Callable[[], None]) -> None:
        """Begin `write` as soon as the one before is finished; raises what that one raised."""
        self.wait()
        self._pending = self._thread.submit(write)

    def check(self) -> None:
        """Raise what the writing under way has raised, if it has; does not wait."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Wait until nothing is under way; raises what that raised."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def __enter__(self) -> BackgroundWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=True)
        if error is None:
            self.wait()
