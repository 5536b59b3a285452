"""The processes that translate windows of the input and return the output in input order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nmt.decode.text_translator import TextTranslator
from nmt.keep.translator import Fallbacks, KeepingTranslator
from nmt.recipe import UserError
from nmt.streams.records import Record, RecordWriter
from nmt.streams.windows import Wait

if TYPE_CHECKING:
    from nmt.decode.memory import RememberingTranslator

Load = Callable[[], "TextTranslator | RememberingTranslator | KeepingTranslator"]


@dataclass(frozen=True)
class TranslatedWindow:
    """The output of a window.

    lines_split:  lines that exceeded the length limit of the model and were translated in parts
    tokens:       tokens of the best translations
    lines_reused: lines that were found in a translation memory
    fallbacks:    lines whose first translation did not keep their items; None if none are kept
    """

    text: str
    num_records: int
    lines_split: int
    tokens: int
    lines_reused: int = 0
    fallbacks: Fallbacks | None = None


@dataclass(frozen=True)
class WindowTranslator:
    """Translates the records of a window together and formats the output."""

    translator: TextTranslator | RememberingTranslator | KeepingTranslator
    writer: RecordWriter

    def __call__(self, window: list[Record]) -> TranslatedWindow:
        """Translate a window."""
        return self.start(window)()

    def start(self, window: list[Record]) -> Callable[[], TranslatedWindow]:
        """Start translating a window; the returned function waits for the result."""
        split_before, reused_before = self.translator.lines_split, self.translator.lines_reused
        prefixes = [record.prefix for record in window]
        required = [record.required for record in window]
        texts = [record.text or "" for record in window]
        finish = self.translator.start_translation(texts, prefixes=prefixes, required=required)
        lines_split = self.translator.lines_split - split_before
        lines_reused = self.translator.lines_reused - reused_before

        def result() -> TranslatedWindow:
            n_best_lists = finish()
            text = "".join(self.writer.write(*pair) for pair in zip(window, n_best_lists, strict=True))
            tokens = sum(len(translations[0].pieces) for translations in n_best_lists)
            keeping = self.translator if isinstance(self.translator, KeepingTranslator) else None
            fallbacks = keeping.take_fallbacks() if keeping else None
            return TranslatedWindow(text, len(window), lines_split, tokens, lines_reused, fallbacks)

        return result


@dataclass(frozen=True, kw_only=True)
class Workers:
    """The processes that translate: the current process alone, and in a subclass several.

    size:         processes of the job; each runs the same command, and the first one writes the output
    on_gpu:       whether windows are large enough for the batches of a GPU
    splits_files: whether small files are split into many windows, to have some for each process
    """

    device: str = "cpu"
    size: int = 1
    is_main: bool = True
    on_gpu: bool = False
    splits_files: bool = False

    def max(self, value: int) -> int:
        """Return the maximum of the values of all processes of the job."""
        return value

    def translate(
        self, load: Load, writer: RecordWriter, windows: Iterator[list[Record]], wait: Wait | None
    ) -> Generator[TranslatedWindow, None, None]:
        """Translate windows in order; only the first process of a job yields results.

        wait: of the pipe that the windows come from, None for a file
        """
        translator = WindowTranslator(load(), writer)
        started: deque[Callable[[], TranslatedWindow]] = deque()
        for window in windows:
            try:
                started.append(translator.start(window))
            except UserError:
                while started:  # write the output before the window that failed
                    yield started.popleft()()
                raise
            # Keep two windows of a file in flight. A pipe may block before the next window.
            if wait is not None or len(started) > 1:
                yield started.popleft()()
        while started:
            yield started.popleft()()
