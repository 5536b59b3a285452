"""What ends a command at once: Ctrl-C, SIGTERM, and a reader of its output that has gone."""

from __future__ import annotations

import errno
import os
import select
import signal
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class Interrupted(BaseException):
    """A signal ended the work; `status` is what the process must exit with, and the message says how to continue."""

    def __init__(self, message: str = "interrupted", status: int = 130) -> None:
        super().__init__(message)
        self.status = status


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end a `with` block with Interrupted."""
    is_main = threading.current_thread() is threading.main_thread()  # Python delivers signals to the main thread only

    def interrupt(number: int, _frame: FrameType | None) -> NoReturn:
        raise Interrupted(status=128 + number)

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM) if is_main}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ended_by_reader(descriptor: int) -> Iterator[None]:
    """Raise BrokenPipeError in a `with` block as soon as nobody reads from a pipe any more, also between two writes.

    A thread waits for that, and interrupts the main thread as Ctrl-C does. Nothing happens for what is no pipe.
    """
    mode = os.fstat(descriptor).st_mode
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        yield
        return
    has_gone = threading.Event()
    reading, writing = os.pipe()  # closed at the end of the block, which ends the thread

    def watch() -> None:
        poll = select.poll()
        poll.register(descriptor, 0)  # errors alone, which come when there is no reader
        poll.register(reading, select.POLLIN)
        if descriptor in dict(poll.poll()):
            has_gone.set()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    is_done = False
    try:
        try:
            yield
            is_done = True
        finally:
            os.close(writing)
            watching.join()
            os.close(reading)
    except (KeyboardInterrupt, Interrupted) as error:
        if not has_gone.is_set():
            raise
        if not is_done:  # else it went when it had read all
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from error
