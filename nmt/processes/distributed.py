"""Process group of a job: rank, world size, collectives, start and end. With one process, collectives do nothing.

Processes are started by torchrun, or by any launcher that sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and
MASTER_PORT. If a rank dies or hangs, the job exits with one message that names it (`nmt.processes.failure_detection`).
NMT_WATCH_SECONDS (60): maximum time without a heartbeat. NMT_TIMEOUT_SECONDS (600): maximum delay at a synchronization
point.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined] # documented as public
from torch.distributed.rendezvous import rendezvous

from nmt.devices.memory import explained_out_of_memory
from nmt.errors import OrderlyEnd, UserError
from nmt.processes.environment import local_rank, read_number, world_size
from nmt.processes.failure_detection import FailureDetector

WATCH_SECONDS = 60.0
TIMEOUT_SECONDS = 600.0
RESUME_REMEDY = "rerun the same command to resume from the last checkpoint"

_CPU = "cpu"

# Kept until the process exits. Otherwise DDP may hold the last reference to a group and destroy it without releasing
# the GIL: it would wait forever for a thread of Gloo that needs the GIL to free the tensors of the last collective.
_ended_groups: list[object] = []


@dataclass(frozen=True)
class World:
    """This process in its job: `rank` of `size`, its device, and the failure detector (None with one process)."""

    rank: int
    size: int
    device: torch.device
    detector: FailureDetector | None = None

    @property
    def is_main(self) -> bool:
        """Return whether this is rank 0, which writes files and messages."""
        return self.rank == 0

    @property
    def is_local_main(self) -> bool:
        """Return whether this is the first process of the job on its machine."""
        return self.size == 1 or local_rank() == 0

    def count_synchronization(self) -> None:
        """Record that this process has reached a synchronization point, to identify a rank that hangs.

        The collectives below call it themselves. Call it before collectives that torch issues, such as DDP's.
        """
        if self.detector is not None:
            self.detector.synchronizations += 1

    def barrier(self) -> None:
        """Wait until every process has reached this point."""
        if self.size > 1:
            self.count_synchronization()
            dist.barrier()

    def barrier_without_timeout(self) -> None:
        """Wait without a timeout until every process has reached this point; raises JobEnded if the job ends."""
        if self.detector is not None:
            self.detector.barrier()

    def run_on_main(self, work: Callable[[], object]) -> None:
        """Run `work` on rank 0 while the others wait without a timeout."""
        if self.detector is None:
            work()
        else:
            self.detector.run_on_main(work)

    def sum(self, values: Tensor) -> Tensor:
        """All-reduce a tensor by summation, in place."""
        if self.size > 1:
            self.count_synchronization()
            dist.all_reduce(values)
        return values

    def max(self, value: int) -> int:
        """Return the maximum over all processes; on the CPU, without GPU synchronization."""
        if self.size == 1:
            return value
        largest = torch.tensor(int(value))
        self.count_synchronization()
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest)

    def broadcast_text(self, text: str) -> str:
        """Return the text of rank 0 on every process."""
        if self.size == 1:
            return text
        content = _bytes_tensor(text.encode() if self.is_main else b"")
        received = torch.zeros(self.max(len(content)), dtype=torch.uint8)
        received[: len(content)] = content
        return self.sum(received).numpy().tobytes().decode() if len(received) else ""

    def require_same_options(self, options: Mapping[str, Any]) -> None:
        """Raise UserError on a process whose options, JSON values by section and name, differ from those of rank 0."""
        text = json.dumps(options)
        text_of_main = self.broadcast_text(text)
        names = sorted(_differing_names(json.loads(text), json.loads(text_of_main)))
        if names:
            raise UserError(
                f"rank {self.rank} has different options than rank 0: {', '.join(names)}; all must be equal; start "
                "all processes with the same recipe and command line"
            )

    def gather_text(self, lines: Sequence[str]) -> list[list[str]] | None:
        """Gather the lines of every process in rank order on rank 0; None elsewhere."""
        if self.size == 1:
            return [list(lines)]
        content = _bytes_tensor(json.dumps(list(lines)).encode())
        padded = torch.zeros(self.max(len(content)), dtype=torch.uint8)
        padded[: len(content)] = content
        received = [torch.empty_like(padded) for _ in range(self.size)] if self.is_main else None
        self.count_synchronization()
        dist.gather(padded, received)
        if received is None:
            return None
        return [json.loads(part.numpy().tobytes().rstrip(b"\0")) for part in received]


def choose_device(name: str) -> torch.device:
    """Return the device for `auto`, `cpu`, `cuda` or `cuda:N`; raises UserError if it does not exist.

    On a GPU, disables cuDNN attention: with masks it can give NaN gradients on Hopper (pytorch#196678).
    """
    device = _find_device(name)
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)
    return device


def _find_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise UserError(f"device {name!r} is unknown; it must be auto, cpu, cuda or cuda:N; choose one") from error
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if not torch.cuda.is_available() or (device.index or 0) >= count:
            raise UserError(f"device {name!r} does not exist (CUDA devices found: {count}); use cpu or another number")
        return device if device.index is not None else torch.device("cuda", local_rank() % count)
    if device.type != "cpu" or device.index:
        raise UserError(f"device {name!r} is not supported; it must be auto, cpu, cuda or cuda:N; choose one")
    return device


@contextmanager
def start_world(device_name: str, remedy: str = RESUME_REMEDY) -> Iterator[World]:
    """Join the process group for a `with` block; with one process, only choose the device.

    Args:
        remedy: advice to the user in the message about a rank that died or hangs.

    Raises:
        UserError: the other processes cannot be reached, or memory is exhausted.
        JobEnded: the block of any rank raised an exception. It is reported once, with the rank that raised it.
    """
    device = choose_device(device_name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    size = world_size()
    if size == 1:
        with explained_out_of_memory(device):
            yield World(0, 1, device)
        return
    rank, detector = _join_job(size, remedy)
    try:
        _init_process_group(rank, size, device, detector)
        with explained_out_of_memory(device):
            yield World(rank, size, device, detector)
    except OrderlyEnd:
        raise
    except Exception as error:
        raise detector.explain(error) from error
    except BaseException as error:
        detector.explain(error)
        raise
    finally:
        try:
            if dist.is_initialized():
                _ended_groups.append(dist.group.WORLD)
                dist.destroy_process_group()
        finally:
            detector.leave()


def _join_job(size: int, remedy: str) -> tuple[int, FailureDetector]:
    patience = read_number("NMT_WATCH_SECONDS", WATCH_SECONDS)
    timeout = read_number("NMT_TIMEOUT_SECONDS", TIMEOUT_SECONDS)
    try:
        store, rank, serves_store = _connect(size, timedelta(seconds=timeout))
        return rank, FailureDetector(
            store,
            rank,
            size,
            patience=patience,
            timeout=timeout,
            serves_store=serves_store,
            remedy=remedy,
        )
    except (ValueError, RuntimeError) as error:  # a variable is missing or invalid, or there is no store
        address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise UserError(
            f"cannot join the other processes at {address} ({str(error).partition(chr(10))[0]}); each needs RANK, "
            "WORLD_SIZE, MASTER_ADDR and MASTER_PORT; use torchrun, which sets them"
        ) from error


def _connect(size: int, timeout: timedelta) -> tuple[TCPStore, int, bool]:
    """Connect to the store of the job; return it, the rank, and whether this process serves it."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # torchrun serves it
        store, rank, _ = next(rendezvous("env://", timeout=timeout))
        return store, rank, False
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        if name not in os.environ:
            raise ValueError(f"{name} is not set")
    rank = _integer_between("RANK", 0, size - 1)
    # Do not wait here: `join_job` names the ranks that are missing.
    store = TCPStore(
        os.environ["MASTER_ADDR"],
        _integer_between("MASTER_PORT", 1, 65_535),
        is_master=rank == 0,
        timeout=timeout,
        wait_for_workers=False,
        multi_tenant=True,  # a second job of this process may use the port, as with torch's rendezvous
    )
    return store, rank, rank == 0


def _integer_between(variable: str, lowest: int, highest: int) -> int:
    """Return the integer in an environment variable; raises ValueError if it is another text or out of range."""
    text = os.environ[variable].strip()
    if not text.isdecimal() or not lowest <= int(text) <= highest:
        raise ValueError(f"{variable} is {text!r}, not an integer from {lowest} to {highest}")
    return int(text)


def _init_process_group(rank: int, size: int, device: torch.device, detector: FailureDetector) -> None:
    on_gpu, store = device.type == "cuda", detector.process_group_store()
    _require_own_device(store, rank, size, str(torch.cuda.get_device_properties(device).uuid) if on_gpu else _CPU)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        store=store,
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=detector.timeout + detector.patience),  # only if the detector fails
        device_id=device if on_gpu else None,
    )


