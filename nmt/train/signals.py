"""Stop requests: a signal is recorded, and the training loop stops after the current update."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from nmt.errors import OrderlyEnd
from nmt.processes.interruption import EXIT_STATUS, SignalCopies, handling


@dataclass
class StopRequest:
    """Exit status requested by a signal; 0 without a signal.

    status: of this process; agreed: of any process, the same on all
    """

    status: int = 0
    agreed: int = 0


class Stopped(OrderlyEnd):
    """Training was stopped by a signal and saved; `status` is the exit status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"stopped by a signal (exit status {status}); rerun the same command to resume")
        self.status = status


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Record the signals of `EXIT_STATUS` in a `with` block.

    A Ctrl-C at least one second after the first signal raises KeyboardInterrupt.
    """
    request, copies = StopRequest(), SignalCopies()

    def record(number: int, _frame: FrameType | None) -> None:
        if copies.is_copy():
            return
        if number == signal.SIGINT and request.status:
            raise KeyboardInterrupt
        request.status = EXIT_STATUS[signal.Signals(number)]

    with handling(record):
        yield request
