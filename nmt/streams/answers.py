"""From windows of the input to parts of the output, in order, whoever does the work."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Protocol

from nmt.decode.text_translator import TextTranslator
from nmt.recipe import UserError
from nmt.streams.records import Record, RecordWriter
from nmt.streams.windows import Wait

Load = Callable[[], TextTranslator]


@dataclass(frozen=True)
class Answer:
    """What is written for a window.

    count: records of the window; lines_cut: how many of them were too long and were translated in pieces
    tokens: of the best translation of each record
    """

    text: str
    count: int
    lines_cut: int
    tokens: int


@dataclass(frozen=True)
class Answering:
    """What translates a window of records and writes the answer."""

    translator: TextTranslator
    writer: RecordWriter

    def __call__(self, window: list[Record]) -> Answer:
        """Translate the records of a window together."""
        return self.start(window)()

    def start(self, window: list[Record]) -> Callable[[], Answer]:
        """Begin to translate a window, and return what waits for the end of that."""
        cut_before = self.translator.lines_cut
        prefixes = [record.prefix for record in window]
        required = [record.required for record in window]
        texts = [record.text or "" for record in window]
        finish = self.translator.start_translation(texts, prefixes=prefixes, required=required)
        lines_cut = self.translator.lines_cut - cut_before

        def answer() -> Answer:
            found = finish()
            text = "".join(self.writer.write(*both) for both in zip(window, found, strict=True))
            return Answer(text, len(window), lines_cut, sum(len(translations[0].pieces) for translations in found))

        return answer


class Team(Protocol):
    """The processes that translate: this one alone, or with others."""

    @property
    def size(self) -> int:
        """Processes of the job, each of which runs this same command."""

    @property
    def is_first(self) -> bool:
        """Whether this is the one that writes."""

    @property
    def device(self) -> str:
        """What this process computes on."""

    @property
    def on_gpu(self) -> bool:
        """Whether windows are to be as wide as a GPU needs them."""

    @property
    def divides_files(self) -> bool:
        """Whether a small file is to be divided into many windows, of which each process gets some."""

    def max(self, value: int) -> int:
        """The largest of one number of each process of the job."""

    def answers(
        self, load: Load, writer: RecordWriter, found: Iterator[list[Record]], wait: Wait | None
    ) -> Generator[Answer, None, None]:
        """The answers to all windows, in order, where this is the first process; none elsewhere."""


@dataclass(frozen=True)
class Alone:
    """This process and no other."""

    device: str = "cpu"
    size: int = 1
    is_first: bool = True
    on_gpu: bool = False
    divides_files: bool = False

    def max(self, value: int) -> int:
        """See `Team.max`."""
        return value

    def answers(
        self, load: Load, writer: RecordWriter, found: Iterator[list[Record]], wait: Wait | None
    ) -> Generator[Answer, None, None]:
        """See `Team.answers`."""
        answering = Answering(load(), writer)
        begun: deque[Callable[[], Answer]] = deque()
        for window in found:
            try:
                begun.append(answering.start(window))
            except UserError:
                while begun:  # what stands before the window that cannot be translated
                    yield begun.popleft()()
                raise
            # Two windows of a file are on their way at a time. A pipe may keep us waiting for the next.
            if wait is not None or len(begun) > 1:
                yield begun.popleft()()
        while begun:
            yield begun.popleft()()
