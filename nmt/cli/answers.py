"""From windows of the input to parts of the output, in order, whoever does the work."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Protocol

from nmt.cli.records import Record, RecordWriter
from nmt.cli.windows import Wait
from nmt.decode.text_translator import TextTranslator

Load = Callable[[], TextTranslator]


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

    translator: TextTranslator
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


class Team(Protocol):
    """The processes that translate: this one alone, or with others."""

    @property
    def size(self) -> int:
        """Processes of the job, each of which runs this same command."""

    @property
    def is_first(self) -> bool:
        """Whether this is the one that writes."""

    @property
    def on_gpu(self) -> bool:
        """Whether windows are to be as wide as a GPU needs them."""

    def max(self, value: int) -> int:
        """The largest of one number of each process of the job."""

    def answers(
        self, load: Load, writer: RecordWriter, found: Iterator[list[Record]], wait: Wait | None
    ) -> Generator[Answer, None, None]:
        """The answers to all windows, in order, where this is the first process; none elsewhere."""


@dataclass(frozen=True)
class Alone:
    """This process and no other, on a CPU."""

    size: int = 1
    is_first: bool = True
    on_gpu: bool = False

    def max(self, value: int) -> int:
        """See `Team.max`."""
        return value

    def answers(
        self, load: Load, writer: RecordWriter, found: Iterator[list[Record]], wait: Wait | None
    ) -> Generator[Answer, None, None]:
        """See `Team.answers`."""
        answering = Answering(load(), writer)
        for window in found:
            yield answering(window)
