"""The translation job: resume a partial output, split the input into windows, and write the output with progress."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from time import monotonic

from nmt.errors import CommandError, UserError
from nmt.logs import counted, format_duration, progress, say, warn
from nmt.processes.interruption import Interrupted, interruptible
from nmt.storage.model_metadata import ModelMetadata
from nmt.streams.input_warnings import with_warnings
from nmt.streams.output import Output, Stream
from nmt.streams.part import InputDigest, Origin, PartFile
from nmt.streams.records import DOCUMENT_FORMATS, Record
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
from nmt.streams.workers import Counts, Load, TranslatedWindow, Workers
from nmt.text.lines import read_lines

_MOSES = re.compile(r"[0-9]+ \|\|\| ")
_SCORE = re.compile(r"-?\d+\.\d{4}\t")


@dataclass(frozen=True)
class TranslationJob:
    """Translates a source to an output.

    window:    lines that are translated together; None chooses the number from the input
    max_delay: seconds that a line of a pipe waits for further lines
    models:    paths of the models, for the final message
    metadata:  of the first model
    note:      description of the engine, for the final message
    started:   start time of the command, from `time.monotonic`
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
    metadata: ModelMetadata
    note: str
    started: float
    memory: Path | None = None

    def run(self, start_workers: AbstractContextManager[Workers], *, resume: bool, restart: bool) -> None:
        """Translate the whole input.

        Raises Interrupted after a signal; the message says how to resume if there is a partial output.
        """
        with interruptible(), start_workers as workers:
            if self.source.pipe is not None:
                self._require_pipe_support(workers)
            states = self.source.file_states()
            count = self.source.check()
            if workers.size > 1:  # each process reads the input, and translates a part of it
                digest = InputDigest()
                digest.add(self.source.records())
                workers.require_same({**self.origin.settings, "input": digest.hexdigest()})
            self.output.require_resumable(self.source.reader.format, resume=resume, restart=restart)
            if resume and workers.max(int(workers.is_main and self._is_complete(count))):
                return
            opened = self._open_output(resume=resume, restart=restart) if workers.is_main else nullcontext()
            with opened as sink:
                counts = self._translate(workers, count, sink)
                if workers.is_main:
                    self._require_unchanged(states, sink, resume=resume)
            if counts is not None:  # after the output is complete, in case stderr is closed
                self._summarize(counts, workers.device)

    def _require_pipe_support(self, workers: Workers) -> None:
        """Raise UserError if these processes cannot translate a pipe."""
        if workers.size > 1:
            raise UserError(
                f"{self.source.name} cannot be read by {workers.size} processes; under torchrun the input must be "
                "a file; save its content to a file"
            )
        if (workers.processes or 1) > 1 and self.source.reader.context.has_target:
            raise UserError(
                "several processes cannot translate a pipe with this model, which needs the translations of "
                "previous lines; translate a file, or leave out --processes"
            )

    def _require_unchanged(
        self, states: Mapping[Path, object], sink: PartFile | Stream | None, *, resume: bool
    ) -> None:
        """Raise UserError if a file of the input changed during translation. states: `Source.file_states` before"""
        changed = [path for path, state in self.source.file_states().items() if states.get(path) != state]
        if not changed:
            return
        remedy = "rerun the command"
        if isinstance(sink, PartFile) and self.source.reader.format not in DOCUMENT_FORMATS and not resume:
            remedy += " with --resume, which fails if translated lines have changed, or with --restart"
        raise UserError(
            f"{changed[0]} changed during translation, so the translations may be those of old and new lines; it must "
            f"stay the same; {remedy}"
        )

    def _mismatched_format(self) -> str:
        """Return the expected format of the complete output if its first nonempty line has another one, else ""."""
        line = next(filter(None, read_lines(self.output.path)), "")
        if not line:
            return ""
        kind = self.origin.settings.get("output format")
        is_moses = _MOSES.match(line) is not None
        is_json = line.lstrip().startswith("{") and '"translation"' in line
        has_scores = _SCORE.match(line) is not None
        if kind == "moses":
            expected, is_expected = "a Moses n-best list", is_moses
        elif self.output.is_numbered:
            expected, is_expected = "an n-best list with tabs", not is_moses
        elif kind == "jsonl":
            expected, is_expected = "JSON Lines", is_json
        elif kind == "tsv":
            expected, is_expected = "TSV", "\t" in line
        elif self.origin.settings.get("with-scores"):
            expected, is_expected = "text with scores", has_scores
        else:
            has_columns = "\t" in line and not self.origin.settings.get("decode.alignments")
            expected, is_expected = "text", not (is_json or has_scores or is_moses or has_columns)
        return "" if is_expected else expected

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
            how = "rerun the command" if resume else "add --resume to the command"
            if restart:
                how = "replace --restart with --resume"
            raise Interrupted(
                f"interrupted; {sink.path} has the first {counted(sink.records, 'line')}; to continue, {how}",
                error.status,
            ) from error

    def _is_complete(self, count: int | None) -> bool:
        """Return whether the output is complete; if so, log this.

        Raises UserError if a complete output has a different format, a different number of records than the input, or
        no glossary report although one is requested.
        """
        done = self.output.count_finished()
        if done is None:
            return False
        expected = "an n-best list" if done < 0 else self._mismatched_format()
        if expected:
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

    def _translate(self, workers: Workers, count: int | None, sink: PartFile | Stream | None) -> Counts | None:
        """Translate the remaining records. Only the first process has a `sink`, and returns counts.

        Windows of a file start where they would without an interruption, so batches are the same.
        """
        done = workers.max(sink.start.records if isinstance(sink, PartFile) else 0)
        records = self.source.records()
        digest = InputDigest()
        digest.add(islice(records, done))
        if isinstance(sink, PartFile):
            sink.check_input(digest, self.source.description)
        if done and self.source.reader.context.has_target:
            records = self._at_document_start(records)
        wait = None if self.source.pipe is None else self.source.pipe.wait
        windows = self._windows(records, count, workers)
        remaining = None if count is None else count - done
        if sink is None:
            for _ in workers.translate(self.load, windows, wait, remaining):
                raise AssertionError("only the first process yields results")
            return None
        digests: deque[str] = deque()
        windows = with_warnings(
            windows, self.source, self.origin.settings, is_language_model=self.metadata.is_language_model
        )
        windows = _with_digests(windows, digest, digests)
        with closing(workers.translate(self.load, windows, wait, remaining)) as results, self.report.open(done):
            return self._write(sink, results, digests, count, done)

    def _at_document_start(self, records: Iterator[Record]) -> Iterator[Record]:
        """Return the remaining records; raises CommandError if they start within a document, as pipes may."""
        first = next(records, None)
        if first is None:
            return records
        if first.context is None:
            raise CommandError(
                f"{self.output.part} ends within a document; to resume, this model needs the translations of its "
                "previous lines, which are not recorded; use --restart to start over"
            )
        return chain([first], records)

    def _windows(self, records: Iterator[Record], count: int | None, workers: Workers) -> Iterator[list[Record]]:
        """Split records into windows; count: lines of a file."""
        pipe = self.source.pipe
        factor = GPU_FACTOR if workers.on_gpu else 1
        if pipe is not None:
            size = factor * MAX_WINDOW
        elif workers.splits_files:
            size = window_of_file(count or 0, on_gpu=workers.on_gpu)
        else:
            size = factor * SINGLE_PROCESS_WINDOW
        return split_windows(
            records,
            self.window or size,
            None if pipe is None else pipe.wait,
            self.max_delay,
            max_characters=factor * MAX_WINDOW_CHARACTERS,
            whole_documents=pipe is None and self.source.reader.context.has_target,
        )

    def _write(
        self,
        sink: PartFile | Stream,
        results: Iterator[TranslatedWindow],
        digests: deque[str],
        count: int | None,
        done_before: int,
    ) -> Counts:
        """Write the results after `done_before` records, and return their counts.

        digests: of the input up to the end of each window
        """
        is_document = self.source.reader.format in DOCUMENT_FORMATS  # without marks, because it cannot be resumed
        counts = Counts()
        header = "" if done_before else self.output.header  # comes with the first result, after the model is loaded
        try:
            with progress("translating", count, "lines", done=done_before, silent=self.source.is_terminal) as bar:
                for result in results:
                    self.report.add(result.terms)
                    done = done_before + counts.lines + result.counts.lines
                    sink.write(header + result.text, 0 if is_document else done, digests.popleft())
                    header = ""
                    counts += result.counts
                    bar.advance(result.counts.lines)
                if header:
                    sink.write(header, 0, "")
        except Interrupted:
            if isinstance(sink, PartFile) and not is_document:  # a resumed command counts only its own lines
                self._report_lines(counts)
            raise
        if not done_before + counts.lines:
            warn(f"{self.source.name} has no lines to translate; check the input")
        if done_before:
            first = f"the first {counted(done_before, 'line')} {_were(done_before)} translated earlier"
            say(f"{first}; warnings count only the others")
        return counts

    def _summarize(self, counts: Counts, device: str) -> None:
        self._report_lines(counts)
        self.report.log()
        seconds = monotonic() - self.started
        speed = f"{counts.lines / seconds:,.1f} lines/s, {counts.tokens / seconds:,.0f} tokens/s"
        took = f"{counted(counts.lines, 'line')} in {format_duration(seconds)} ({speed})"
        models = " + ".join(map(str, self.models))
        reused = f"; {counted(counts.reused, 'line')} reused from {self.memory} or repeated" if self.memory else ""
        say(f"translated {took} with {models} on {device}; {self.note}{reused}")

    def _report_lines(self, counts: Counts) -> None:
        """Warn of lines with problems."""
        self._warn_of_long(counts)
        # Summaries and continuations of a language model need not have the items.
        is_translation = not self.metadata.is_language_model and self.metadata.src_lang != self.metadata.tgt_lang
        if counts.lost.lines and is_translation:
            kept = self.origin.settings.get("keep", "")
            warn(counts.lost.describe(kept.split(",") if kept else []))
        if counts.fallbacks:
            say(counts.fallbacks.describe())
            if counts.fallbacks.unmet:
                warn(counts.fallbacks.describe_unmet())

    def _warn_of_long(self, counts: Counts) -> None:
        settings = self.origin.settings
        is_hinted = not settings.get("decode.split_sentences") and not settings.get("decode.trees")
        hint = "; if sentences are missing, use --split-sentences" if is_hinted else ""
        if counts.split:
            were = _were(counts.split)
            result = "truncated" if settings.get("decode.long_lines") == "truncate" else f"translated in parts{hint}"
            warn(f"{counted(counts.split, 'line')} {were} too long for the model and {were} {result}")
        if counts.longer:
            warn(
                f"{counted(counts.longer, 'line')} {_were(counts.longer)} longer than any sentence of the training "
                f"text; check the translations{hint}"
            )


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def _with_digests(windows: Iterator[list[Record]], digest: InputDigest, digests: deque[str]) -> Iterator[list[Record]]:
    """Yield the windows, and append to `digests` the digest of the input up to the end of each."""
    for window in windows:
        digest.add(window)
        digests.append(digest.hexdigest())
        yield window
