"""Interruption of a block by the reader of its output."""

import os
import threading
import time

import pytest

from nmt.processes.interruption import ended_by_reader, interruptible


def test_a_reader_that_exits_ends_a_block_that_writes_nothing() -> None:
    reader, writer = os.pipe()
    started = time.monotonic()
    with pytest.raises(BrokenPipeError), interruptible(), ended_by_reader(writer):
        threading.Timer(0.05, os.close, [reader]).start()
        time.sleep(20.0)
    os.close(writer)
    assert time.monotonic() - started < 10.0


def test_a_block_that_ends_first_is_not_interrupted() -> None:
    reader, writer = os.pipe()
    with ended_by_reader(writer):
        os.write(writer, b"text")
    assert os.read(reader, 10) == b"text"
    os.close(reader)
    os.close(writer)
