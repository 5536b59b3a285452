"""Interruption of a block by the reader of its output."""

import os
import signal
import threading
import time

import pytest

from nmt.errors import JobEnded
from nmt.processes import interruption
from nmt.processes.interruption import EXIT_STATUS, Interrupted, ended_by_reader, interruptible, uninterrupted


def test_a_reader_that_exits_ends_a_block_that_writes_nothing() -> None:
    reader, writer = os.pipe()
    started = time.monotonic()
    with pytest.raises(BrokenPipeError), interruptible(), ended_by_reader(writer):
        threading.Timer(0.05, os.close, [reader]).start()
        time.sleep(120.0)
    os.close(writer)
    assert time.monotonic() - started < 60.0


def test_a_job_that_a_reader_ends_is_not_interrupted() -> None:
    reader, writer = os.pipe()
    with pytest.raises(JobEnded), interruptible():
        try:
            with ended_by_reader(writer):
                os.close(reader)
                time.sleep(120.0)
        except BrokenPipeError as error:  # as `start_world` does
            raise JobEnded("") from error
    os.close(writer)


def test_a_block_that_ends_first_is_not_interrupted() -> None:
    reader, writer = os.pipe()
    with ended_by_reader(writer):
        os.write(writer, b"text")
    assert os.read(reader, 10) == b"text"
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize(("number", "status"), EXIT_STATUS.items())
def test_an_interruption_that_an_extension_module_converts_is_restored(number: signal.Signals, status: int) -> None:
    with pytest.raises(Interrupted) as raised, interruptible():
        try:
            signal.raise_signal(number)
        except BaseException as error:  # as pydantic does while it builds a serializer
            raise ValueError(f"Error building serializer: {error}") from None
    assert raised.value.status == status


@pytest.mark.parametrize(("seconds", "completed"), [(60.0, ["cleanup"]), (0.0, [])], ids=["copy", "later signal"])
def test_only_a_later_signal_interrupts_the_cleanup(
    seconds: float, completed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interruption, "COPY_SECONDS", seconds)
    done = []
    with pytest.raises(Interrupted), interruptible():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            done.append("cleanup")
    assert done == completed


def test_a_signal_interrupts_only_after_an_uninterrupted_block() -> None:
    done = []
    with pytest.raises(Interrupted) as raised, interruptible():
        with uninterrupted():
            signal.raise_signal(signal.SIGTERM)
            done.append("block")
        done.append("after")
    assert done == ["block"]
    assert raised.value.status == 143


def test_nohup_remains_in_effect() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with interruptible(), uninterrupted():
        signal.raise_signal(signal.SIGHUP)


def test_an_error_without_a_signal_is_not_an_interruption() -> None:
    with pytest.raises(ValueError, match="wrong"), interruptible():
        raise ValueError("wrong")
