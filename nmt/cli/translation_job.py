"""The work of `nmt translate`, whoever does it: what is done already, what is to be done, and by which processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from nmt.cli.answers import Answer, Answering, Load, answer_in_turn, answer_with_processes
from nmt.cli.output import Output
from nmt.cli.records import Record, RecordWriter
from nmt.cli.source import Source
from nmt.cli.windows import (
    TIMES_ON_A_GPU,
    WIDEST_WINDOW,
    WINDOW_CHARACTERS,
    skip_done,
    window_of_file,
    windows,
)
from nmt.decode.translator import Translator
from nmt.distributed import World, start_world
from nmt.logs import ProgressBar, progress, say
from nmt.recipe import UserError


@dataclass(frozen=True)
class TranslationJob:
    """What is to be done, and by how many processes."""

    source: Source
    output: Output
    writer: RecordWriter
    load: Load
    window: int | None
    max_delay: float
    processes: int

    def run(self, device: str, *, resume: bool) -> None:
        """Translate all of the input, in this process and those that torchrun has started beside it."""
        with start_world(device) as world:
            self._check_processes(world)
            count = self.source.check()
            done, found = self._windows_to_do(world, count, resume)
            answers = self._answers(self.load(), found, world)
            if world.is_first:
                self._write(answers, count, done, append=resume)
            else:
                list(answers)  # it gets none, but does its part of the work for the first

    def _check_processes(self, world: World) -> None:
        if world.size > 1 and self.source.pipe is not None:
            raise UserError(
                f"{self.source.name} cannot be read by {world.size} processes; under torchrun the input must be a "
                "file; write it to one"
            )
        if self.processes > 1 and world.size > 1:
            raise UserError(
                f"--processes {self.processes} under torchrun, which has started {world.size}; it must be 1; leave it "
                "out, or torchrun"
            )
        if self.processes > 1 and world.device.type != "cpu":
            raise UserError(
                f"--processes {self.processes} is for the CPU, not for {world.device}; on several GPUs use torchrun; "
                "leave it out, or add --device cpu"
            )

    def _windows_to_do(self, world: World, count: int | None, resume: bool) -> tuple[int, Iterator[list[Record]]]:
        """How many records are done, and the windows of the others.

        Of a file, windows begin where they would without an interruption, so that the same batches are made.
        """
        done = self.output.records_done() if resume and world.is_first else 0
        done = world.max(done)
        if count is not None and done > count:
            raise UserError(
                f"{self.output.unfinished} has {done:,} translations and {self.source.name} only {count:,} lines; "
                "--resume needs the same input; remove the one or correct the other"
            )
        records, pipe = self.source.records(), self.source.pipe
        on_gpu = world.device.type == "cuda"
        most = WINDOW_CHARACTERS * (TIMES_ON_A_GPU if on_gpu else 1)
        if pipe is None:
            size = self.window or window_of_file(count or 0, on_gpu=on_gpu)
            done, found = skip_done(windows(records, size, most_characters=most), done)
        else:
            next(islice(records, done, done), None)
            size = self.window or (TIMES_ON_A_GPU if on_gpu else 1) * WIDEST_WINDOW
            found = windows(records, size, pipe.wait, self.max_delay, most_characters=most)
        if resume and world.is_first:
            self.output.cut(done)
        return done, found

    def _answers(self, translator: Translator, found: Iterator[list[Record]], world: World) -> Iterator[Answer]:
        if self.processes > 1:  # which load the model anew; that it was loaded here has shown that they can
            wait = None if self.source.pipe is None else self.source.pipe.wait
            return answer_with_processes(self.load, self.writer, found, wait, self.processes)
        answering = Answering(translator, self.writer)
        return answer_in_turn(answering, found, world) if world.size > 1 else map(answering, found)

    def _write(self, answers: Iterator[Answer], count: int | None, done: int, *, append: bool) -> None:
        lines_cut = 0
        with (
            self.output.open(append=append) as sink,
            _translation_bar(count, self.source.is_terminal, done) as bar,
        ):
            if self.writer.header and not done:
                sink.write(self.writer.header)
            for answer in answers:
                sink.write(answer.text)
                lines_cut += answer.lines_cut
                bar.advance(answer.count)
        if lines_cut:
            say(f"{lines_cut} lines were too long for the model and were translated in pieces")


@contextmanager
def _translation_bar(count: int | None, is_typed: bool, done: int) -> Iterator[ProgressBar]:
    """Progress on stderr, but not between the lines of a person who types."""
    if is_typed:
        yield ProgressBar.silent()
    else:
        with progress("translating", count, "lines", done=done) as bar:
            yield bar
