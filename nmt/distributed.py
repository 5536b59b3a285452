"""Several processes as one: rank, world size, start and stop, and sums; all of it does nothing when alone.

`torchrun` starts the processes and tells each its place by environment variables; nothing else is configured.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from nmt.recipe import UserError

TIMEOUT = timedelta(minutes=30)


@dataclass(frozen=True)
class World:
    """The place of this process among all: `rank` of `size`, and the device that it computes on."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files and talks."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait until every process has come here."""
        if self.size > 1:
            dist.barrier()

    def sum(self, values: Tensor) -> Tensor:
        """Element-wise sum of a tensor over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def max(self, value: int) -> int:
        """The largest of one number per process."""
        if self.size == 1:
            return value
        largest = torch.tensor(value, device=self.device)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest)


def choose_device(name: str) -> torch.device:
    """The device that `auto`, `cpu`, `cuda` or `cuda:N` means here; UserError where it does not exist."""
    if name == "auto":
        return torch.device("cuda", _local_rank()) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"device {name!r} is unknown; it must be auto, cpu, cuda or cuda:N; choose one") from error
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if not torch.cuda.is_available() or (device.index or 0) >= count:
            raise UserError(
                f"device {name!r} is not there ({count} CUDA devices found); use device=cpu or another number"
            )
        return device if device.index is not None else torch.device("cuda", _local_rank() % count)
    if device.type != "cpu":
        raise UserError(f"device {name!r} is not supported; it must be auto, cpu, cuda or cuda:N; choose one")
    return device


@contextmanager
def start_world(device_name: str) -> Iterator[World]:
    """Join the processes that torchrun started, for the length of a `with` block; alone, just choose the device."""
    device = choose_device(device_name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cuda.enable_cudnn_sdp(False)  # NaN gradients with masks on Hopper (pytorch#196678)
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World(0, 1, device)
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
    try:
        yield World(dist.get_rank(), size, device)
    finally:
        dist.destroy_process_group()


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))
