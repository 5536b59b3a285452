"""Out-of-memory errors, and unused memory of the device."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch

from nmt.errors import UserError

_AMOUNT = re.compile(r" to allocate [\d.,]+ \w+")
_MESSAGES = ("DefaultCPUAllocator: ", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


capture_lock = Lock()
"""Held during the capture of a CUDA graph: another capture, or freeing of unused memory, would make it fail."""


def free_unused_memory(device: torch.device) -> None:
    """Return memory that torch keeps for later allocations to the device."""
    if device.type == "cuda":
        with capture_lock:
            torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether this is an out-of-memory error; torch may raise a plain RuntimeError, and always does on a CPU."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _MESSAGES)


@contextmanager
def explained_out_of_memory(device: torch.device) -> Iterator[None]:
    """Convert out-of-memory errors to UserError."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        amount = _AMOUNT.search(str(error))
        raise UserError(
            f"{device} does not have enough memory{amount[0] if amount else ''}; use smaller batches "
            "(train.micro_batch_tokens, decode.batch_tokens) or another device, or stop other programs"
        ) from error
