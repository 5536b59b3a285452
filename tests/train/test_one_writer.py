"""One process at a time writes into the directory of a run."""

import errno
import json
import multiprocessing
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pytest import MonkeyPatch

from nmt import cli
from nmt.checkpoint import save_checkpoint
from nmt.errors import UserError
from nmt.processes.run_lock import LOCK_FILE, run_lock
from nmt.storage.sealed import write_directory, write_file
from nmt.train import trainer
from tests.calling import Nmt
from tests.forked import PROCESSES
from tests.train.changing_text import recipe as recipe

pytestmark = pytest.mark.usefixtures("no_curves")

ROOT = Path(__file__).resolve().parents[2]
LOCK_ONCE = """
import pathlib, sys
from nmt.processes.run_lock import run_lock
with run_lock(pathlib.Path(sys.argv[1])): pass
"""
LOCK_AND_WRITE_NAME_LATE = """
import fcntl, sys, time
file = open(sys.argv[1], "a+")
fcntl.lockf(file, fcntl.LOCK_EX)
print(flush=True)
time.sleep(0.3)
file.write("process 7")
file.flush()
time.sleep(600)
"""


def hold(run: Path, ready: Event) -> None:
    with run_lock(run):
        ready.set()
        time.sleep(600)


@contextmanager
def holding(run: Path) -> Iterator[BaseProcess]:
    """Start a process that holds the lock of a run; kill it at the end of a `with` block."""
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=hold, args=(run, ready))
    process.start()
    try:
        assert ready.wait(60)
        yield process
    finally:
        process.kill()
        process.join()


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[BaseProcess]:
    with holding(tmp_path / "run") as process:
        yield process


@pytest.mark.parametrize("command", ["train", "run", "prepare"])
def test_a_locked_run_is_rejected(command: str, recipe: Path, tmp_path: Path, holder: BaseProcess, nmt: Nmt) -> None:
    status, _, err = nmt(command, recipe, f"run_dir={tmp_path / 'run'}")
    assert status == 1
    assert f"is in use by process {holder.pid} on " in err and "choose another name" in err
    assert [path.name for path in (tmp_path / "run").iterdir()] == [LOCK_FILE]


def test_a_run_that_this_process_has_locked_is_rejected(tmp_path: Path) -> None:
    """The kernel's record locks belong to a process. Closing a second descriptor of the file would release them."""
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "run")
    message = "run is in use by another thread of this process; only"
    with run_lock(tmp_path / "run"):
        for path in (tmp_path / "run", link):
            with pytest.raises(UserError, match=message), run_lock(path):
                pass
        held = subprocess.run(
            [sys.executable, "-c", LOCK_ONCE, str(tmp_path / "run")], cwd=ROOT, capture_output=True, text=True
        )
        assert f"is in use by process {os.getpid()} on " in held.stderr
    with run_lock(tmp_path / "run"):
        pass


