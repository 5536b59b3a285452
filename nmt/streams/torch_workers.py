"""Translation with torch in the current process, in worker processes, or in the processes of torchrun."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from functools import partial
from itertools import islice

import torch

from nmt.keep.translator import Fallbacks
from nmt.processes.distributed import World, start_world
from nmt.processes.parallel import map_in_order, num_cores
from nmt.recipe import UserError
from nmt.streams.records import Record
from nmt.streams.windows import Wait, with_pauses
from nmt.streams.workers import Load, TranslatedWindow, WindowTranslator, Workers

_REMEDY = "rerun the command, with --resume if the output is a file"


@contextmanager
def start_torch_workers(device: str, processes: int, threads: int | None = None) -> Iterator[Workers]:
    """Provide workers on a device for a `with` block.

    processes: worker processes on a CPU; 0 is one per core, 1 uses the current process or those of torchrun
    threads:   of the current process

    Raises UserError if the device or torchrun does not allow several worker processes.
    """
    processes = processes or num_cores()
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
                f"--processes {processes} on {world.device}; it is for a CPU only; add --device cpu, or use torchrun "
                "for several GPUs"
            )
        yield _TorchWorkers(
            device=str(world.device),
            size=world.size,
            is_main=world.is_main,
            on_gpu=world.device.type == "cuda",
            splits_files=True,  # always, to get the same batches with any number of processes
            world=world,
            processes=processes,
        )


@dataclass(frozen=True, kw_only=True)
class _TorchWorkers(Workers):
    world: World
    processes: int

    def max(self, value: int) -> int:
        return self.world.max(value)

    def translate(
        self, load: Load, windows: Iterator[list[Record]], wait: Wait | None
    ) -> Generator[TranslatedWindow, None, None]:
        translate_window = load()
        if self.processes > 1 and wait is not None and translate_window.translator.context.has_target:
            raise UserError(
                f"--processes {self.processes} does not support a pipe: this model translates with the previous "
                "translations, which another process has; translate a file, or leave out --processes"
            )
        if self.processes > 1:  # each worker loads the model again; loading it here first reports errors once
            make = partial(_start_worker, load)
            return map_in_order(make, with_pauses(windows, wait), self.processes, option="--processes")
        if self.size > 1:
            return _translate_in_turn(translate_window, windows, self.world)
        return (translate_window(window) for window in windows)


def _translate_in_turn(
    translate_window: WindowTranslator, windows: Iterator[list[Record]], world: World
) -> Generator[TranslatedWindow, None, None]:
    """Translate window k in process k % size, and yield all results in the first process.

    All processes must read the same windows.
    """
    while round_of_windows := list(islice(windows, world.size)):
        own: list[str] = []
        if world.rank < len(round_of_windows):
            result = translate_window(round_of_windows[world.rank])
            fallbacks = astuple(result.fallbacks) if result.fallbacks else ()
            counts = (result.num_records, result.lines_split, result.tokens, result.lines_reused, *fallbacks)
            own = [result.text, result.terms, *map(str, counts)]
        world.barrier_without_timeout()
        for fields in world.gather_text(own) or []:
            if fields:
                text, terms, *numbers = fields
                num_records, lines_split, tokens, reused, *counted = map(int, numbers)
                fallback_counts = Fallbacks(*counted) if counted else None
                yield TranslatedWindow(text, terms, num_records, lines_split, tokens, reused, fallback_counts)


def _start_worker(load: Load) -> WindowTranslator:
    torch.set_num_threads(1)
    return load()
