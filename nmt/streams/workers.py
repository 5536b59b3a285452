"""The processes that translate windows of the input and return the output in input order."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from nmt.decode.documents import document_rounds
from nmt.decode.glossary import Glossary
from nmt.decode.task import Previous, TranslatorInput
from nmt.decode.text_translator import TextTranslator
from nmt.decode.translation import Translation
from nmt.errors import MemoryFileError, UserError
from nmt.keep.translator import Fallbacks, PreservingTranslator
from nmt.streams.lost_items import LostItems
from nmt.streams.records import Record, RecordWriter
from nmt.streams.term_report import format_use
from nmt.streams.windows import Wait

if TYPE_CHECKING:
    from nmt.decode.memory import MemoryTranslator

AnyTranslator: TypeAlias = "TextTranslator | MemoryTranslator | PreservingTranslator"
_Constraints: TypeAlias = tuple[str | None, tuple[str, ...]]
_Finish: TypeAlias = Callable[[], dict[int, list[Translation]]]


@dataclass(frozen=True)
class Counts:
    """What was translated, for the final messages.

    lines:     see `Record.is_line`
    tokens:    of the best translations
    split:     lines longer than the maximum length of the model, see `decode.long_lines`
    longer:    lines that are not split, but longer than any sentence of the training text
    reused:    lines found in a translation memory, or equal to an earlier line of the same window
    fallbacks: of `PreservingTranslator`; None without it
    lost:      items that the translations lack
    """

    lines: int = 0
    tokens: int = 0
    split: int = 0
    longer: int = 0
    reused: int = 0
    fallbacks: Fallbacks | None = None
    lost: LostItems = field(default_factory=LostItems)

    def __add__(self, other: Counts) -> Counts:
        fallbacks = [counts.fallbacks for counts in (self, other) if counts.fallbacks]
        return Counts(
            self.lines + other.lines,
            self.tokens + other.tokens,
            self.split + other.split,
            self.longer + other.longer,
            self.reused + other.reused,
            sum(fallbacks, Fallbacks()) if fallbacks else None,
            self.lost + other.lost,
        )


@dataclass(frozen=True)
class TranslatedWindow:
    """The output of a window. terms: the uses of glossary terms, see `nmt.streams.term_report`"""

    text: str
    terms: str
    counts: Counts


@dataclass(frozen=True)
class WindowTranslator:
    """Translates the records of a window together and formats the output.

    glossary: applies to all records, in addition to their own terms
    recent:   the end of the previous window and its translations, for models with context on both sides
    """

    translator: AnyTranslator
    writer: RecordWriter
    glossary: Glossary | None = None
    recent: deque[Previous] = field(default_factory=deque)

    def __call__(self, window: list[Record]) -> TranslatedWindow:
        """Translate a window."""
        return self.start(window)()

    def start(self, window: list[Record]) -> Callable[[], TranslatedWindow]:
        """Start translating a window; the returned function waits for the result.

        Both raise UserError, with the line, if a line cannot be translated.
        """
        try:
            finish = self._start_window(window)
        except UserError as error:
            raise self._locate(window, error) from error

        def result() -> TranslatedWindow:
            try:
                return finish()
            except UserError as error:
                raise self._locate(window, error) from error

        return result

    def _locate(self, window: list[Record], error: UserError) -> UserError:
        """Use bisection to find the first line that fails, and return its error; `error` if no line fails alone."""
        if isinstance(error, MemoryFileError):  # does not depend on the line
            return error
        while len(window) > 1:
            half = window[: len(window) // 2]
            window = half if self._error_of(half) else window[len(half) :]
        line_error = self._error_of(window)
        if line_error is None:
            return error
        return UserError(f"{self.writer.reader.place(window[0])}: {line_error}")

    def _error_of(self, window: list[Record]) -> UserError | None:
        try:
            self._start_window(window)()
        except UserError as error:
            return error
        return None

    def _start_window(self, window: list[Record]) -> Callable[[], TranslatedWindow]:
        by_constraints = {(record.tag, record.forbidden): self._translator_for(record) for record in window}
        translators = list(by_constraints.values())
        before = _special_lines(translators)
        has_target = self.translator.context.has_target
        start = self._start_documents if has_target else self._start_records
        finish = start([record for record in window if record.has_translation], by_constraints)
        rest = {record.number: [Translation("", 0.0, 0.0, [])] for record in window if not record.has_translation}
        split, longer, reused = (now - then for now, then in zip(_special_lines(translators), before, strict=True))

        def result() -> TranslatedWindow:
            found = finish() | rest
            text = "".join(self.writer.write(record, found[record.number]) for record in window)
            tokens = sum(len(translations[0].pieces) for translations in found.values())
            terms = "".join(self._term_rows(record, found[record.number][0].text) for record in window)
            preserving = [item for item in translators if isinstance(item, PreservingTranslator)]
            fallbacks = sum((item.take_fallbacks() for item in preserving), Fallbacks()) if preserving else None
            num_lines = sum(record.is_line for record in window)
            pairs = ((record.text or "", found[record.number][0].text) for record in window)
            lost = LostItems.find(pairs, preserving[0].kinds if preserving else ())
            return TranslatedWindow(text, terms, Counts(num_lines, tokens, split, longer, reused, fallbacks, lost))

        return result

    def _start_records(self, records: Iterable[Record], translators: Mapping[_Constraints, AnyTranslator]) -> _Finish:
        """Start translating records, grouped by translator; results are keyed by record number."""
        groups: dict[_Constraints, list[Record]] = defaultdict(list)
        for record in records:
            groups[record.tag, record.forbidden].append(record)
        started = [
            (group, translators[constraints].start_translation(list(map(self._input_of, group))))
            for constraints, group in groups.items()
        ]

        def finish() -> dict[int, list[Translation]]:
            found: dict[int, list[Translation]] = {}
            for group, finish_group in started:
                found |= zip((record.number for record in group), finish_group(), strict=True)
            return found

        return finish

    def _start_documents(self, window: Sequence[Record], translators: Mapping[_Constraints, AnyTranslator]) -> _Finish:
        """Translate the records of each document in order, with their previous translations."""
        recent = deque(self.recent, maxlen=self.translator.context.size)
        documents: dict[int, deque[Previous]] = {}
        for record in window:
            if record.context is not None:
                recent = deque(record.context, maxlen=recent.maxlen)
            documents[record.number] = recent
        found: dict[int, list[Translation]] = {}
        for indices in document_rounds([record.context is None for record in window]):
            round_records = [window[i] for i in indices]
            with_previous = [replace(record, context=tuple(documents[record.number])) for record in round_records]
            found |= self._start_records(with_previous, translators)()
            for record in round_records:
                documents[record.number].append((record.text or "", found[record.number][0].text))
        self.recent.clear()
        self.recent.extend(recent)
        return lambda: found

    def _translator_for(self, record: Record) -> AnyTranslator:
        """Return the translator with the tag and the forbidden phrases of a record."""
        if record.tag is None and not record.forbidden:
            return self.translator
        return _with_constraints(self.translator, record.tag, record.forbidden)

    def _input_of(self, record: Record) -> TranslatorInput:
        glossary = record.glossary(self.glossary)
        return TranslatorInput(record.text or "", record.prefix, record.required, record.context or (), glossary)

    def _term_rows(self, record: Record, translation: str) -> str:
        source = record.text or ""
        glossary = record.glossary(self.glossary)
        if isinstance(self.translator, PreservingTranslator):
            glossary = self.translator.own_glossary(glossary, source)
            source = self.translator.without_tags(source)
            translation = self.translator.without_tags(translation)
        if glossary is None:
            return ""
        return "".join(format_use(record.number, use) for use in glossary.check(source, translation))


def _special_lines(translators: Sequence[AnyTranslator]) -> tuple[int, int, int]:
    """Return `lines_split`, `lines_longer` and `lines_reused`, each summed over these translators."""
    return (
        sum(translator.lines_split for translator in translators),
        sum(translator.lines_longer for translator in translators),
        sum(translator.lines_reused for translator in translators),
    )


@lru_cache(maxsize=32)
def _with_constraints(translator: AnyTranslator, tag: str | None, forbidden: tuple[str, ...]) -> AnyTranslator:
    return translator.with_constraints(tag, forbidden)


Load = Callable[[], WindowTranslator]


@dataclass(frozen=True, kw_only=True)
class Workers:
    """The processes that translate: only the current one, or several in a subclass.

    size:         processes of the job; all run the same command, and the first writes the output
    processes:    worker processes of each; None chooses the number from the line count of the file
    on_gpu:       whether windows must be large enough for GPU batches
    splits_files: whether small files are split into many windows, to have several per process
    """

    device: str = "cpu"
    size: int = 1
    processes: int | None = 1
    is_main: bool = True
    on_gpu: bool = False
    splits_files: bool = False

    def max(self, value: int) -> int:
        """Return the maximum of the values of all processes of the job."""
        return value

    def require_same(self, options: Mapping[str, Any]) -> None:
        """Raise UserError in each process of the job whose options (JSON values) differ from those of the first."""

    def translate(
        self, load: Load, windows: Iterator[list[Record]], wait: Wait | None, num_lines: int | None
    ) -> Generator[TranslatedWindow, None, None]:
        """Translate windows in order; only the first process of a job yields results.

        wait:      `PipeLines.wait` of the input pipe; None for a file
        num_lines: number of lines of the file; None for a pipe
        """
        translator = load()
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
