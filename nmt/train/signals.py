"""Asking a training run to stop: the signal is noted, and the loop acts on it between two updates."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from nmt.recipe import OrderlyEnd

# Exit statuses by convention: 128 + signal number, and Slurm's early warning counts as a request to terminate.
EXIT_STATUS = {signal.SIGTERM: 143, signal.SIGUSR1: 143, signal.SIGINT: 130}


@dataclass
class StopRequest:
    """The exit status that a signal asked for, 0 as long as none came.

    status: of this process; agreed: of any process, as all of them know it
    """

    status: int = 0
    agreed: int = 0


class Stopped(OrderlyEnd):  # not an error: the run was asked to stop, and saved
    """Training stopped by a signal, after saving a checkpoint; `status` is what the process must exit with."""

    def __init__(self, status: int) -> None:
        super().__init__(f"stopped by a signal (exit status {status}); the same command goes on from here")
        self.status = status


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Note SIGTERM, SIGUSR1 and Ctrl-C for the length of a `with` block; a second Ctrl-C acts at once."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():  # Python delivers signals to the main thread only
        yield request
        return

    def note(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and request.status:
            raise KeyboardInterrupt
        request.status = EXIT_STATUS[signal.Signals(number)]

    before = {number: signal.signal(number, note) for number in EXIT_STATUS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
