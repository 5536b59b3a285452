"""Ordered map over worker processes: results, errors, early ends, and what workers import."""

import errno
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from nmt.data.reused_tokenizers import reused_tokenizers
from nmt.errors import UserError
from nmt.processes import cores, parallel
from nmt.processes.cores import cores_per_process, num_cores
from nmt.processes.interruption import EXIT_STATUS
from nmt.processes.parallel import _modules, map_in_order
from nmt.recipe import TokenizerRecipe


class Squarer:
    """Squares numbers, even ones more slowly; also returns whether it was built outside the process `parent`."""

    def __init__(self, parent: int) -> None:
        self.elsewhere = os.getpid() != parent

    def __call__(self, number: int) -> tuple[int, bool]:
        time.sleep(0.02 if number % 2 == 0 else 0.0)
        return number**2, self.elsewhere


def failing_worker() -> Callable[[int], int]:
    return partial(divide, 1)


def divide(numerator: int, denominator: int) -> int:
    return numerator // denominator


def refusing_worker() -> Callable[[int], int]:
    return refuse


def refuse(number: int) -> int:
    raise UserError(f"number {number} is refused")


def ending_worker() -> Callable[[int], None]:
    return end_process


def end_process(status: int) -> None:
    """End this process, by a signal if the status is negative."""
    if status < 0:
        os.kill(os.getpid(), -status)
    os._exit(status)


@pytest.mark.slow
@pytest.mark.parametrize("num_processes", [1, 2])
def test_results_come_in_order(num_processes: int) -> None:
    results = list(map_in_order(partial(Squarer, os.getpid()), range(20), num_processes))
    assert [square for square, _ in results] == [number**2 for number in range(20)]
    assert all(elsewhere == (num_processes > 1) for _, elsewhere in results)


@pytest.mark.slow
def test_few_jobs_are_in_flight() -> None:
    taken = 0

    def jobs() -> Iterator[int]:
        nonlocal taken
        for number in range(100):
            taken += 1
            yield number

    results = map_in_order(partial(Squarer, os.getpid()), jobs(), 2)
    for done in range(1, 20):
        next(results)
        assert taken - done < 2 * 3  # three jobs per process
    results.close()


@pytest.mark.slow
@pytest.mark.parametrize("num_processes", [1, 2])
def test_errors_of_workers_are_raised(num_processes: int) -> None:
    with pytest.raises(ZeroDivisionError):
        list(map_in_order(failing_worker, [1, 0, 1], num_processes))
    with pytest.raises(UserError, match="number 7 is refused"):
        list(map_in_order(refusing_worker, [7], num_processes))


def missing_worker() -> Callable[[int], int]:
    raise UserError("the model is missing")


@pytest.mark.parametrize("num_processes", [1, 2])
def test_an_error_while_making_a_worker_is_raised(num_processes: int, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="the model is missing"):
        list(map_in_order(missing_worker, [1, 2], num_processes))
    assert capfd.readouterr().err == ""


def sleeping_worker() -> Callable[[float], int]:
    return sleep


def sleep(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def test_closing_the_iterator_ends_workers_at_once() -> None:
    started = time.monotonic()
    results = map_in_order(sleeping_worker, [0.0, *[60.0] * 5], 2)
    next(results)
    results.close()
    assert time.monotonic() - started < 30
    assert not multiprocessing.active_children()


def test_an_error_ends_workers_at_once() -> None:
    started = time.monotonic()
    with pytest.raises(UserError, match="number 7"):
        list(map_in_order(refusing_or_sleeping_worker, [7, 60], 2))
    assert time.monotonic() - started < 30
    assert not multiprocessing.active_children()


def refusing_or_sleeping_worker() -> Callable[[int], int]:
    return refuse_or_sleep


def refuse_or_sleep(number: int) -> int:
    return sleep(number) if number == 60 else refuse(number)


def frozen_counter() -> Callable[[int], int]:
    return count_frozen


def count_frozen(_: int) -> int:
    return gc.get_freeze_count()


@pytest.mark.slow
def test_workers_freeze_their_initial_objects() -> None:
    gc.unfreeze()
    assert min(map_in_order(frozen_counter, [1, 2], 2)) > 1000
    assert list(map_in_order(frozen_counter, [1, 2], 1)) == [gc.get_freeze_count()] * 2, "not in the user's process"
    assert gc.get_freeze_count() < 1000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (-signal.SIGKILL, "the system killed a worker process, probably for lack of memory; .* set --processes to a l"),
        (-signal.SIGABRT, "a worker process ended with exit status 134; .* set --processes to 1"),
        (9, "a worker process ended with exit status 9; the lines above may say why; .* set --processes to 1"),
    ],
)
def test_a_worker_that_ends_is_an_error(status: int, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        list(map_in_order(ending_worker, [status], 2, option="--processes"))


def test_too_little_shared_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "ProcessPoolExecutor", Mock(side_effect=OSError(errno.ENOSPC, "No space left")))
    with pytest.raises(UserError, match=r"/dev/shm, .* is full or too small; .* set data\.workers to 1"):
        list(map_in_order(ending_worker, [9], 2))