def _require_own_device(store: Store, rank: int, size: int, device: str) -> None:
    """Raise UserError on all ranks if two use the same GPU, or some a GPU and others a CPU.

    NCCL rejects a shared GPU too, but in an internal error that names neither the ranks nor the remedy.

    device: UUID of the GPU, or `_CPU`
    """
    store.set(f"device/{rank}", device)
    ranks: dict[str, list[int]] = {}
    for other, name in enumerate(store.multi_get([f"device/{other}" for other in range(size)])):
        ranks.setdefault(name.decode(), []).append(other)
    on_cpu = ranks.pop(_CPU, [])
    if on_cpu and ranks:
        raise UserError(
            f"ranks on a CPU: {', '.join(map(str, on_cpu))}; the others are on a GPU; all must be on the same kind of "
            "device; set the device to cpu, or make a GPU visible to each process"
        )
    for same in ranks.values():
        if len(same) > 1:
            raise UserError(
                f"ranks {', '.join(map(str, same))} use the same GPU; each process needs its own; start at most one "
                "process per GPU, with device auto or cuda, and set LOCAL_RANK, as torchrun does"
            )


def _bytes_tensor(content: bytes) -> Tensor:
    """Return bytes as a tensor (len(content),) uint8."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)


def _differing_names(options: Any, main_options: Any, name: str = "") -> Iterator[str]:
    """Yield the dotted names of the values that differ."""
    if isinstance(options, dict) and isinstance(main_options, dict):
        for key in options | main_options:
            full_name = f"{name}.{key}" if name else key
            yield from _differing_names(options.get(key), main_options.get(key), full_name)
    elif options != main_options:
        yield name