def test_another_thread_may_lock_a_run_while_a_file_is_written(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    samestat = os.path.samestat

    def slow(first: os.stat_result, second: os.stat_result) -> bool:
        monkeypatch.undo()
        thread = threading.Thread(target=other.__enter__)
        thread.start()
        thread.join()
        return samestat(first, second)

    with run_lock(tmp_path / "run"):
        other = run_lock(tmp_path / "other")
        monkeypatch.setattr("os.path.samestat", slow)
        write_file(tmp_path / "run" / "file", b"content")
        other.__exit__(None, None, None)
    assert (tmp_path / "run" / "file").read_bytes() == b"content"


@pytest.mark.slow
def test_one_of_many_concurrent_threads_locks_a_run(tmp_path: Path) -> None:
    num_threads, old_interval = 8, sys.getswitchinterval()
    start, end = threading.Barrier(num_threads), threading.Barrier(num_threads)
    results = queue.Queue[str]()

    def lock() -> None:
        start.wait(60)
        try:
            with run_lock(tmp_path / "run"):
                results.put("locked")
                end.wait(60)
        except UserError as error:
            results.put(str(error))
            end.wait(60)

    sys.setswitchinterval(1e-6)
    try:
        for _ in range(40):
            threads = [threading.Thread(target=lock) for _ in range(num_threads)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            found = [results.get_nowait() for _ in range(num_threads)]
            assert found.count("locked") == 1
            assert sum("in use by another thread" in text for text in found) == num_threads - 1
    finally:
        sys.setswitchinterval(old_interval)


def test_a_directory_that_its_previous_holder_removes_is_created_again(
    tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    run, mkdir = tmp_path / "runs" / "run", Path.mkdir

    def mkdir_and_lose(path: Path, *args: Any, **kwargs: Any) -> None:
        monkeypatch.setattr(Path, "mkdir", mkdir)
        mkdir(path, *args, **kwargs)
        path.rmdir()

    monkeypatch.setattr(Path, "mkdir", mkdir_and_lose)
    with run_lock(run):
        assert (run / LOCK_FILE).exists()
    assert not (tmp_path / "runs").exists()


def test_the_lock_of_a_killed_process_is_released(recipe: Path, tmp_path: Path, holder: BaseProcess, nmt: Nmt) -> None:
    run = tmp_path / "run"
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    assert (run / LOCK_FILE).exists()
    assert nmt("prepare", recipe, f"run_dir={run}")[0] == 0
    assert not (run / LOCK_FILE).exists()


@pytest.mark.slow
def test_a_holder_that_writes_its_name_late_is_named(tmp_path: Path) -> None:
    """One of two concurrent commands has the lock, but has not written its name yet."""
    command = [sys.executable, "-c", LOCK_AND_WRITE_NAME_LATE, str(tmp_path / LOCK_FILE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline()
        with pytest.raises(UserError, match="is in use by process 7; "), run_lock(tmp_path):
            pass
        holder.kill()


@pytest.mark.slow
def test_children_do_not_hold_the_lock(tmp_path: Path) -> None:
    with run_lock(tmp_path / "run"):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], close_fds=False)
        forked = os.fork()
        if not forked:
            time.sleep(600)
            os._exit(0)
    try:
        subprocess.run([sys.executable, "-c", LOCK_ONCE, str(tmp_path / "run")], check=True, cwd=ROOT)
    finally:
        child.kill()
        child.wait()
        os.kill(forked, signal.SIGKILL)
        os.waitpid(forked, 0)


def test_errors_leave_no_empty_directory(recipe: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "train.de").unlink()
    status, _, err = nmt("train", recipe, f"run_dir={tmp_path / 'runs' / 'new'}")
    assert status != 0 and "train.de" in err
    assert not (tmp_path / "runs").exists()


def test_an_unwritable_directory_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"), run_lock(tmp_path / "file" / "run"):
        pass


def test_a_full_disk_leaves_no_lock(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    message = r"the disk is full while writing .*\.lock; free some space, or set run_dir to a directory on another disk"
    with pytest.raises(UserError, match=message), run_lock(tmp_path / "runs" / "new"):
        pass
    assert not (tmp_path / "runs").exists()


def test_a_deleted_run_is_not_written_into_its_successor(tmp_path: Path) -> None:
    """`rm -r` of the run, then the same command again: the first command must not write into the new run."""
    run = tmp_path / "run"
    with ExitStack() as stack:
        with run_lock(run):
            write_file(run / "report.md", b"first")
            shutil.rmtree(run)
            with pytest.raises(UserError, match=r"run/\.lock was deleted or replaced"):
                write_file(run / "report.md", b"first")
            successor = stack.enter_context(holding(run))
            with pytest.raises(UserError, match=r"must stay in place until its command ends; new is not written"):
                write_directory(run / "checkpoints" / "new", {"a": b""})
            write_file(tmp_path / "elsewhere", b"")
        assert [path.name for path in run.iterdir()] == [LOCK_FILE]  # of the successor
        with pytest.raises(UserError, match=f"is in use by process {successor.pid}"), run_lock(run):
            pass


def test_a_deleted_run_has_no_successor_in_the_same_process(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with run_lock(run):
        shutil.rmtree(run)
        with pytest.raises(UserError, match="is in use by another thread of this process"), run_lock(run):
            pass
        with pytest.raises(UserError, match=r"run/\.lock was deleted or replaced"):
            write_file(run / "report.md", b"first")
    with run_lock(run):
        write_file(run / "report.md", b"second")


@pytest.mark.slow
def test_a_deleted_run_ends_its_training(recipe: Path, tmp_path: Path, nmt: Nmt, monkeypatch: MonkeyPatch) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    save = save_checkpoint

    def replace_run(*arguments: Any) -> Path:
        if not other.exists():
            run.rename(other)
            run.mkdir()
            (run / LOCK_FILE).write_text("process 7")
        return save(*arguments)

    monkeypatch.setattr(trainer, "save_checkpoint", replace_run)
    status, _, err = nmt("train", recipe, f"run_dir={run}")
    assert status == 1 and "Traceback" not in err
    # Checkpoints are written in the background, so the metrics writer may be the first to notice.
    assert "step-00000002 is not written; rerun" in err or "was moved or deleted during training" in err
    assert [path.name for path in run.iterdir()] == [LOCK_FILE]


@pytest.mark.parametrize("content", [b"mine", b"\xff\xfe mine"])
def test_a_lock_of_another_program_is_kept(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / LOCK_FILE
    path.write_bytes(content)
    with pytest.raises(UserError, match="is not the lock of a run; move it away"), run_lock(path.parent):
        pass
    assert path.read_bytes() == content


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "directory"])
def test_the_lock_must_be_a_regular_file(kind: str, tmp_path: Path) -> None:
    path, other = tmp_path / "run" / LOCK_FILE, tmp_path / "notes"
    path.parent.mkdir()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(other)
        if kind == "link":
            other.write_text("mine")
    with (
        pytest.raises(UserError, match=r"is not a regular file, as a lock must be; remove .+, then"),
        run_lock(path.parent),
    ):
        pass
    assert not other.exists() or other.read_text() == "mine"
    assert os.path.lexists(path)


def run_command(arguments: list[str], stderr: Path) -> None:
    """Run the command line in a new process, with stderr in a file."""
    os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT), 2)
    sys.argv = ["nmt", *arguments]
    cli.main()


@pytest.mark.slow
def test_concurrent_commands_make_one_run(recipe: Path, tmp_path: Path) -> None:
    """One trains; the other reports the lock, or finds the run complete."""
    command = ["train", str(recipe), f"run_dir={tmp_path / 'run'}", "train.max_steps=40"]
    files = [tmp_path / "first.err", tmp_path / "second.err"]
    both = [PROCESSES.Process(target=run_command, args=(command, file)) for file in files]
    try:
        for process in both:
            process.start()
        for process in both:
            process.join(120)
    finally:
        for process in both:
            process.kill()
    messages = [file.read_text() for file in files]
    assert sorted(process.exitcode for process in both if process.exitcode is not None) in ([0, 0], [0, 1]), messages
    assert sum("is in use by process" in text or "training is complete" in text for text in messages) == 1
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [*range(4, 41, 4), 40]  # every validation once, and the training metrics at the end
