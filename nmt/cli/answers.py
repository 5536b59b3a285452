"""From windows of the input to parts of the output, in order: by one process, by several, or by those of torchrun."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch

from nmt.cli.records import Record, RecordWriter
from nmt.cli.windows import Wait, with_pauses
from nmt.data.parallel import map_in_order
from nmt.decode.translator import Translator
from nmt.distributed import World

Load = Callable[[], Translator]


@dataclass(frozen=True)
class Answer:
    """What is written for a window.

    count: records of the window; lines_cut: how many of them were too long and were translated in pieces
    """

    text: str
    count: int
    lines_cut: int


@dataclass(frozen=True)
class Answering:
    """What translates a window of records and writes the answer."""

    translator: Translator
    writer: RecordWriter

    def __call__(self, window: list[Record]) -> Answer:
        """Translate the records of a window together."""
        cut_before = self.translator.lines_cut
        prefixes = [record.prefix for record in window]
        required = [record.required for record in window]
        texts = [record.text for record in window]
        found = self.translator.translate_n_best(texts, prefixes=prefixes, required=required)
        text = "".join(
            self.writer.write(record, translations) for record, translations in zip(window, found, strict=True)
        )
        return Answer(text, len(window), self.translator.lines_cut - cut_before)


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
            own = [answer.text, str(answer.count), str(answer.lines_cut)]
        world.wait_for_all()
        for share in world.gather_text(own) or []:
            if share:
                yield Answer(share[0], int(share[1]), int(share[2]))


def _start_process(load: Load, writer: RecordWriter) -> Answering:
    torch.set_num_threads(1)
    return Answering(load(), writer)
