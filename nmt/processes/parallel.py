"""Ordered map over worker processes with bounded memory."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any, NoReturn, TypeVar

from nmt.errors import UserError
from nmt.processes.environment import same_import_path
from nmt.processes.interruption import EXIT_STATUS

Job = TypeVar("Job")
Result = TypeVar("Result")

# Jobs in flight per process: one running, and enough waiting to keep it busy.
_JOBS_PER_PROCESS = 3

# The worker function of a worker process, built once when it starts.
_worker: Callable[[Any], Any]


def map_in_order(
    make_worker: Callable[[], Callable[[Job], Result]],
    jobs: Iterable[Job | None],
    num_processes: int,
    *,
    option: str = "data.workers",
) -> Generator[Result, None, None]:
    """Yield the results of `jobs` in order, computed by `num_processes` processes, or in this process if that is 1.

    After an error, Ctrl-C or an early close of the iterator, all workers exit at once, even in the middle of a job.

    Args:
        make_worker: builds the worker function, once per process; must be picklable.
        jobs: inputs of the worker function. None is not a job: all pending results are yielded before the next
            job is read, because reading it may block.
        option: the option that sets the number of processes, for the error message.

    Raises:
        UserError: a worker died, or none can start. Exceptions of a worker and of `make_worker` propagate.
    """
    if num_processes == 1:
        yield from map(make_worker(), (job for job in jobs if job is not None))
        return
    context = _context(_modules(make_worker))
    # Nothing is sent over this pipe. Workers exit when its writer closes, as it does when this process dies.
    reader, writer = context.Pipe(duplex=False)
    try:
        executor = ProcessPoolExecutor(num_processes, context, _start_worker, (make_worker, reader))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise UserError(
            "/dev/shm, the shared memory of the worker processes, is full or too small; free some of it, enlarge it "
            f"(docker run --shm-size=64m), or set {option} to 1"
        ) from error
    workers = executor._processes  # the pool drops it when it ends
    pending: deque[Future[Result]] = deque()
    try:
        for job in jobs:
            if job is None:
                max_pending = 0
            else:
                pending.append(_submit(executor, job, option))
                max_pending = num_processes * _JOBS_PER_PROCESS - 1
            while len(pending) > max_pending:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool as error:
        executor.shutdown(cancel_futures=True)  # sends SIGTERM to the other workers, and waits
        raise _death([worker.exitcode for worker in workers.values()], option) from error
    except BaseException:
        writer.close()
        _close_results(executor)
        raise
    finally:
        executor.shutdown(cancel_futures=True)
        writer.close()
        reader.close()


def _submit(executor: ProcessPoolExecutor, job: Any, option: str) -> Future[Any]:
    """Submit a job, which may start a worker; raise UserError if the fork server has ended."""
    try:
        with _signals_deferred():
            return executor.submit(_work, job)
    except (EOFError, ConnectionError) as error:
        raise _death([], option) from error


def _death(statuses: Iterable[int | None], option: str) -> UserError:
    """Return the error for a worker that died. statuses: of all workers; the negative ones are signals"""
    if -signal.SIGKILL in statuses:
        return UserError(
            "the system killed a worker process, probably for lack of memory; workers must not be killed; "
            f"set {option} to a lower number"
        )
    # The pool sends SIGTERM to the other workers. 255 means that the fork server ended without reporting the status.
    known = next((status for status in statuses if status not in (None, 0, 255, -signal.SIGTERM)), None)
    end = "" if known is None else f" with exit status {known if known > 0 else 128 - known}"
    return UserError(f"a worker process ended{end}; the lines above may say why; correct that, or set {option} to 1")


def _close_results(executor: ProcessPoolExecutor) -> None:
    """Close this process's copy of the write end of the result pipe.

    The thread of the pool waits for the rest of a result. If its worker exited while writing, the wait ends only when
    no process can write to the pipe anymore. The pool has no public function for this.
    """
    result_queue = getattr(executor, "_result_queue", None)
    writer = getattr(result_queue, "_writer", None)
    if writer is not None:
        writer.close()


def _context(modules: Iterable[str]) -> BaseContext:
    """Return a context that does not fork this process, because a fork does not copy its threads.

    A fork server imports `modules` once for all workers. Only the modules of the worker are imported: torch takes
    seconds and 200 MB, and text workers do not need it. Without a fork server, workers are spawned.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(modules))
    # Ctrl-C and the loss of the terminal reach every process of a terminal; only this process handles them. Children
    # inherit the blocked signals.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        with same_import_path():
            # Start the resource tracker first: otherwise the server starts it, and starting it unblocks SIGINT.
            resource_tracker.ensure_running()
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return context


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Defer signals that end a command: a worker that is still starting when the pool ends prints a traceback."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        # This first runs the handlers of signals that have arrived, which may raise.
        signal.pthread_sigmask(signal.SIG_BLOCK, EXIT_STATUS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _modules(worker: Any) -> Iterator[str]:
    """Yield the modules of this package that define `worker`; for a partial, those of its function and arguments."""
    if isinstance(worker, partial):
        for inner in (worker.func, *worker.args, *worker.keywords.values()):
            yield from _modules(inner)
    elif getattr(worker, "__module__", "").split(".")[0] == __name__.split(".")[0]:
        yield worker.__module__


def _start_worker(make_worker: Callable[[], Callable[[Any], Any]], pipe: Connection) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # for spawned workers
    threading.Thread(target=_exit_with_parent, args=(pipe,), daemon=True).start()
    try:
        _worker = make_worker()
    except Exception as error:
        # Raised by each job. The pool would print a traceback and report only that it is broken.
        _worker = partial(_raise, error)
    # Collecting these permanent objects would take 0.1 s and copy the pages shared with the fork server.
    gc.freeze()


def _work(job: Any) -> Any:
    return _worker(job)


def _raise(error: Exception, job: Any) -> NoReturn:
    raise error


def _exit_with_parent(pipe: Connection) -> None:
    """Exit when the parent closes its end of the pipe: it died, or needs no more results."""
    with suppress(EOFError, OSError):
        pipe.recv_bytes()
    os._exit(1)
