"""The translation job: resume a partial output, split the input into windows, and write the output with progress."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from time import monotonic

from nmt.keep.translator import Fallbacks
from nmt.logs import ProgressBar, counted, format_duration, progress, say, warn
from nmt.processes.interruption import Interrupted, interruptible
from nmt.recipe import CommandError, UserError
from nmt.storage.model_metadata import read_model_metadata
from nmt.storage.run_folder import find_model
from nmt.streams.context import whole_documents
from nmt.streams.output import Output, Stream
from nmt.streams.part import InputDigest, Origin, PartFile
from nmt.streams.records import DOCUMENT_FORMATS, Record, warn_of_format
from nmt.streams.source import Source
from nmt.streams.term_report import TermReport
from nmt.streams.windows import (
    GPU_FACTOR,
    MAX_WINDOW,
    MAX_WINDOW_CHARACTERS,
    SINGLE_PROCESS_WINDOW,
    split_windows,
    window_of_file,
)
from nmt.streams.workers import LineCounts, Load, TranslatedWindow, Workers
from nmt.text.lines import is_csv_quoted, is_header, read_lines
from nmt.text.splitting import contains_phrase

_MOSES = re.compile(r"[0-9]+ \|\|\| ")
_SCORE = re.compile(r"-?\d+\.\d{4}\t")
_ENCODING = re.compile(r"""<(?:meta|\?xml)\b[^<>]*\b(?:charset|encoding)\s*=\s*["']?([\w-]+)""", re.IGNORECASE)
_LONE_SURROGATE = re.compile(r"(?i)\\ud[89ab]..(?!\\ud[c-f])|(?<!\\ud[89ab]..)\\ud[c-f]")  # escaped in JSON


