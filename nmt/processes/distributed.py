"""Several processes as one: rank, world size, start and stop, and what they exchange; alone all of it does nothing.

`torchrun` starts the processes and tells each its place by environment variables, and so can anything else that sets
RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, as Slurm's srun. A process that dies or hangs ends the job
with one line that names it (see `nmt.processes.failure_detection`): NMT_WATCH_SECONDS (60) without a heartbeat and
NMT_TIMEOUT_SECONDS (600) at a synchronization point are the limits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from nmt.processes.failure_detection import Watch
from nmt.recipe import OrderlyEnd, UserError

WATCH_SECONDS = 60.0
TIMEOUT_SECONDS = 600.0
RESUMES = "start the same command again, and it goes on from the last checkpoint"


@dataclass(frozen=True)
class World:
    """The place of this process among all: `rank` of `size`, and the device that it computes on.

    watch: what notices that another process has died or hangs; None when alone
    """

    rank: int
    size: int
    device: torch.device
    watch: Watch | None = None

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files and talks."""
        return self.rank == 0

    @property
    def is_local_main(self) -> bool:
        """Whether this is the process that reads for all of its machine what they must not all read."""
        return self.size == 1 or _local_rank() == 0

    def count_synchronization(self) -> None:
        """Note that this process has come to where the others wait for it, so that one that hangs can be named.

        The methods below do it themselves; it is for exchanges that torch makes by itself, as DDP's of gradients.
        """
        if self.watch is not None:
            self.watch.exchanges += 1

    def barrier(self) -> None:
        """Wait until every process has come here."""
        if self.size > 1:
            self.count_synchronization()
            dist.barrier()

    def barrier_without_timeout(self) -> None:
        """A barrier that may take as long as it will, as long as all processes live."""
        if self.watch is not None:
            self.watch.assemble()

    def run_on_main(self, work: Callable[[], object]) -> None:
        """Let the first process do some work while the others wait for it, however long it takes."""
        if self.watch is None:
            work()
        else:
            self.watch.run_on_main(work)

    def sum(self, values: Tensor) -> Tensor:
        """Element-wise sum of a tensor over all processes, in place."""
        if self.size > 1:
            self.count_synchronization()
            dist.all_reduce(values)
        return values

    def max(self, value: int) -> int:
        """The largest of one number per process; it goes past the GPUs, so that nobody waits for theirs."""
        if self.size == 1:
            return value
        largest = torch.tensor(int(value))
        self.count_synchronization()
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest)

    def min(self, value: int) -> int:
        """The smallest of one number per process."""
        return -self.max(-value)

    def broadcast_text(self, text: str) -> str:
        """The text that the first process gives, on every process."""
        if self.size == 1:
            return text
        content = _as_tensor(text.encode() if self.is_main else b"")
        received = torch.zeros(self.max(len(content)), dtype=torch.uint8)
        received[: len(content)] = content
        return self.sum(received).numpy().tobytes().decode() if len(received) else ""

    def gather(self, values: Tensor) -> list[Tensor] | None:
        """Every process's CPU tensor (n,) of any length, in rank order on the first process; None elsewhere."""
        if self.size == 1:
            return [values]
        lengths = torch.zeros(self.size, dtype=torch.int64)
        lengths[self.rank] = len(values)
        longest = int(self.sum(lengths).max())
        padded = values.new_zeros(longest)
        padded[: len(values)] = values
        received = [torch.empty_like(padded) for _ in range(self.size)] if self.is_main else None
        if longest > 0:
            self.count_synchronization()
            dist.gather(padded, received)
        if received is None:
            return None
        return [part[:length] for part, length in zip(received, lengths.tolist(), strict=True)]

    def gather_text(self, lines: Sequence[str]) -> list[list[str]] | None:
        """Every process's lines, in rank order, on the first process; None elsewhere."""
        encoded = [line.encode("utf-8", "surrogatepass") for line in lines]
        lengths = self.gather(torch.tensor([len(line) for line in encoded], dtype=torch.int64))
        text = self.gather(_as_tensor(b"".join(encoded)))
        if lengths is None or text is None:
            return None
        return [_split_text(*parts) for parts in zip(text, lengths, strict=True)]


