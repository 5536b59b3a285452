"""Interruption of a command: Ctrl-C, SIGTERM, SIGUSR1, SIGHUP, and a closed output pipe."""

from __future__ import annotations

import errno
import os
import select
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType

COPY_SECONDS = 1.0
"""Signals that follow the first one within this time are copies of it."""

EXIT_STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGUSR1: 143, signal.SIGHUP: 129}
"""Exit status of a command after each signal that ends it.

SIGUSR1 is Slurm's early warning of a SIGTERM; SIGHUP means a lost terminal.
"""


class SignalCopies:
    """Recognizes copies of a signal: `timeout` and a terminal with torchrun send each signal twice."""

    def __init__(self) -> None:
        self._first: float | None = None

    def is_copy(self) -> bool:
        """Return whether a signal that arrives now follows the first one within a second."""
        if self._first is None:
            self._first = monotonic()
            return False
        return monotonic() - self._first < COPY_SECONDS


@contextmanager
def handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle the signals of `EXIT_STATUS` in a `with` block of the main thread, which receives them.

    If SIGHUP is ignored, as under `nohup`, it stays ignored.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else set()
        before = {number: signal.signal(number, handler) for number in EXIT_STATUS.keys() - ignored}
    try:
        yield
    finally:
        for number, old_handler in before.items():
            signal.signal(number, old_handler)


class Interrupted(BaseException):
    """A signal ended the work; `status` is the exit status, and the message may say how to continue."""

    def __init__(self, message: str = "interrupted", status: int = 130) -> None:
        super().__init__(message)
        self.status = status


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise Interrupted in a `with` block on the signals of `EXIT_STATUS`.

    Copies of the first signal are ignored, because they would interrupt the cleanup.

    Extension modules, such as that of pydantic, may convert Interrupted to another error, which is converted back.
    """
    received: list[int] = []  # exit statuses of signals
    copies = SignalCopies()

    def interrupt(number: int, _frame: FrameType | None) -> None:
        if copies.is_copy():
            return
        received.append(EXIT_STATUS[signal.Signals(number)])
        raise Interrupted(status=received[-1])

    try:
        with handling(interrupt):
            yield
    except OSError:  # such as the BrokenPipeError of `ended_by_reader`
        raise
    except Exception as error:
        if received and not isinstance(error.__cause__, BrokenPipeError):  # JobEnded after a closed pipe
            raise Interrupted(status=received[-1]) from error
        raise


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer signals that arrive in a `with` block to its end, for steps that must not be left half done."""
    received: list[int] = []
    try:
        with handling(lambda number, _: received.append(number)):
            yield
    finally:
        for signal_number in received:
            signal.raise_signal(signal_number)


@contextmanager
def ended_by_reader(descriptor: int) -> Iterator[None]:
    """Raise BrokenPipeError in a `with` block as soon as the reader of a pipe closes it, even without a write.

    A thread polls the pipe and interrupts the main thread as Ctrl-C does. No effect on files and terminals.
    """
    mode = os.fstat(descriptor).st_mode
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        yield
        return
    is_closed = threading.Event()
    end_reader, end_writer = os.pipe()  # closing the writer ends the thread

    def watch() -> None:
        poll = select.poll()
        poll.register(descriptor, 0)  # errors only: POLLERR without a reader
        poll.register(end_reader, select.POLLIN)
        if descriptor in dict(poll.poll()):
            is_closed.set()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    is_done = False
    try:
        try:
            yield
            is_done = True
        finally:
            os.close(end_writer)
            thread.join()
            os.close(end_reader)
    except (KeyboardInterrupt, Interrupted) as error:
        if not is_closed.is_set():
            raise
        if not is_done:  # otherwise the reader has read everything
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from error