@dataclass(frozen=True)
class TranslationJob:
    """Translates a source to an output.

    window:    lines that are translated together; None chooses the number from the input
    max_delay: seconds that a line of a pipe waits for further lines
    models:    paths of the models, for the final message
    note:      description of the engine, for the final message
    started:   start of the command by `time.monotonic`
    memory:    the translation memory, for the final message
    """

    source: Source
    output: Output
    origin: Origin
    report: TermReport
    load: Load
    window: int | None
    max_delay: float
    models: Sequence[Path]
    note: str
    started: float
    memory: Path | None = None

    def run(self, start_workers: AbstractContextManager[Workers], *, resume: bool, restart: bool) -> None:
        """Translate the whole input.

        Raises Interrupted after a signal; the message says how to resume if there is a partial output.
        """
        with interruptible(), start_workers as workers:
            if workers.size > 1 and self.source.pipe is not None:
                raise UserError(
                    f"{self.source.name} cannot be read by {workers.size} processes; under torchrun the input must be "
                    "a file; save its content to a file"
                )
            count = self.source.check()
            self.output.require_resumable(self.source.reader.format, resume=resume, restart=restart)
            if resume and workers.max(int(workers.is_main and self._is_complete(count))):
                return
            opened = self._open_output(resume=resume, restart=restart) if workers.is_main else nullcontext()
            with opened as sink:
                summarize = self._translate(workers, count, sink)
            if summarize is not None:  # after the output is complete, in case stderr is closed
                summarize()

    def _missing_format(self) -> str:
        """Return the expected format of the complete output if its first nonblank line is in another format."""
        line = next(filter(None, read_lines(self.output.path)), "")
        kind, has_scores = self.origin.facts.get("output format"), self.origin.facts.get("with-scores")
        is_json = line.lstrip().startswith("{") and '"translation"' in line
        if not line:
            return ""
        if self.output.is_numbered:
            expected = "a Moses n-best list" if kind == "moses" else "an n-best list with tabs"
            return "" if bool(_MOSES.match(line)) == (kind == "moses") else expected
        if kind == "jsonl":
            return "" if is_json else "JSON Lines"
        if kind == "tsv":
            return "" if "\t" in line else "TSV"
        if has_scores:
            return "" if _SCORE.match(line) else "text with scores"
        return "text" if is_json or _SCORE.match(line) else ""

    @contextmanager
    def _open_output(self, *, resume: bool, restart: bool) -> Iterator[PartFile | Stream]:
        """Open the output; the message of an interruption says how to resume."""
        sink: PartFile | Stream | None = None
        try:
            with self.output.open(self.origin, resume=resume, restart=restart) as sink:
                yield sink
        except Interrupted as error:
            if not isinstance(sink, PartFile) or not sink.records:
                raise
            raise Interrupted(
                f"interrupted; {sink.path} has the first {counted(sink.records, 'line')}; to continue, add --resume "
                "to the command",
                error.status,
            ) from error

    def _is_complete(self, count: int | None) -> bool:
        """Return whether the output is complete; if so, log this.

        Raises UserError if a complete output has another format, or another number of records than the input.
        """
        done = self.output.count_finished()
        if done is None:
            return False
        if expected := "an n-best list" if done < 0 else self._missing_format():
            raise UserError(
                f"{self.output.path} is not {expected}; --resume needs an output with the same options; choose "
                "another output, or leave out --resume to replace it"
            )
        count = sum(1 for _ in self.source.records()) if count is None else count
        if done != count:
            raise UserError(
                f"{self.output.path} has {counted(done, 'line')}, {self.source.name} has {count:,}, and there is no "
                f"{self.output.part.name} to resume; use the same input, or leave out --resume to translate it again"
            )
        if self.report.path is not None and not self.report.path.exists():
            raise UserError(
                f"{self.output.path} is complete, but --glossary-report {self.report.path} does not exist; a report is "
                "written during translation; leave out --resume to translate again"
            )
        say(
            f"{self.output.path} is complete: {counted(done, 'line')}, as many as {self.source.name}; its model and "
            "options are not recorded; leave out --resume to translate it again"
        )
        return True

    def _translate(
        self, workers: Workers, count: int | None, sink: PartFile | Stream | None
    ) -> Callable[[], None] | None:
        """Translate the remaining records, and return the function that logs a summary.

        Only the first process has a `sink` and a summary.

        Windows of a file start where they would without an interruption, so batches are the same.
        """
        done = workers.max(sink.start.records if isinstance(sink, PartFile) else 0)
        records, digest = self.source.records(), InputDigest()
        digest.add(islice(records, done))
        if isinstance(sink, PartFile):
            sink.check_input(digest, self.source.description)
        first = [*islice(records, 1)] if done and self.source.reader.context.has_target else []
        if first and first[0].context is None:  # the marks of a pipe may be within documents
            raise CommandError(
                f"{self.output.part} ends within a document; to resume, this model needs the translations of its "
                "previous lines, which are not recorded; use --restart to start over"
            )
        wait = None if self.source.pipe is None else self.source.pipe.wait
        windows = self._windows(chain(first, records), count, workers)
        remaining = None if count is None else count - done
        if sink is None:
            for _ in workers.translate(self.load, windows, wait, remaining):
                raise AssertionError("only the first process yields results")
            return None
        digests: deque[str] = deque()
        windows = _with_digests(self._with_warnings(windows), digest, digests)
        with closing(workers.translate(self.load, windows, wait, remaining)) as results, self.report.open(done):
            return self._write(sink, results, digests, count, done, workers.device)

    def _with_warnings(self, windows: Iterator[list[Record]]) -> Iterator[list[Record]]:
        """Wrap the windows in iterators that warn of misread text and of conflicting options."""
        reader, facts, name = self.source.reader, self.origin.facts, self.source.name
        header = int(reader.names is not None)  # the header is not a record
        if reader.format == "text" and not reader.is_given:
            windows = _with_format_warning(windows, name)
        if reader.format == "html":
            windows = _with_encoding_warning(windows, name)
        if reader.format == "tsv":
            windows = _with_quote_warning(windows, name, header)
        if reader.format == "tsv" and reader.names is None:
            windows = _with_column_warnings(windows, name)
        if reader.format == "jsonl":
            windows = _with_field_warning(windows, name)
        forbidden = facts.get("decode.forbid", ())
        for phrase, value in facts.get("decode.bias", {}).items():
            if value > 0 and (found := _first_in(phrase, forbidden)):
                warn(f"bias prefers {phrase!r}, which contains the forbidden phrase {found!r}; remove one of them")
        windows = _with_forbidden_warnings(windows, forbidden, self._required, header)
        if read_model_metadata(find_model(self.models[0])).is_language_model:  # it continues blank lines, too
            return windows
        return _with_blank_line_warning(windows)

    def _required(self, record: Record) -> list[str | tuple[str, ...]]:
        """Return the phrases and terms that the translation of a record must contain."""
        facts = self.origin.facts
        requires_terms = facts.get("decode.glossary_mode") != "annotate" and "keep" not in facts
        glossary = record.glossary(self.source.glossary) if requires_terms else None
        terms = () if glossary is None else glossary.required(record.text or "")
        return [*facts.get("decode.require", ()), *record.required, *terms]

    def _windows(self, records: Iterator[Record], count: int | None, workers: Workers) -> Iterator[list[Record]]:
        """Split records into windows; count: lines of a file."""
        pipe, factor = self.source.pipe, GPU_FACTOR if workers.on_gpu else 1
        if pipe is not None:
            size = factor * MAX_WINDOW
        elif workers.splits_files:
            size = window_of_file(count or 0, on_gpu=workers.on_gpu)
        else:
            size = SINGLE_PROCESS_WINDOW
        wait, max_characters = None if pipe is None else pipe.wait, factor * MAX_WINDOW_CHARACTERS
        windows = split_windows(records, self.window or size, wait, self.max_delay, max_characters=max_characters)
        return whole_documents(windows) if self.source.reader.context.has_target and pipe is None else windows

    def _write(
        self,
        sink: PartFile | Stream,
        results: Iterator[TranslatedWindow],
        digests: deque[str],
        count: int | None,
        done: int,
        device: str,
    ) -> Callable[[], None]:
        """Write the results after `done` records, and return the function that logs a summary.

        digests: of the input up to the end of each window
        """
        is_document = self.source.reader.format in DOCUMENT_FORMATS  # without marks, because it cannot be resumed
        lines, tokens, done_before = LineCounts(), 0, done
        header = "" if done else self.output.header  # comes with the first result, after the model is loaded
        fallbacks: Fallbacks | None = None
        try:
            with _progress_bar(count, self.source.is_terminal, done) as bar:
                for result in results:
                    self.report.add(result.terms)
                    done += result.num_lines
                    sink.write(header + result.text, 0 if is_document else done, digests.popleft())
                    header = ""
                    lines, tokens = lines + result.lines, tokens + result.tokens
                    if result.fallbacks:
                        fallbacks = result.fallbacks + (fallbacks or Fallbacks())
                    bar.advance(result.num_lines)
                if header:
                    sink.write(header, 0, "")
        except Interrupted:
            if isinstance(sink, PartFile) and not is_document:  # a resumed command counts only its own lines
                self._report_lines(lines, fallbacks)
            raise
        if not done:
            warn(f"{self.source.name} is empty, so the output is empty; check the input")
        if done_before:
            say(f"the first {counted(done_before, 'line')} were translated earlier; warnings count only the others")
        return partial(self._summarize, lines, fallbacks, done - done_before, tokens, device)

    def _summarize(
        self, lines: LineCounts, fallbacks: Fallbacks | None, translated: int, tokens: int, device: str
    ) -> None:
        self._report_lines(lines, fallbacks)
        self.report.log()
        seconds = monotonic() - self.started
        speed = f"{translated / seconds:,.1f} lines/s, {tokens / seconds:,.0f} tokens/s"
        took = f"{counted(translated, 'line')} in {format_duration(seconds)} ({speed})"
        again = f"; {counted(lines.reused, 'line')} reused from {self.memory} or repeated"
        models = " + ".join(map(str, self.models))
        say(f"translated {took} with {models} on {device}; {self.note}{again if self.memory is not None else ''}")

    def _report_lines(self, lines: LineCounts, fallbacks: Fallbacks | None) -> None:
        self._warn_of_long(lines)
        if fallbacks:
            say(fallbacks.describe())
        if fallbacks and fallbacks.unmet:
            warn(fallbacks.describe_unmet())

    def _warn_of_long(self, lines: LineCounts) -> None:
        facts, hint = self.origin.facts, "; if sentences are missing, use --split-sentences"
        hint = "" if facts.get("decode.split_sentences") else hint
        if lines.split:
            were, truncates = _were(lines.split), facts.get("decode.long_lines") == "truncate"
            result = "truncated" if truncates else f"translated in parts{hint}"
            warn(f"{counted(lines.split, 'line')} {were} too long for the model and {were} {result}")
        if lines.longer:
            warn(
                f"{counted(lines.longer, 'line')} {_were(lines.longer)} longer than any sentence of the training text; "
                f"check the translations{hint}"
            )


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def _have(number: int) -> str:
    return "has" if number == 1 else "have"