def choose_device(name: str) -> torch.device:
    """The device that `auto`, `cpu`, `cuda` or `cuda:N` means here; UserError where it does not exist.

    On a GPU, cuDNN's attention is switched off for the process: with masks it gives NaN gradients on Hopper
    (pytorch#196678).
    """
    device = _find_device(name)
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)
    return device


def _find_device(name: str) -> torch.device:
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
def start_world(device_name: str, remedy: str = RESUMES) -> Iterator[World]:
    """Join the other processes of the job for the length of a `with` block; alone, just choose the device.

    remedy: what the user is to do when the job has ended because a process has died or hangs. Raises UserError where
    they cannot be joined. An error inside the block ends the job: it is shown once, with the
    process that had it, and JobEnded comes out of the block in every process.
    """
    device = choose_device(device_name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    size = int(_number("WORLD_SIZE", 1))
    if size == 1:
        yield World(0, 1, device)
        return
    rank, watch = _meet_the_others(size, remedy)
    try:
        _start_process_group(rank, size, device, watch)
        yield World(rank, size, device, watch)
    except OrderlyEnd:
        raise
    except Exception as error:
        raise watch.explain(error) from error
    except BaseException as error:
        watch.explain(error)
        raise
    finally:
        try:
            if dist.is_initialized():
                dist.destroy_process_group()
        finally:
            watch.leave()


def _meet_the_others(size: int, remedy: str) -> tuple[int, Watch]:
    """This process's rank, and its watch over all, once all have come."""
    timeout = _number("NMT_TIMEOUT_SECONDS", TIMEOUT_SECONDS)
    try:
        store, rank, _ = next(rendezvous("env://", timeout=timedelta(seconds=timeout)))
    except (ValueError, RuntimeError) as error:  # a variable is missing, or nobody answers there
        place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise UserError(
            f"cannot join the other processes at {place} ({str(error).partition(chr(10))[0]}); RANK, WORLD_SIZE, "
            "MASTER_ADDR and MASTER_PORT must be set for each; use torchrun, which sets them"
        ) from error
    torchrun_holds_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return rank, Watch(
        store,
        rank,
        size,
        patience=_number("NMT_WATCH_SECONDS", WATCH_SECONDS),
        timeout=timeout,
        holds_store=rank == 0 and not torchrun_holds_store,
        remedy=remedy,
    )


def _start_process_group(rank: int, size: int, device: torch.device, watch: Watch) -> None:
    on_gpu = device.type == "cuda"
    # The watch finds and names one that hangs; should it fail, torch's own timeout ends the job a little later.
    timeout = timedelta(seconds=watch.timeout + watch.patience)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        store=watch.store_for("process-group"),
        rank=rank,
        world_size=size,
        timeout=timeout,
        device_id=device if on_gpu else None,
    )


def _as_tensor(content: bytes) -> Tensor:
    """Bytes as a tensor (len(content),) of uint8."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)


def _split_text(text: Tensor, lengths: Tensor) -> list[str]:
    """Lines (num_lines,) of UTF-8 bytes (total,), each of a length in bytes (num_lines,)."""
    content = text.cpu().numpy().tobytes()
    borders = pairwise([0, *lengths.cumsum(0).tolist()])
    return [content[start:end].decode("utf-8", "surrogatepass") for start, end in borders]


def _local_rank() -> int:
    return int(_number("LOCAL_RANK", 0))


def _number(variable: str, default: float) -> float:
    """The number in an environment variable; UserError when it holds something else."""
    value = os.environ.get(variable, "")
    try:
        return float(value) if value else default
    except ValueError:
        raise UserError(f"{variable} is {value!r}; it must be a number; set or unset it") from None
