"""Memory of a device: what a computation needs, and what this process can still allocate."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path

import torch

from nmt.processes.environment import local_world_size
from nmt.processes.host_memory import free_host_memory, resident_memory

_POLL_SECONDS = 0.001


def peak_memory(run: Callable[[], None], device: torch.device) -> int:
    """Return the peak memory of `run()` in bytes, beyond the memory in use before.

    On CUDA, memory that torch allocates on `device`. On a CPU, growth of the resident set, polled by a thread every
    millisecond; raises OSError without /proc.
    """
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        return torch.cuda.max_memory_allocated(device) - before
    _release_freed_memory()
    before = peak = resident_memory()
    done = threading.Event()

    def poll() -> None:
        nonlocal peak
        while not done.wait(_POLL_SECONDS):
            peak = max(peak, resident_memory())

    thread = threading.Thread(target=poll, name="memory", daemon=True)
    thread.start()
    try:
        run()
    finally:
        done.set()
        thread.join()
    return peak - before


def available_memory(device: torch.device, root: Path = Path("/")) -> int | None:
    """Return the bytes that this process can still allocate on `device`; None if unknown.

    On a CPU, the free memory is divided by the local world size, and freed memory that this process keeps counts as
    free. `root` holds proc and sys.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    _release_freed_memory()
    free_bytes = free_host_memory(root)
    return None if free_bytes is None else free_bytes // local_world_size()


def _release_freed_memory() -> None:
    """Make glibc return freed memory to the system, where measurements see it, instead of keeping it for reuse."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
