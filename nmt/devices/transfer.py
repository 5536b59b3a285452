"""Copies between host and device for which the host waits as little as possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Values = Tensor | NDArray[Any] | Sequence[int] | Sequence[float]


def to_device(values: Values, device: torch.device) -> Tensor:
    """A tensor on the host, a numpy array, or a sequence of integers or of floats, as a tensor on `device`.

    Sequences become int64 or float32. The copy to a GPU does not block the host: it starts from pinned memory.
    """
    if isinstance(values, np.ndarray):
        tensor = torch.from_numpy(values)
    elif isinstance(values, Tensor):
        tensor = values
    else:
        tensor = torch.tensor(values) if values else torch.empty(0, dtype=torch.int64)
    if tensor.device == device:
        return tensor
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def to_lists(*tensors: Tensor) -> list[Any]:
    """The contents of tensors of one device as nested lists; the host waits for a GPU once."""
    if tensors[0].is_cuda:
        device = tensors[0].device
        tensors = tuple(tensor.to("cpu", non_blocking=True) for tensor in tensors)
        torch.cuda.current_stream(device).synchronize()
    return [tensor.tolist() for tensor in tensors]
