"""Waiting for files of rank 0 on a slow file system."""

import hashlib
import threading
import time
from pathlib import Path

import pytest
import torch

from nmt.data import shared
from nmt.data.shared import _await_file
from nmt.processes.distributed import World


@pytest.fixture
def rank_1(monkeypatch: pytest.MonkeyPatch) -> World:
    """A rank to which rank 0 sends the digest of `new`."""
    digest = hashlib.sha256(b"new").hexdigest()
    monkeypatch.setattr(World, "broadcast_text", lambda self, text: digest)
    monkeypatch.setattr(shared, "_POLL_SECONDS", 0.01)
    return World(1, 2, torch.device("cpu"))


@pytest.mark.parametrize("before", [None, b"old"])
def test_a_file_that_appears_later_is_awaited(rank_1: World, tmp_path: Path, before: bytes | None) -> None:
    path = tmp_path / "data" / "file"
    if before is not None:
        path.parent.mkdir()
        path.write_bytes(before)

    def write() -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"new")

    writer = threading.Timer(0.2, write)
    writer.start()
    _await_file(path, rank_1)
    assert path.read_bytes() == b"new"
    writer.join()


def test_waiting_ends(rank_1: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "MAX_SECONDS", 0.05)
    began = time.monotonic()
    _await_file(tmp_path / "none", rank_1)
    assert time.monotonic() - began >= 0.05
