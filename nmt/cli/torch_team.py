"""The processes that translate with torch: this one, workers that it starts, or those that torchrun has started."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch

from nmt.processes.distributed import World, start_world
from nmt.processes.parallel import map_in_order
from nmt.recipe import UserError
from nmt.streams.answers import Answer, Answering, Load
from nmt.streams.records import Record, RecordWriter
from nmt.streams.windows import Wait, with_pauses

_REMEDY = "start the same command again, with --resume where a file holds what was done"


@contextmanager
def start_torch_team(device: str, processes: int, threads: int | None = None) -> Iterator[TorchTeam]:
    """The team on a device, for the length of a `with` block; UserError for `processes` that it cannot have."""
    if threads is not None:
        torch.set_num_threads(threads)
    with start_world(device, _REMEDY) as world:
        if processes > 1 and world.size > 1:
            raise UserError(
                f"--processes {processes} under torchrun, which has started {world.size}; it must be 1; leave it "
                "out, or torchrun"
            )
        if processes > 1 and world.device.type != "cpu":
            raise UserError(
                f"--processes {processes} is for the CPU, not for {world.device}; on several GPUs use torchrun; "
                "leave it out, or add --device cpu"
            )
        yield TorchTeam(world, processes)


@dataclass(frozen=True)
class TorchTeam:
    """See `nmt.streams.answers.Team`. processes: workers that this process starts, if more than one."""

    world: World
    processes: int

    @property
    def size(self) -> int:
        """Processes of the job."""
        return self.world.size

    @property
    def is_first(self) -> bool:
        """Whether this is the one that writes."""
        return self.world.is_main

    @property
    def device(self) -> str:
        """What this process computes on."""
        return str(self.world.device)

    @property
    def on_gpu(self) -> bool:
        """Whether windows are to be as wide as a GPU needs them."""
        return self.world.device.type == "cuda"

    @property
    def divides_files(self) -> bool:
        """Always, so that any number of processes makes the same batches."""
        return True

    def max(self, value: int) -> int:
        """See `Team.max`."""
        return self.world.max(value)

    def answers(
        self, load: Load, writer: RecordWriter, found: Iterator[list[Record]], wait: Wait | None
    ) -> Generator[Answer, None, None]:
        """See `Team.answers`."""
        translator = load()
        if self.processes > 1:  # each loads the model again; loading it here shows errors once
            return answer_with_processes(load, writer, found, wait, self.processes)
        answering = Answering(translator, writer)
        if self.size > 1:
            return answer_in_turn(answering, found, self.world)
        return (answering(window) for window in found)


def answer_with_processes(
    load: Load, writer: RecordWriter, found: Iterator[list[Record]], wait: Wait | None, num_processes: int
) -> Generator[Answer, None, None]:
    """The answers of several processes of one thread each, each with its own copy of the model."""
    make = partial(_start_process, load, writer)
    return map_in_order(make, with_pauses(found, wait), num_processes, option="--processes")


def answer_in_turn(answering: Answering, found: Iterator[list[Record]], world: World) -> Generator[Answer, None, None]:
    """The answers of all processes of the job on its first one, none elsewhere; window k is that of process k % size.

    All processes must find the same windows.
    """
    while round_of_windows := list(islice(found, world.size)):
        own: list[str] = []
        if world.rank < len(round_of_windows):
            answer = answering(round_of_windows[world.rank])
            own = [answer.text, str(answer.count), str(answer.lines_cut), str(answer.tokens)]
        world.barrier_without_timeout()
        for share in world.gather_text(own) or []:
            if share:
                yield Answer(share[0], *map(int, share[1:]))


def _start_process(load: Load, writer: RecordWriter) -> Answering:
    torch.set_num_threads(1)
    return Answering(load(), writer)
