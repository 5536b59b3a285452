"""Many processes, one order: a map over chunks of work that keeps them in sequence and holds few at a time."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any, TypeVar

from nmt.recipe import UserError

Job = TypeVar("Job")
Result = TypeVar("Result")

# Jobs handed out for each process: one that it works on, and others so that it never waits.
_JOBS_PER_PROCESS = 3

# What a worker process does with a job; made once in each process when it starts.
_worker: Callable[[Any], Any]


def map_in_order(
    make_worker: Callable[[], Callable[[Job], Result]],
    jobs: Iterable[Job | None],
    num_processes: int,
    *,
    option: str = "data.workers",
) -> Generator[Result, None, None]:
    """The results of the jobs, in their order; `make_worker` is called once in each process and must be picklable.

    With one process all is done in this one. Only a few jobs for each process are in memory at any time. A job of None
    is none: it says that the next may be long in coming, so that all results so far are given first. Raises what a
    worker raises, and UserError when the system ends a worker; `option` is where the user sets the number of processes.
    After an error, after Ctrl-C and when the iterator is closed early, all workers end at once, in the middle of a job.
    """
    if num_processes == 1:
        yield from map(make_worker(), (job for job in jobs if job is not None))
        return
    context = _context(_modules(make_worker))
    # Nothing is ever sent. What the workers wait for is the end that comes when this process closes it, or ends.
    end, own = context.Pipe(duplex=False)
    executor = ProcessPoolExecutor(num_processes, context, _start_worker, (make_worker, end))
    waiting: deque[Future[Result]] = deque()
    try:
        for job in jobs:
            if job is not None:
                waiting.append(executor.submit(_work, job))
            while len(waiting) >= (num_processes * _JOBS_PER_PROCESS if job is not None else 1):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        own.close()
        reason = "a worker process was ended by the system, most likely for lack of memory"
        raise UserError(f"{reason}; it must be left to run; set {option} to less than {num_processes}") from error
    except BaseException:
        own.close()
        raise
    finally:
        executor.shutdown(cancel_futures=True)
        own.close()
        end.close()


def num_cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _context(modules: Iterable[str]) -> BaseContext:
    """How worker processes come into being: never as a fork of this process, whose threads would be lost in it.

    Forks of a server that has imported the modules once start at no cost; where there is no such server, new
    interpreters import them each for itself. The modules are those that the first workers need and no more: torch, of
    which those for text need nothing, takes seconds and 200 MB.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(modules))
    # Ctrl-C goes to all processes of a terminal; this one alone answers it. What is blocked here stays so in children.
    # The tracker comes first: its start, which the server's would include, ends by unblocking Ctrl-C.
    resource_tracker.ensure_running()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return context


def _modules(part: Any) -> Iterator[str]:
    """The modules of this program in which a function, or an object given to a partial one, is defined."""
    if isinstance(part, partial):
        for inner in (part.func, *part.args, *part.keywords.values()):
            yield from _modules(inner)
    elif getattr(part, "__module__", "").split(".")[0] == __name__.split(".")[0]:
        yield part.__module__


def _start_worker(make_worker: Callable[[], Callable[[Any], Any]], end: Connection) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where there is no server that blocks it
    threading.Thread(target=_wait_for_end, args=(end,), daemon=True).start()
    _worker = make_worker()
    # What a worker has by now it keeps. To search all that for garbage takes a tenth of a second, and copies the pages
    # that it shares with the process from which it was forked.
    gc.freeze()


def _work(job: Any) -> Any:
    return _worker(job)


def _wait_for_end(end: Connection) -> None:
    """End this process when its parent has closed the other end: the parent was killed, or wants no more results."""
    with suppress(EOFError, OSError):
        end.recv_bytes()
    os._exit(1)
