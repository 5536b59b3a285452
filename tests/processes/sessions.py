"""Processes of a POSIX session."""

import os
import signal
import time
from pathlib import Path

import pytest


def assert_session_ends(session: int) -> None:
    """Wait up to 60 seconds until no process of the session runs. Without /proc, check nothing."""
    if not Path("/proc").is_dir():
        return
    for _ in range(600):
        if not any(session_of(path) == session for path in Path("/proc").glob("[0-9]*/stat")):
            return
        time.sleep(0.1)
    os.killpg(session, signal.SIGKILL)
    pytest.fail("processes of the session outlived the killed one")


def session_of(stat: Path) -> int:
    """Return the session id in /proc/PID/stat; -1 if the process has ended."""
    try:
        return int(stat.read_text().rpartition(")")[2].split()[3])
    except OSError:
        return -1
