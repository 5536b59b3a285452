"""Exit of `nmt translate` with real processes: closed pipes, signals, a full disk. No process is left."""

import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from nmt.export.cache import open_conversion
from tests.calling import Nmt, one_line
from tests.extras import import_ctranslate2

# Maximum seconds from an event to the exit, on a busy machine. A window takes many times as long.
LIMIT = 60.0
WORDS = "the old dog sees a cat " * 8
MARK = "NMT_TEST_MARK"
PROGRESS = re.compile(r"translating: [0-9,]+( of [0-9,]+)? lines")

Start = Callable[..., subprocess.Popen[bytes]]

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name of the program: the state, the parent, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def parent(pid: int) -> int:
    return int(stat_fields(pid)[1])


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process in user mode."""
    return int(stat_fields(pid)[11]) / os.sysconf("SC_CLK_TCK")


def processes(mark: str) -> list[int]:
    """Running processes with this mark in their environment, including indirect children."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_dead = stat_fields(int(folder.name))[0] in "ZX"
            if not is_dead and f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[str]:
    """The mark of the processes of a test; none may be left at its end."""
    yield str(tmp_path)
    deadline = time.monotonic() + LIMIT
    while (left := processes(str(tmp_path))) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


@pytest.fixture
def start(model: Path, tmp_path: Path, mark: str) -> Start:
    """Start a translation of many long lines by two processes, in a process group of its own."""
    (tmp_path / "in").write_text("".join(f"{number} {WORDS}\n" for number in range(20_000)))

    def run(*options: object, **how: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "nmt", "translate", model, tmp_path / "in", "--processes", 2]
        defaults = {"--window": 4000, "--engine": "torch"}
        command += [part for option in defaults.items() if option[0] not in options for part in option]
        arguments = [*map(str, command), "--device", "cpu", "--set", "max_length_ratio=1.0", *map(str, options)]
        # `tools/test --coverage` would write a file that exceeds the limit of a test.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_PROCESS")}
        environment = {**inherited, MARK: mark, "OMP_NUM_THREADS": "1"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | how
        return subprocess.Popen(arguments, env=environment, start_new_session=True, **pipes)  # type: ignore[call-overload,no-any-return]

    return run


def wait_for_work(mark: str) -> None:
    """Wait until two workers of the pool are busy."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        times = []
        for pid in processes(mark):
            with suppress(OSError):
                times.append(cpu_seconds(pid))
        if len(times) >= 5 and sorted(times)[-3] > 0.3:  # command, tracker, server and two workers
            return
        time.sleep(0.1)
    pytest.fail("the processes did not become busy")


def wait_until_busy(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait until a process has used this many seconds of CPU time."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if cpu_seconds(process.pid) > seconds:
            return
        time.sleep(0.1)
    pytest.fail("the process did not become busy")


def end(process: subprocess.Popen[bytes]) -> tuple[int, list[str]]:
    """Return exit status and lines on stderr, without progress lines, whose number depends on the machine."""
    try:
        _, err = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        pytest.fail("the command did not exit")
    return process.returncode, [line for line in err.decode().splitlines() if not PROGRESS.match(line)]


@pytest.mark.slow
def test_a_signal_ends_the_threads_of_ctranslate2(start: Start, model: Path, tmp_path: Path) -> None:
    import_ctranslate2()
    with open_conversion(model, "int8"):  # stores the conversion
        pass
    process = start("-o", tmp_path / "out", "--engine", "ctranslate2", "--window", 20_000)
    wait_until_busy(process, 2.0)
    process.send_signal(signal.SIGTERM)
    status, (*warnings, line) = end(process)
    assert status == 143
    assert line.startswith("nmt: interrupted")  # and names `out.part` if lines were written
    # A fast machine writes lines within 2 s, and those are too long for the model.
    assert all("were too long for the model" in warning for warning in warnings)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("send", "number", "status"),
    [(os.killpg, signal.SIGINT, 130), (os.killpg, signal.SIGHUP, 129), (os.kill, signal.SIGTERM, 143)],
)
def test_a_signal_ends_all_processes(
    start: Start,
    mark: str,
    tmp_path: Path,
    send: Callable[[int, signal.Signals], None],
    number: signal.Signals,
    status: int,
) -> None:
    """Ctrl-C and the loss of a terminal reach all its processes; SIGTERM reaches only the command."""
    process = start("-o", tmp_path / "out")
    wait_for_work(mark)
    send(process.pid, number)
    found, messages = end(process)
    assert (found, messages) == (status, ["nmt: interrupted"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


@pytest.mark.slow
def test_ctrl_c_during_startup_ends_all_processes(start: Start, mark: str, tmp_path: Path) -> None:
    process = start("-o", tmp_path / "out")
    deadline = time.monotonic() + 120
    while len(processes(mark)) < 2 and time.monotonic() < deadline:  # the server of the pool is about to start
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGINT)
    found, messages = end(process)
    assert (found, messages) == (130, ["nmt: interrupted"])


@pytest.mark.slow
def test_a_closed_output_pipe_ends_all_processes(start: Start, mark: str, tmp_path: Path) -> None:
    process = start("--window", 1900)
    # The first window takes little time; the next ones take minutes, so they are running when the pipe closes.
    (tmp_path / "in").write_text("a\n" * 1900 + f"{WORDS}{WORDS}{WORDS}\n" * 10_000)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    found, messages = end(process)
    assert (found, messages) == (1, [])


@pytest.mark.slow
def test_a_dead_worker_ends_all_processes_with_one_line(start: Start, mark: str, tmp_path: Path) -> None:
    process = start("-o", tmp_path / "out")
    wait_for_work(mark)
    worker = next(pid for pid in processes(mark) if parent(pid) != process.pid and parent(parent(pid)) == process.pid)
    os.kill(worker, signal.SIGKILL)
    status, messages = end(process)
    assert (status, len(messages)) == (1, 1)
    assert messages[0].startswith("nmt: the system killed a worker process")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_only_the_log_is_lost_if_its_disk_is_full(model: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("the dog\n")
    files = (str(tmp_path / "in"), "-o", str(tmp_path / "out"))
    command = [sys.executable, "-m", "nmt", "translate", str(model), *files]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([*command, "--engine", "torch", "--device", "cpu"], stderr=full, check=False)
    assert done.returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line(model: Path, tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").write_text("the dog\n")
    with Path("/dev/full").open("wb", buffering=0) as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        status, _, err = nmt("translate", model, tmp_path / "in", "--engine", "torch", "--device", "cpu")
    assert (status, one_line(err)) == (
        1,
        "the disk is full while writing standard output; free some space, then rerun",
    )


@pytest.mark.slow
def test_an_output_beyond_the_maximum_file_size_ends_all_processes(start: Start, tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    process = start("-o", tmp_path / "out", "--window", 10, preexec_fn=limit)
    process.wait(120)
    status, messages = end(process)
    assert (status, len(messages)) == (1, 1)
    expected = f"nmt: {tmp_path / 'out'} exceeds the maximum file size; raise the limit (ulimit -f, "
    assert messages[0].startswith(expected)
    assert (tmp_path / "out.part").exists()
