"""Waiting for other threads and processes."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until a condition is true; fails after `seconds`. The machine may be busy."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition is false after {seconds} seconds"
        time.sleep(0.01)
