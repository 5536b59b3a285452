"""Prepared data that rank 0 has written and all ranks read, perhaps on other machines."""

from __future__ import annotations

import time
from pathlib import Path

from nmt.data.prepare import Prepared, load_prepared
from nmt.data.store import REPORT_FILE
from nmt.logs import warn
from nmt.processes.distributed import World
from nmt.storage.sealed import file_sha256

MAX_SECONDS = 90.0
"""Network file systems may cache the absence of a file for about a minute."""
_POLL_SECONDS = 0.5


def load_shared(directory: Path, world: World) -> Prepared:
    """Load and verify prepared data; raises UserError if it is missing or damaged.

    Data that still differs from that of rank 0 is not detected here, see `TrainingData.from_prepared`.
    """
    _await_file(directory / REPORT_FILE, world)
    prepared = load_prepared(directory)
    verify_data(prepared, world)
    return prepared


def verify_data(prepared: Prepared, world: World) -> None:
    """Verify the checksums of the prepared data, on one rank per machine; raises UserError for a damaged file."""
    if world.is_main and not prepared.has_checksums:
        warn(f"{prepared.directory} was prepared by an earlier version without checksums; only file sizes are verified")
    if world.is_local_main:
        prepared.verify()
    world.barrier_without_timeout()


def _await_file(path: Path, world: World) -> None:
    """Wait until this rank sees the content that rank 0 sees, at most `MAX_SECONDS`."""
    digest = world.broadcast_text(_digest(path) if world.is_main else "")
    deadline = time.monotonic() + MAX_SECONDS
    while _digest(path) != digest and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        if path.parent.is_dir():
            list(path.parent.iterdir())  # refreshes the directory cache of a network file system


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file, "" if it cannot be read."""
    try:
        return file_sha256(path)
    except OSError:
        return ""