def _with_format_warning(windows: Iterator[list[Record]], name: str) -> Iterator[list[Record]]:
    """Yield the windows; warn if the first one looks like a format other than plain text."""
    for number, window in enumerate(windows):
        if not number:
            warn_of_format(name, (record.line for record in window))
        yield window


def _with_encoding_warning(windows: Iterator[list[Record]], name: str) -> Iterator[list[Record]]:
    """Yield the windows of a page; warn if it declares an encoding other than UTF-8, the encoding of the output."""
    has_warned = False
    for window in windows:
        for record in window:
            declared = _ENCODING.search(record.line)
            if not has_warned and declared and declared[1].lower() not in ("utf-8", "utf8"):
                has_warned = True
                warn(
                    f"{name} declares the encoding {declared[1]}, but the translation is UTF-8, so browsers may show "
                    "wrong letters; declare utf-8 in the page"
                )
        yield window


def _with_quote_warning(windows: Iterator[list[Record]], name: str, header: int) -> Iterator[list[Record]]:
    """Yield the windows of TSV; at the end, warn of texts that are quoted as in CSV, with doubled quotes inside.

    header: lines before the first record
    """
    number = first = 0
    for window in windows:
        for record in window:
            if record.text and is_csv_quoted(record.text):
                number, first = number + 1, first or record.number + header
        yield window
    if number:
        lines = f"{counted(number, 'line')} of {name} (first: line {first:,})"
        warn(f'{lines} {_have(number)} a quoted text with "" inside, as in CSV; TSV has no quoting: quotes are text')


