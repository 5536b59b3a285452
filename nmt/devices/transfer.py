"""Copies between host and device with little synchronization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Values = Tensor | NDArray[Any] | Sequence[int] | Sequence[float]


def to_device(values: Values, device: torch.device) -> Tensor:
    """Copy a tensor, an array, or a sequence of integers (to int64) or floats (to float32) to `device`.

    Copies to a GPU use pinned memory and do not block the host.
    """
    if isinstance(values, np.ndarray):
        tensor = torch.from_numpy(values)
    elif isinstance(values, Tensor):
        tensor = values
    else:
        array = np.array(values, dtype=None if values else np.int64)
        tensor = torch.from_numpy(array.astype(np.float32) if array.dtype == np.float64 else array)
    if tensor.device == device:
        return tensor
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def pad_rows(rows: Sequence[Sequence[int]], padding: int, device: torch.device) -> Tensor:
    """Pad rows of integers at the end and copy them to `device`, (rows, longest) int64."""
    longest = max(map(len, rows))
    padded = [[*row, *[padding] * (longest - len(row))] for row in rows]
    return to_device(np.array(padded, dtype=np.int64), device)


def to_lists(*tensors: Tensor) -> list[Any]:
    """Return the contents of tensors on one device as nested lists, with one synchronization."""
    if tensors[0].is_cuda:
        device = tensors[0].device
        tensors = tuple(tensor.to("cpu", non_blocking=True) for tensor in tensors)
        torch.cuda.current_stream(device).synchronize()
    return [tensor.tolist() for tensor in tensors]
