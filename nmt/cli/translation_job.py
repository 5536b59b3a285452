"""The work of `nmt translate`, whoever does it: what is done already, what is to be done, and by which processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from time import monotonic

from nmt.logs import ProgressBar, counted, format_duration, progress, say, warn
from nmt.processes.interruption import Interrupted, interruptible
from nmt.recipe import UserError
from nmt.streams.answers import Answer, Load, Team
from nmt.streams.output import Output, Stream
from nmt.streams.part import InputDigest, Origin, Part
from nmt.streams.records import Record, RecordWriter
from nmt.streams.source import Source
from nmt.streams.windows import (
    TIMES_ON_A_GPU,
    WIDEST_WINDOW,
    WINDOW_CHARACTERS,
    WINDOW_OF_ONE,
    window_of_file,
    windows,
)


@dataclass(frozen=True)
class TranslationJob:
    """What is to be done.

    models:  their paths, as said when all is done
    note:    what is said of the engine then
    started: when the command began, in seconds
    """

    source: Source
    output: Output
    origin: Origin
    writer: RecordWriter
    load: Load
    window: int | None
    max_delay: float
    models: str
    note: str
    started: float

    def run(self, start_team: AbstractContextManager[Team], *, resume: bool, restart: bool) -> None:
        """Translate all of the input, by this process and the others of its team.

        Raises Interrupted, which says how to continue, after Ctrl-C and SIGTERM.
        """
        with interruptible(), start_team as team:
            self._check_source(team)
            count = self.source.check()
            if restart:
                self.output.require_file("--restart")
            if resume:
                self.output.require_file()
                if team.max(int(team.is_first and self._is_complete(count))):
                    return
            with ExitStack() as stack:
                sink = None
                if team.is_first:
                    sink = stack.enter_context(self._opened(resume=resume, restart=restart))
                self._translate(team, count, sink)

    @contextmanager
    def _opened(self, *, resume: bool, restart: bool) -> Iterator[Part | Stream]:
        """The output; an interruption of the block becomes one that says how to continue."""
        sink: Part | Stream | None = None
        try:
            with self.output.open(self.origin, resume=resume, restart=restart) as sink:
                yield sink
        except Interrupted as error:
            if not isinstance(sink, Part) or not sink.records:
                raise
            lines = f"{sink.path} holds the first {sink.records:,} lines"
            raise Interrupted(
                f"interrupted; {lines}; to continue, add --resume to the command", error.status
            ) from error

    def _is_complete(self, count: int | None) -> bool:
        """Whether there is nothing to resume because the output is finished, which is said.

        Of a finished output nothing is known but how many records it has: UserError where these are not as many as
        those of the input.
        """
        done = self.output.count_finished()
        if done is None:
            return False
        count = sum(1 for _ in self.source.records()) if count is None else count
        if done != count:
            raise UserError(
                f"{self.output.path} has {done:,} lines, {self.source.name} has {count:,}, and there is no "
                f"{self.output.unfinished.name} to resume; give the same input, or leave out --resume to translate "
                "it again"
            )
        say(
            f"{self.output.path} is complete: {done:,} lines, as many as {self.source.name}; with which model and "
            "options it was made is not recorded; leave out --resume to translate it again"
        )
        return True

    def _translate(self, team: Team, count: int | None, sink: Part | Stream | None) -> None:
        """Translate what is not done; the first process alone has a `sink`.

        Of a file, windows begin where they would without an interruption, so that the same batches are made.
        """
        done = team.max(sink.start.records if isinstance(sink, Part) else 0)
        records, digest = self.source.records(), InputDigest()
        digest.add(islice(records, done))
        if isinstance(sink, Part):
            sink.check_input(digest, self.source.name)
        found = self._windows(records, count, team)
        if sink is None:
            list(self._answers(found, team))  # it gets none, but does its part of the work for the first
            return
        digests: deque[str] = deque()
        answers = self._answers(_with_digests(found, digest, digests), team)
        with closing(answers):
            self._write(sink, answers, digests, count, done, team.device)

    def _windows(self, records: Iterator[Record], count: int | None, team: Team) -> Iterator[list[Record]]:
        """The records in windows; `count` is how many a file has in all."""
        pipe, times = self.source.pipe, TIMES_ON_A_GPU if team.on_gpu else 1
        most = WINDOW_CHARACTERS * times
        if pipe is None:
            if not team.divides_files:
                return windows(records, self.window or WINDOW_OF_ONE, most_characters=most)
            size = self.window or window_of_file(count or 0, on_gpu=team.on_gpu)
            return windows(records, size, most_characters=most)
        return windows(records, self.window or times * WIDEST_WINDOW, pipe.wait, self.max_delay, most_characters=most)

    def _check_source(self, team: Team) -> None:
        if team.size > 1 and self.source.pipe is not None:
            raise UserError(
                f"{self.source.name} cannot be read by {team.size} processes; under torchrun the input must be a "
                "file; write it to one"
            )

    def _answers(self, found: Iterator[list[Record]], team: Team) -> Generator[Answer, None, None]:
        return team.answers(self.load, self.writer, found, None if self.source.pipe is None else self.source.pipe.wait)

    def _write(
        self,
        sink: Part | Stream,
        answers: Iterator[Answer],
        digests: deque[str],
        count: int | None,
        done: int,
        device: str,
    ) -> None:
        """Write the answers behind the records that are done; each has a digest of the input up to its end."""
        lines_cut, tokens, done_before = 0, 0, done
        with _translation_bar(count, self.source.is_terminal, done) as bar:
            if self.writer.header and not done:
                sink.write(self.writer.header, 0, "")
            for answer in answers:
                done += answer.count
                sink.write(answer.text, done, digests.popleft())
                lines_cut, tokens = lines_cut + answer.lines_cut, tokens + answer.tokens
                bar.advance(answer.count)
        if lines_cut:
            are = "was" if lines_cut == 1 else "were"
            warn(f"{counted(lines_cut, 'line')} {are} too long for the model and {are} translated in pieces")
        lines, seconds = done - done_before, monotonic() - self.started
        speed = f"{lines / seconds:,.1f} lines/s, {tokens / seconds:,.0f} tokens/s"
        took = f"{counted(lines, 'line')} in {format_duration(seconds)} ({speed})"
        say(f"translated {took} with {self.models} on {device}; {self.note}")


def _with_digests(found: Iterator[list[Record]], digest: InputDigest, digests: deque[str]) -> Iterator[list[Record]]:
    """The windows; `digests` gets for each that of the input up to its end."""
    for window in found:
        digest.add(window)
        digests.append(digest.hexdigest())
        yield window


@contextmanager
def _translation_bar(count: int | None, is_typed: bool, done: int) -> Iterator[ProgressBar]:
    """Progress on stderr, but not between the lines of a person who types."""
    if is_typed:
        yield ProgressBar.silent()
    else:
        with progress("translating", count, "lines", done=done) as bar:
            yield bar