def _with_column_warnings(windows: Iterator[list[Record]], name: str) -> Iterator[list[Record]]:
    """Yield the windows; warn if the first line looks like a header and, at the end, if numbers of columns differ.

    For TSV that is read without a header. Blank lines have no columns.
    """
    expected = unequal = first = 0
    for window in windows:
        for record in window:
            columns = record.line.split("\t")
            if record.number == 1 and is_header(record.text or "", columns):
                warn(f"{name}, line 1 looks like a header and is translated; set --header, or remove the line")
            if record.line:
                expected = expected or len(columns)
                if len(columns) != expected:
                    unequal, first = unequal + 1, first or record.number
        yield window
    if unequal:
        lines = f"{counted(unequal, 'line')} of {name} (first: line {first:,})"
        warn(
            f"{lines} {_have(unequal)} a different number of columns than the first line ({expected}), so the "
            "translations are in different columns; fix these lines"
        )


def _with_field_warning(windows: Iterator[list[Record]], name: str) -> Iterator[list[Record]]:
    """Yield the windows of JSON Lines; at the end, warn of lone surrogates and of fields that the output replaces."""
    number = first = invalid = first_invalid = 0
    fields: dict[str, None] = {}
    for window in windows:
        for record in window:
            if "\ufffd" in (record.text or "") and _LONE_SURROGATE.search(record.line):
                invalid, first_invalid = invalid + 1, first_invalid or record.number
            if record.replaced:
                number, first = number + 1, first or record.number
                fields |= dict.fromkeys(record.replaced)
        yield window
    if invalid:
        warn(
            f"{counted(invalid, 'line')} of {name} (first: line {first_invalid:,}) {_have(invalid)} half of a "
            "surrogate pair, such as \\ud83d alone, which is not a character; it was translated as U+FFFD; fix the text"
        )
    if number:
        names = ", ".join(map(repr, fields))
        warn(
            f"{counted(number, 'line')} of {name} (first: line {first:,}) {_have(number)} fields that the output "
            f"replaces: {names}; to keep them, rename them, or use --output-format text"
        )


