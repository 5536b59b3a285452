"""Background writing: order, one write at a time, and exceptions."""

import threading

import pytest

from nmt.errors import UserError
from nmt.train.background_writer import BackgroundWriter


def fail() -> None:
    raise UserError("the disk is full")


def test_writes_are_ordered_and_finished() -> None:
    done: list[int] = []
    gate = threading.Event()

    def first() -> None:
        gate.wait(60)
        done.append(1)

    with BackgroundWriter() as writer:
        writer.submit(first)
        assert done == []  # submitting does not wait
        threading.Timer(0.1, gate.set).start()
        writer.submit(lambda: done.append(2))
        assert 1 in done  # but submitting the second write waits for the first
    assert done == [1, 2]


def test_the_next_call_raises_the_exception_of_a_write() -> None:
    with pytest.raises(UserError, match="disk is full"), BackgroundWriter() as writer:
        writer.submit(fail)
    writer = BackgroundWriter()
    writer.submit(fail)
    with pytest.raises(UserError, match="disk is full"):
        writer.wait()
    writer.wait()  # raised once


def test_an_error_in_the_block_is_not_hidden_by_one_of_the_writer() -> None:
    with pytest.raises(KeyError), BackgroundWriter() as writer:
        writer.submit(fail)
        raise KeyError("first")
