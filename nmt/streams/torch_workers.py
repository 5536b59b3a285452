"""Translation with torch in the current process, in worker processes, or in the processes of torchrun."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any, cast

import torch
from pydantic import TypeAdapter

from nmt.errors import UserError
from nmt.processes.cores import num_cores
from nmt.processes.distributed import World, start_world
from nmt.processes.host_memory import free_host_memory, resident_memory
from nmt.processes.parallel import map_in_order
from nmt.streams.records import Record
from nmt.streams.windows import Wait, with_pauses
from nmt.streams.workers import Load, TranslatedWindow, WindowTranslator, Workers

# While a worker process starts, the current process could translate about 500 lines with a small model.
LINES_PER_PROCESS = 500

_REMEDY = "rerun the command, with --resume if the output is a file"


@contextmanager
def start_torch_workers(device: str, processes: int | None, threads: int | None = None) -> Iterator[Workers]:
    """Provide workers on a device for a `with` block.

    processes: worker processes on a CPU; 1 uses the current process or those of torchrun, 0 is one per core, or 1 on a
               GPU, and None chooses the number from the line count of the file
    threads:   number of torch threads of the current process, which then translates alone

    Raises UserError if the device or torchrun does not allow several worker processes.
    """
    given = processes
    if threads is not None:
        processes = 1
        torch.set_num_threads(threads)
    with start_world(device, _REMEDY) as world:
        if processes == 0:
            processes = num_cores() if world.device.type == "cpu" else 1
        uses_pool = processes is not None and processes > 1
        if uses_pool and world.size > 1:
            raise UserError(
                f"--processes {given} cannot be used under torchrun, which started {world.size} processes; leave "
                "out --processes or torchrun"
            )
        if uses_pool and world.device.type != "cpu":
            raise UserError(
                f"--processes {given} needs a CPU, got {world.device}; add --device cpu, or use torchrun for "
                "several GPUs"
            )
        yield _TorchWorkers(
            device=str(world.device),
            size=world.size,
            is_main=world.is_main,
            on_gpu=world.device.type == "cuda",
            splits_files=True,  # batches must not depend on the number of processes
            world=world,
            processes=1 if world.size > 1 or world.device.type != "cpu" else processes,
        )


@dataclass(frozen=True, kw_only=True)
class _TorchWorkers(Workers):
    """Workers with torch."""

    world: World

    def require_same(self, options: Mapping[str, Any]) -> None:
        self.world.require_same_options(options)

    def max(self, value: int) -> int:
        return self.world.max(value)

    def translate(
        self, load: Load, windows: Iterator[list[Record]], wait: Wait | None, num_lines: int | None
    ) -> Generator[TranslatedWindow, None, None]:
        processes = self.processes or choose_num_processes(num_lines, num_cores(), None)
        if processes > 1:
            return self._translate_in_pool(load, windows, wait, num_lines, processes)
        translate_window = load()
        if self.size > 1:
            return _translate_in_turn(translate_window, windows, self.world)
        return (translate_window(window) for window in windows)

    def _translate_in_pool(
        self, load: Load, windows: Iterator[list[Record]], wait: Wait | None, num_lines: int | None, processes: int
    ) -> Generator[TranslatedWindow, None, None]:
        """Translate windows in worker processes; only these load the model.

        If the first worker fails to load it, the error is raised immediately.

        processes: number of workers, or the maximum if the user did not choose it
        """
        # For a file, the other workers start without a pause, unless the memory of the first determines their number.
        pause = [] if self.processes and wait is None else [None]
        jobs = chain([_GET_SIZE], pause, with_pauses(windows, wait))
        results = map_in_order(partial(_start_worker, load), jobs, processes, option="--processes")
        resident_bytes = next(results)
        assert isinstance(resident_bytes, int)
        if self.processes is None:
            fitting = choose_num_processes(num_lines, num_cores(), _fitting_processes(resident_bytes))
            if fitting < processes:
                results.close()
                return replace(self, processes=fitting).translate(load, windows, wait, num_lines)
        return cast(Generator[TranslatedWindow, None, None], results)  # all further results are translated windows


def choose_num_processes(num_lines: int | None, cores: int, fitting: int | None) -> int:
    """Return the number of worker processes for a file or pipe.

    num_lines: None for a pipe, whose first lines must not wait for the start of processes
    fitting:   number of processes that fit in memory; None if unknown
    """
    if num_lines is None:
        return 1
    return max(min(cores, num_lines // LINES_PER_PROCESS, cores if fitting is None else fitting), 1)


def _fitting_processes(resident_bytes: int) -> int | None:
    """Return how many workers of this size fit in memory, including the one already started; None if unknown."""
    free_bytes = free_host_memory()
    return None if free_bytes is None else 1 + free_bytes // resident_bytes


def _translate_in_turn(
    translate_window: WindowTranslator, windows: Iterator[list[Record]], world: World
) -> Generator[TranslatedWindow, None, None]:
    """Translate window k in process k % size, and yield all results in the first process.

    All processes must read the same windows.
    """
    decode = TypeAdapter(TranslatedWindow).validate_json
    while round_of_windows := list(islice(windows, world.size)):
        encoded: list[str] = []  # at most one result
        if world.rank < len(round_of_windows):
            result = translate_window(round_of_windows[world.rank])
            encoded = [json.dumps(asdict(result))]
        world.barrier_without_timeout()
        for encoded_results in world.gather_text(encoded) or []:
            for encoded_result in encoded_results:
                yield decode(encoded_result)


# The job that returns the resident memory in bytes of a process that has loaded the model: an empty window.
_GET_SIZE: list[Record] = []


def _start_worker(load: Load) -> Callable[[list[Record]], TranslatedWindow | int]:
    torch.set_num_threads(1)
    translate_window = load()
    return lambda window: translate_window(window) if window else resident_memory()