def _with_blank_line_warning(windows: Iterator[list[Record]]) -> Iterator[list[Record]]:
    """Yield the windows; warn at the end if lines without text have prefixes or required phrases."""
    ignored = 0
    for window in windows:
        ignored += sum(bool(record.prefix.strip() or record.required) and not _has_text(record) for record in window)
        yield window
    if ignored:
        warn(
            f"{counted(ignored, 'blank line')} {_have(ignored)} a prefix or required phrases, which "
            "are ignored; the translation of a blank line is empty"
        )


def _with_forbidden_warnings(
    windows: Iterator[list[Record]],
    forbidden: Sequence[str],
    required: Callable[[Record], Sequence[str | tuple[str, ...]]],
    header: int,
) -> Iterator[list[Record]]:
    """Yield the windows; warn of forbidden phrases in required phrases at once, and of those in prefixes at the end.

    forbidden: phrases of all records
    required:  returns the required phrases and terms of a record
    header:    lines before the first record
    """
    number, first, is_impossible = 0, "", False
    for window in windows:
        for record in filter(_has_text, window):
            phrases = (*forbidden, *record.forbidden)
            if record.prefix and (found := _first_in(record.prefix, phrases, ignores_case=True)):
                number, first = number + 1, first or f"{found!r} in line {record.number + header:,}"
            if phrases and not is_impossible and (conflict := _conflict(required(record), phrases)):
                is_impossible = True  # the search will report that no translation is possible
                warn(f"line {record.number + header:,} requires {conflict}; remove one of them")
        yield window
    if number:
        warn(
            f"{counted(number, 'line')} {_have(number)} a prefix with a forbidden phrase (first: {first}; case is "
            "ignored); the prefix takes precedence; change one of them"
        )


def _conflict(required: Iterable[str | tuple[str, ...]], forbidden: Sequence[str]) -> str:
    """Describe the first required phrase all of whose alternatives contain a forbidden phrase; "" if there is none."""
    for item in required:
        alternatives = (item,) if isinstance(item, str) else item
        found = [_first_in(phrase, forbidden) for phrase in alternatives]
        if all(found):
            return f"{' or '.join(map(repr, alternatives))}, which contains the forbidden phrase {found[0]!r}"
    return ""


def _first_in(text: str, phrases: Iterable[str], *, ignores_case: bool = False) -> str:
    """Return the first of the phrases that a text contains; "" if there is none."""
    return next((phrase for phrase in phrases if contains_phrase(text, phrase, ignores_case=ignores_case)), "")


def _has_text(record: Record) -> bool:
    return bool(record.text and record.text.strip())


def _with_digests(windows: Iterator[list[Record]], digest: InputDigest, digests: deque[str]) -> Iterator[list[Record]]:
    """Yield the windows, and append to `digests` the digest of the input up to the end of each."""
    for window in windows:
        digest.add(window)
        digests.append(digest.hexdigest())
        yield window


@contextmanager
def _progress_bar(count: int | None, is_terminal: bool, done: int) -> Iterator[ProgressBar]:
    """Show progress on stderr, except for input that is typed at a terminal."""
    if is_terminal:
        yield ProgressBar.silent()
    else:
        with progress("translating", count, "lines", done=done) as bar:
            yield bar