OTHER_MODULES = """
from nmt.processes.parallel import map_in_order
from tests.processes.test_parallel import frozen_counter
if __name__ == "__main__":
    list(map_in_order(frozen_counter, [1], 2))
"""


@pytest.mark.slow
def test_workers_do_not_import_from_the_working_directory(tmp_path: Path) -> None:
    script, folder = tmp_path / "script.py", tmp_path / "data"
    script.write_text(OTHER_MODULES)
    folder.mkdir()
    for module in ("random", "select", "nmt"):  # which the resource tracker, the fork server, and workers import
        (folder / f"{module}.py").write_text("raise SystemExit('imported')\n")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, script], env=environment, cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif("forkserver" not in multiprocessing.get_all_start_methods(), reason="no fork server here")
def test_a_fork_server_that_is_killed_while_workers_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    read_process_id = multiprocessing.forkserver.read_signed

    def end_of_pipe(sentinel: int) -> int:
        os.kill(read_process_id(sentinel), signal.SIGKILL)  # it would print a traceback
        raise EOFError("unexpected EOF")

    monkeypatch.setattr("multiprocessing.forkserver.read_signed", end_of_pipe)
    with pytest.raises(UserError, match="a worker process ended; the lines above may say why"):
        list(map_in_order(ending_worker, [9], 2))


@pytest.mark.parametrize("num_processes", [1, 2])
def test_none_yields_pending_results_before_the_next_job(num_processes: int) -> None:
    yielded: list[tuple[int, bool]] = []

    def jobs() -> Iterator[int | None]:
        yield 1
        yield 2
        yield None
        assert len(yielded) == 2, "both results must be yielded before the next job"
        yield 3

    for result in map_in_order(partial(Squarer, os.getpid()), jobs(), num_processes):
        yielded.append(result)
    assert [square for square, _ in yielded] == [1, 4, 9]


def test_no_jobs_give_no_results() -> None:
    assert list(map_in_order(failing_worker, [], 1)) == []


def test_num_cores_counts_the_cores_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1, 4, 5}, raising=False)
    assert num_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    assert num_cores() == 8


@pytest.mark.parametrize(("processes", "expected"), [(None, 4), ("", 4), ("3", 1), ("8", 1)])
def test_cores_are_distributed_among_the_processes_of_a_machine(
    processes: str | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "num_cores", lambda: 4)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if processes is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
    assert cores_per_process() == expected


@pytest.mark.parametrize("processes", ["0", "-1", "1.5", "two", "nan"])
def test_a_wrong_number_of_processes_is_a_one_line_error(processes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
    with pytest.raises(UserError, match=r"LOCAL_WORLD_SIZE is .*; it must be .*; correct or unset it") as caught:
        cores_per_process()
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_the_fork_server_starts_with_ctrl_c_blocked() -> None:
    """Ctrl-C during its start would print a traceback."""
    check = """
import signal
from multiprocessing import forkserver
from pathlib import Path
from nmt.processes.parallel import _context

if __name__ == "__main__":
    _context([])
    status = Path(f"/proc/{forkserver._forkserver._forkserver_pid}/status").read_text()
    blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
    children = [bool(blocked >> number - 1 & 1) for number in (signal.SIGINT, signal.SIGHUP)]
    print(children, signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""
    found = subprocess.run([sys.executable, "-c", check], check=True, capture_output=True, text=True).stdout
    assert found == "[True, True] set()\n"


@pytest.mark.slow
def test_text_workers_import_their_own_modules_and_no_torch() -> None:
    check = "import sys, nmt.cli, nmt.data.cleaning, nmt.data.sampling; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)
    make_worker = partial(partial(Squarer, parent=1), failing_worker, TokenizerRecipe())
    assert list(_modules(make_worker)) == ["nmt.recipe.sections"]  # this test module is not part of the package
    placed = partial(map_in_order, reused_tokenizers)  # type: ignore[arg-type]  # only its module matters
    assert list(_modules(placed)) == ["nmt.processes.parallel", "nmt.data.reused_tokenizers"]


@pytest.mark.slow
@pytest.mark.parametrize("number", EXIT_STATUS)
def test_a_signal_waits_until_workers_have_started(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted = []

    class Pool(ProcessPoolExecutor):
        def submit(self, *arguments: Any, **options: Any) -> Any:
            signal.raise_signal(number)
            submitted.append(super().submit(*arguments, **options))
            return submitted[-1]

    monkeypatch.setattr(parallel, "ProcessPoolExecutor", Pool)
    before = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(map_in_order(failing_worker, [1, 2], 2))
    finally:
        signal.signal(number, before)
    assert len(submitted) == 1


def _large_result(size: int) -> bytes:
    return bytes(size)


def _make_large_results() -> Callable[[int], bytes]:
    return _large_result


LARGE_RESULTS = """
import time
from nmt.processes.parallel import map_in_order
from tests.processes.test_parallel import _make_large_results
if __name__ == "__main__":
    for wait in (0.0, 0.01):
        results = map_in_order(_make_large_results, [60_000_000] * 8, 2)
        next(results)
        time.sleep(wait)
        results.close()
    print("closed")
"""


@pytest.mark.slow
def test_workers_that_exit_while_writing_a_result_do_not_block_the_pool(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(LARGE_RESULTS)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "closed\n", done.stderr
