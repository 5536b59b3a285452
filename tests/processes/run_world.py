"""One process of a small job, which the tests of nmt.processes.distributed start: it does what a function here says."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

from nmt.processes.distributed import World, start_world
from nmt.recipe import JobEnded, OrderlyEnd, UserError

LINES = [["Guten Tag", "", "zwei\u2028Zeilen \ud800"], [], ["日本語"]]
MISSING = "corpus.en is missing; it must be there; look for it"


def exchange(world: World, folder: Path) -> None:
    """Every exchange once; what came out goes to a file."""
    started = time.monotonic()
    world.run_on_main(lambda: time.sleep(1.5))  # longer than NMT_TIMEOUT_SECONDS: to wait for work is not to hang
    time.sleep(1.5 if world.is_main else 0.0)  # nor is it to come late to a barrier without limit
    world.barrier_without_timeout()
    numbers = world.gather(torch.arange(world.rank))
    results = {
        "once": time.monotonic() - started,
        "sum": world.sum(torch.tensor([world.rank, 10])).tolist(),
        "max": world.max(5 - world.rank),
        "min": world.min(5 - world.rank),
        "gather": None if numbers is None else [part.tolist() for part in numbers],
        "text": world.gather_text(LINES[world.rank]),
        "told": [
            world.broadcast_text(f"Grüße von {world.rank}"),
            world.broadcast_text("" if world.is_main else "not heard"),
        ],
        "nothing": world.gather_text([]),
        "empty lines": world.gather_text([""] * world.rank),
    }
    world.barrier()
    (folder / f"{world.rank}.json").write_text(json.dumps(results))


def work(world: World, folder: Path) -> None:
    """Exchange until somebody ends it."""
    while True:
        world.barrier()
        time.sleep(0.02)


def compute(world: World, folder: Path) -> None:
    """Never exchange, as a process that waits for its GPU: only the watch can end it."""
    time.sleep(60)


def fail(world: World, folder: Path) -> None:
    world.barrier()
    if world.rank == 1:
        raise ValueError("boom")
    world.barrier()


def refuse(world: World, folder: Path) -> None:
    """An error of the user's on rank 0, which may be the only one to look."""
    if world.is_main:
        raise UserError(MISSING)
    world.barrier()


def refuse_all(world: World, folder: Path) -> None:
    raise UserError(MISSING)


def refuse_in_once(world: World, folder: Path) -> None:
    world.run_on_main(lambda: refuse_all(world, folder))


def hang(world: World, folder: Path) -> None:
    if world.rank == 1:
        time.sleep(60)
    world.barrier()


def leave(world: World, folder: Path) -> None:
    """Rank 1 leaves long before rank 0."""
    time.sleep(0.0 if world.rank == 1 else 1.0)
    raise OrderlyEnd


def leave_first(world: World, folder: Path) -> None:
    """Rank 0, which holds the store, leaves long before rank 1."""
    time.sleep(1.0 if world.rank == 1 else 0.0)
    raise OrderlyEnd


def die_once(world: World, folder: Path) -> None:
    """Rank 1 dies, but not after torchrun has started all again; SIGTERM ends nobody at once, as in training."""
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # else torchrun may end rank 0 before that has looked
    world.barrier()
    if world.rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    world.barrier()
    (folder / f"{world.rank}.done").touch()


def main(what: str, folder: Path) -> int:
    """End as the command line does: see nmt.cli.main."""
    try:
        with start_world("cpu") as world:
            (folder / f"{world.rank}.{os.getpid()}.pid").touch()
            globals()[what](world, folder)
    except JobEnded:
        return 1
    except UserError as error:
        sys.stderr.write(f"nmt: {error}\n")
        return 1
    except OrderlyEnd:
        return 143
    return 0


def run_forked(what: str, folder: Path, variables: dict[str, str]) -> None:
    """Run in a process that was forked where torch is imported already, which saves seconds; stderr goes to a file."""
    os.environ.update(variables)
    os.dup2(os.open(folder / f"{variables['RANK']}.err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    sys.exit(main(what, folder))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
