"""One process of a test job: runs the function of this module that its argument names."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from nmt.errors import JobEnded, OrderlyEnd, UserError
from nmt.processes.distributed import World, start_world
from nmt.processes.interruption import Interrupted

LINES = [["Guten Tag", "", "zwei\u2028Zeilen \ud800"], [], ["日本語"]]
MISSING = "corpus.en is missing; it must be there; look for it"


@contextmanager
def timeout(world: World, seconds: float) -> Iterator[None]:
    """Change the timeout at synchronization points in a `with` block; NMT_TIMEOUT_SECONDS also limits the start."""
    assert world.detector is not None
    before, world.detector.timeout = world.detector.timeout, seconds
    yield
    world.detector.timeout = before


def collectives(world: World, folder: Path) -> None:
    """Call every collective once and write the results to a file."""
    started = time.monotonic()
    with timeout(world, 1.0):
        world.run_on_main(lambda: time.sleep(1.5))  # the timeout does not apply
        time.sleep(1.5 if world.is_main else 0.0)  # nor here
        world.barrier_without_timeout()
    results = {
        "run_on_main": time.monotonic() - started,
        "sum": world.sum(torch.tensor([world.rank, 10])).tolist(),
        "max": world.max(5 - world.rank),
        "text": world.gather_text(LINES[world.rank]),
        "broadcast": [
            world.broadcast_text(f"Grüße von {world.rank}"),
            world.broadcast_text("" if world.is_main else "ignored"),
        ],
        "nothing": world.gather_text([]),
        "empty lines": world.gather_text([""] * world.rank),
    }
    world.barrier()
    (folder / f"{world.rank}.json").write_text(json.dumps(results))


def work(world: World, folder: Path) -> None:
    """Synchronize until a signal."""
    while True:
        world.barrier()
        time.sleep(0.02)


def compute(world: World, folder: Path) -> None:
    """Never synchronize, like a process that waits for its GPU: only the failure detector can end it."""
    time.sleep(600)


def fail(world: World, folder: Path) -> None:
    world.barrier()
    if world.rank == 1:
        raise ValueError("boom")
    world.barrier()


def refuse(world: World, folder: Path) -> None:
    """Raise a user error on rank 0 alone."""
    if world.is_main:
        raise UserError(MISSING)
    world.barrier()


def refuse_all(world: World, folder: Path) -> None:
    raise UserError(MISSING)


def refuse_after_a_pause(world: World, folder: Path) -> None:
    """Raise the same error on all ranks, on rank 1 after a pause of its whole process."""
    world.barrier()
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    raise UserError(MISSING)


def refuse_in_run_on_main(world: World, folder: Path) -> None:
    world.run_on_main(lambda: refuse_all(world, folder))


def hang(world: World, folder: Path) -> None:
    with timeout(world, 1.0):
        if world.rank == 1:
            time.sleep(600)
        world.barrier()


def leave(world: World, folder: Path) -> None:
    """Rank 1 leaves a second before rank 0."""
    world.barrier()  # rank 0 may still be connecting to rank 1
    time.sleep(0.0 if world.rank == 1 else 1.0)
    raise OrderlyEnd


def leave_first(world: World, folder: Path) -> None:
    """Rank 0, which serves the store, leaves a second before rank 1."""
    world.barrier()
    time.sleep(1.0 if world.rank == 1 else 0.0)
    raise OrderlyEnd


def leave_a_barrier(world: World, folder: Path) -> None:
    """Only rank 0 waits for the others, as with shorter input on rank 1."""
    world.barrier()  # rank 0 may still be connecting to rank 1
    if world.is_main:
        world.barrier_without_timeout()


def interrupt_one(world: World, folder: Path) -> None:
    world.barrier()
    if world.rank == 1:
        raise Interrupted(status=143)
    world.barrier_without_timeout()


def leave_a_collective(world: World, folder: Path) -> nn.Module:
    """Rank 1 does not wait for the result of the last collective, for which rank 0 is late; returns a DDP module."""
    model = DistributedDataParallel(nn.Linear(1, 1))
    model(torch.ones(1)).backward()
    time.sleep(1.0 if world.is_main else 0.0)
    with suppress(RuntimeError):  # rank 1 may have exited
        dist.all_reduce(torch.ones(1), async_op=not world.is_main)
    return model


def die_once(world: World, folder: Path) -> None:
    """Rank 1 dies, unless torchrun has restarted the job; as in training, SIGTERM does not end a process at once."""
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # torchrun may send it before rank 0 reports
    world.barrier()
    if world.rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    world.barrier()
    (folder / f"{world.rank}.done").touch()


def main(what: str, folder: Path) -> int:
    """Exit as the command line does; see nmt.cli.main."""
    try:
        with start_world("cpu") as world:
            (folder / f"{world.rank}.{os.getpid()}.pid").touch()
            _model = globals()[what](world, folder)  # in training, a DDP module that outlives the process group
    except JobEnded:
        return 1
    except UserError as error:
        sys.stderr.write(f"nmt: {error}\n")
        return 1
    except OrderlyEnd:
        return 143
    except Interrupted as interrupted:
        return interrupted.status
    return 0


def run_forked(what: str, folder: Path, variables: dict[str, str]) -> None:
    """Run in a process forked after the import of torch, which saves seconds; stderr goes to a file."""
    os.environ.update(variables)
    os.dup2(os.open(folder / f"{variables['RANK']}.err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    sys.exit(main(what, folder))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
