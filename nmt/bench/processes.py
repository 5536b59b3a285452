"""Translation by several processes at once, each with its own copy of the model and its share of the sentences."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from multiprocessing.connection import Connection
from time import perf_counter
from types import TracebackType
from typing import Any, Literal, assert_never, cast

from nmt.bench.decoding import (
    DecodedPass,
    DecodingBench,
    DecodingResult,
    DecodingTask,
    summarize_latencies,
)
from nmt.bench.statistics import Spread
from nmt.recipe import UserError

_Order = Literal["repeat", "forget", "memory"]


class DecodingProcesses:
    """Processes that translate their shares when told to, all at the same time; use it as a context manager.

    parameters: weights of one copy of the model; load_seconds: until the last process was ready
    """

    def __init__(self, task: DecodingTask, processes: int) -> None:
        """Start the processes; process i gets every `processes`-th sentence from the i-th on."""
        started = perf_counter()
        context = multiprocessing.get_context("spawn")  # a fork would lose the threads of this process
        self._pipes: list[Connection] = []
        self._processes = []
        for place in range(processes):
            ours, theirs = context.Pipe()
            share = replace(task, sentences=task.sentences[place::processes])
            process = context.Process(target=_serve, args=(share, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self.parameters = max(cast(int, self._answer(pipe)) for pipe in self._pipes)
        self.load_seconds = perf_counter() - started

    def __enter__(self) -> DecodingProcesses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for pipe in self._pipes:
            pipe.close()  # a process ends when nobody can tell it anything any more
        for process in self._processes:
            process.join()

    def run(self) -> DecodedPass:
        """Let all translate their shares; the clock runs until the last one is through."""
        started = perf_counter()
        tokens = sum(self._ask("repeat"))
        return DecodedPass(perf_counter() - started, tokens)

    def reset_peak_memory(self) -> None:
        """Count memory from here on, where that can be."""
        self._ask("forget")

    def peak_memory(self) -> int:
        """Most bytes so far, summed over the processes."""
        return sum(self._ask("memory"))

    def _ask(self, order: _Order) -> list[int]:
        for pipe in self._pipes:
            pipe.send(order)
        return [cast(int, self._answer(pipe)) for pipe in self._pipes]

    def _answer(self, pipe: Connection) -> Any:
        try:
            answer = pipe.recv()
        except EOFError as error:
            raise UserError(
                "a process that translates was ended, most likely for lack of memory; it must be left to run; "
                "start fewer processes"
            ) from error
        if isinstance(answer, str):
            raise UserError(answer)
        return answer


def measure_decoding(task: DecodingTask, *, processes: int, repetitions: int, latency: bool) -> DecodingResult:
    """Translate the sentences `repetitions` times, after once to warm up; several processes share them out.

    `latency` asks besides for the time of each sentence alone, of a single process.
    """
    if processes > 1:
        with DecodingProcesses(task, processes) as several:
            return _figures(several, task, repetitions)
    bench = DecodingBench(task)
    figures = _figures(bench, task, repetitions)
    return replace(figures, latencies=summarize_latencies(bench.latencies())) if latency else figures


def _figures(bench: DecodingBench | DecodingProcesses, task: DecodingTask, repetitions: int) -> DecodingResult:
    warm_up = bench.run()
    bench.reset_peak_memory()
    passes = [bench.run() for _ in range(repetitions)]
    return DecodingResult(
        parameters=bench.parameters,
        load_seconds=bench.load_seconds,
        warm_up_seconds=warm_up.seconds,
        sentences=len(task.sentences),
        tokens=passes[0].tokens,
        tokens_per_second=Spread.of([one.tokens / one.seconds for one in passes]),
        sentences_per_second=Spread.of([len(task.sentences) / one.seconds for one in passes]),
        peak_memory=bench.peak_memory(),
        latencies=None,
    )


def _obey(bench: DecodingBench, order: _Order) -> int:
    match order:
        case "repeat":
            return bench.run().tokens
        case "forget":
            bench.reset_peak_memory()
            return 0
        case "memory":
            return bench.peak_memory()
        case _:
            assert_never(order)


def _serve(task: DecodingTask, pipe: Connection) -> None:
    """Life of a process: load the model, then do as told until nobody is there to tell."""
    try:
        bench = DecodingBench(task)
        pipe.send(bench.parameters)
        while True:
            order: _Order = pipe.recv()
            pipe.send(_obey(bench, order))
    except EOFError:
        return
    except UserError as error:
        pipe.send(str(error))
