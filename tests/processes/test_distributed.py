"""Device selection, collectives, and jobs in which one process dies, stops, hangs or fails."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from nmt.errors import UserError
from nmt.processes import distributed
from nmt.processes.distributed import World, choose_device, start_world
from nmt.processes.failure_detection import EXIT_SECONDS, FailureDetector, Peer, join_job
from tests.forked import PROCESSES, job_variables
from tests.processes.run_world import LINES, MISSING, run_forked
from tests.waiting import wait_until

RUN_WORLD = Path(__file__).with_name("run_world.py")
HOST = socket.gethostname()
REMEDY = "; rerun the same command to resume from the last checkpoint"
ADDRESS = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1", "NMT_TIMEOUT_SECONDS": "1"}
ENVIRONMENT = {"PYTHONPATH": str(RUN_WORLD.parents[2]), "OMP_NUM_THREADS": "1", "NMT_WATCH_SECONDS": "8"}


def test_auto_selects_an_available_device() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", ["cpu:3", "meta"])
def test_an_unsupported_device_is_an_error(name: str) -> None:
    with pytest.raises(UserError, match=f"device '{name}' is not supported"):
        choose_device(name)


@pytest.mark.parametrize("name", ["auto", "cuda", "cuda:0"])
def test_choosing_a_gpu_disables_cudnn_attention(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is enabled by default, and gives NaN gradients with masks on Hopper."""
    was_enabled = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    try:
        choose_device("cpu")
        assert torch.backends.cuda.cudnn_sdp_enabled()
        monkeypatch.setattr("torch.cuda.is_available", lambda: True)
        monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
        assert choose_device(name) == torch.device("cuda", 0)
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(was_enabled)


@pytest.mark.parametrize(
    "error",
    [None, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB."), RuntimeError("x"), MemoryError()],
    ids=repr,
)
def test_only_out_of_memory_becomes_a_user_error(error: Exception | None) -> None:
    with pytest.raises(Exception) as caught, start_world("cpu"):
        if error is not None:
            raise error
        torch.empty(1 << 60, dtype=torch.uint8)  # a plain RuntimeError
    is_out_of_memory = not isinstance(error, RuntimeError) or isinstance(error, torch.OutOfMemoryError)
    assert isinstance(caught.value, UserError) == is_out_of_memory
    if isinstance(error, torch.OutOfMemoryError):
        assert "cpu does not have enough memory to allocate 8.00 GiB; use smaller batches" in str(caught.value)
    elif error is None:
        assert f"cpu does not have enough memory to allocate {1 << 60} bytes" in str(caught.value)


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_a_process_that_sees_only_its_own_gpu_uses_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Slurm with one GPU per task."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert choose_device(name) == torch.device("cuda", 0)


@pytest.mark.parametrize("name", ["cuda:99", "gpu", "mps", "cuda:x"])
def test_a_missing_device_is_a_one_line_error(name: str) -> None:
    with pytest.raises(UserError) as caught:
        choose_device(name)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_options_that_differ_from_those_of_rank_0_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"seed": 1, "train": {"learning_rate": 1.0, "adam_betas": (0.9, 0.98)}, "data": {"test": {}}}
    World(0, 1, torch.device("cpu")).require_same_options(options)
    world = World(1, 2, torch.device("cpu"))
    for first, reason in (
        (options, ""),
        (options | {"train": {"learning_rate": 2.0, "adam_betas": (0.9, 0.98)}}, "rank 0: train.learning_rate; all"),
        (options | {"seed": 2, "data": {"test": {"a": {"kind": "toy"}}}}, "rank 0: data.test.a, seed; all must be"),
    ):
        monkeypatch.setattr(World, "broadcast_text", lambda self, text, first=first: json.dumps(first))
        if reason:
            with pytest.raises(UserError, match=f"rank 1 has different options than {reason}"):
                world.require_same_options(options)
        else:
            world.require_same_options(options)


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (["cpu", "cpu"], None),
        (["GPU-a", "GPU-b"], None),
        (["GPU-a", "GPU-b", "GPU-a"], "ranks 0, 2 use the same GPU"),
        (["GPU-a", "cpu"], "ranks on a CPU: 1; the others are on a GPU"),
    ],
)
def test_each_rank_needs_its_own_gpu(devices: list[str], message: str | None) -> None:
    store = HashStore()
    for other, device in enumerate(devices):
        store.set(f"device/{other}", device)
    for rank, device in enumerate(devices):
        with pytest.raises(UserError, match=message) if message else nullcontext():
            distributed._require_own_device(store, rank, len(devices), device)


def test_collectives_of_one_process_are_the_identity() -> None:
    worked: list[int] = []
    with start_world("cpu") as world:
        assert (world.rank, world.size, world.is_main) == (0, 1, True)
        assert world.sum(torch.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]
        assert world.max(7) == 7
        assert world.gather_text(LINES[0]) == [LINES[0]]
        assert world.gather_text([]) == [[]]
        assert (world.broadcast_text("Grüße"), world.broadcast_text("")) == ("Grüße", "")
        world.run_on_main(lambda: worked.append(1))
        world.count_synchronization()
        world.barrier()
        world.barrier_without_timeout()
    assert worked == [1]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WORLD_SIZE": "2", "RANK": "0"}, "cannot join the other processes at None:None (MASTER_ADDR is not set)"),
        (ADDRESS | {"RANK": "2"}, "localhost:1 (RANK is '2', not an integer from 0 to 1); each needs RANK"),
        (ADDRESS | {"RANK": "-1"}, "RANK is '-1', not an integer from 0 to 1"),
        (
            ADDRESS | {"MASTER_PORT": "65536"},
            "localhost:65536 (MASTER_PORT is '65536', not an integer from 1 to 65535)",
        ),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'; it must be a positive number"),
        ({"WORLD_SIZE": "1.5"}, "WORLD_SIZE is 1.5; it must be an integer"),
        ({"WORLD_SIZE": "2", "NMT_TIMEOUT_SECONDS": "inf"}, "NMT_TIMEOUT_SECONDS is 'inf'; it must be a positive"),
        ({"WORLD_SIZE": "2", "NMT_TIMEOUT_SECONDS": "1e10"}, "it must be a positive number up to 1,000,000,000"),
        ({"WORLD_SIZE": "2", "NMT_WATCH_SECONDS": "0"}, "NMT_WATCH_SECONDS is '0'; it must be a positive number"),
    ],
    ids=[
        "no address",
        "high rank",
        "negative rank",
        "port",
        "size",
        "fraction",
        "infinite timeout",
        "long timeout",
        "watch",
    ],
)
def test_a_wrong_environment_is_a_one_line_error(
    variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=re.escape(message)) as caught, start_world("cpu"):
        pass
    assert "\n" not in str(caught.value)


def test_missing_processes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = job_variables(3) | {"RANK": "0"}
    for name, value in {**variables, "NMT_TIMEOUT_SECONDS": "0.5"}.items():
        monkeypatch.setenv(name, value)
    message = r"did not all join within 0\.5 seconds \(missing ranks: 1, 2\)"
    with pytest.raises(UserError, match=message), start_world("cpu"):
        pass


def test_a_store_that_ends_while_processes_join_is_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose_store(*arguments: object, **options: object) -> None:
        raise RuntimeError("Connection reset by peer\nstack")

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setattr(distributed, "rendezvous", lambda *_, **__: iter([(None, 1, 2)]))
    monkeypatch.setattr(distributed, "FailureDetector", lose_store)
    message = r"cannot join the other processes .*Connection reset by peer\)"
    with pytest.raises(UserError, match=message) as caught, start_world("cpu"):
        pass
    assert "\n" not in str(caught.value)


# --- Rendezvous -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_all_ranks_join_though_the_store_holds_keys_of_earlier_processes() -> None:
    """Three jobs share one store; in the later ones rank 0 first sees keys of the earlier ones."""
    store, job_ids = HashStore(), set()
    for _ in range(3):
        found: dict[int, tuple[str, list[Peer]]] = {}

        def join(rank: int, delay: float, found: dict[int, tuple[str, list[Peer]]] = found) -> None:
            time.sleep(delay)
            found[rank] = join_job(store, rank, 3, timeout=60)

        threads = [threading.Thread(target=join, args=(rank, 0.05 * rank)) for rank in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        names = {name for name, _ in found.values()}
        assert len(found) == 3
        assert len(names) == 1, "all ranks must join the same job"
        assert [peer.name for peer in found[2][1]] == [
            f"rank {r} of 3 (host {HOST}, pid {os.getpid()})" for r in range(3)
        ]
        job_ids |= names
    assert len(job_ids) == 3


def test_missing_ranks_are_named() -> None:
    with pytest.raises(UserError, match=r"3 processes did not all join within 0\.2 seconds \(missing ranks: 1, 2\)"):
        join_job(HashStore(), 0, 3, timeout=0.2)


def test_a_rank_does_not_consider_itself_dead() -> None:
    """Without /proc, as on macOS, no process can be looked up."""
    detector = FailureDetector.__new__(FailureDetector)
    no_process = 1 << 40
    detector._me = Peer("rank 0", "machine", no_process)
    assert not detector._is_dead(detector._me)
    assert detector._is_dead(Peer("rank 1", "machine", no_process))


# --- Several processes ------------------------------------------------------------------------------------------------


class Job:
    """Processes started without a launcher, as by Slurm; stderr of each goes to a file."""

    def __init__(self, folder: Path, what: str, size: int, **variables: str) -> None:
        self.folder, self.size = folder, size
        shared = {**ENVIRONMENT, **job_variables(size), **variables}
        self.processes = [
            PROCESSES.Process(target=run_forked, args=(what, folder, {**shared, "RANK": str(rank)}))
            for rank in range(size)
        ]
        for process in self.processes:
            process.start()

    def wait_until_started(self) -> None:
        deadline = time.monotonic() + 60
        while len(list(self.folder.glob("*.pid"))) < self.size:
            assert time.monotonic() < deadline, [self.stderr(rank) for rank in range(self.size)]
            time.sleep(0.02)

    def signal(self, rank: int, number: signal.Signals) -> None:
        os.kill(self.processes[rank].pid or 0, number)

    def wait(self, rank: int, seconds: float) -> int | None:
        """Return the exit status; None after `seconds`."""
        self.processes[rank].join(seconds)
        return self.processes[rank].exitcode

    def stderr(self, rank: int) -> str:
        path = self.folder / f"{rank}.err"
        return path.read_text() if path.exists() else ""

    def messages(self) -> list[str]:
        """Return the lines of all processes that start with `nmt: `."""
        lines = "".join(self.stderr(rank) for rank in range(self.size)).splitlines()
        return [line for line in lines if line.startswith("nmt: ")]

    def name(self, rank: int) -> str:
        return f"rank {rank} of {self.size} (host {HOST}, pid {self.processes[rank].pid})"

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


Start = Callable[..., Job]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    jobs: list[Job] = []

    def start_job(what: str, size: int = 2, **variables: str) -> Job:
        jobs.append(Job(tmp_path, what, size, **variables))
        return jobs[-1]

    yield start_job
    for job in jobs:
        job.end()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "status", "message"),
    [
        ("leave_a_barrier", 0, "{} has ended, but {} has not; all processes must have the same input and options"),
        ("interrupt_one", 143, "{} was interrupted by a signal"),
    ],
)
def test_a_process_that_ends_alone_ends_the_job(start: Start, what: str, status: int, message: str) -> None:
    job = start(what)
    assert [job.wait(rank, 60) for rank in (0, 1)] == [1, status], [job.stderr(rank) for rank in (0, 1)]
    assert job.messages() == [f"nmt: {message.format(job.name(1), job.name(0))}{REMEDY}"]


@pytest.mark.slow
def test_a_collective_in_progress_does_not_block_the_exit(start: Start) -> None:
    job = start("leave_a_collective")
    assert [job.wait(rank, 60) for rank in (0, 1)] == [0, 0], [job.stderr(rank) for rank in (0, 1)]


@pytest.mark.slow
def test_results_of_collectives_of_three_processes(start: Start, tmp_path: Path) -> None:
    job = start("collectives", size=3)
    assert [job.wait(rank, 60) for rank in range(3)] == [0, 0, 0], [job.stderr(rank) for rank in range(3)]
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    assert all(result["run_on_main"] >= 2.9 for result in results), "every rank must wait twice"
    assert [result["sum"] for result in results] == [[3, 30]] * 3
    assert [result["max"] for result in results] == [5] * 3
    assert [result["text"] for result in results] == [LINES, None, None]
    assert [result["broadcast"] for result in results] == [["Grüße von 0", ""]] * 3
    assert [result["nothing"] for result in results] == [[[], [], []], None, None]
    assert [result["empty lines"] for result in results] == [[[], [""], ["", ""]], None, None]
    assert job.messages() == []


@pytest.mark.slow
@pytest.mark.parametrize("what", ["work", "compute"])
def test_a_killed_process_ends_the_job_and_is_named(start: Start, what: str) -> None:
    job = start(what)
    job.wait_until_started()
    job.signal(1, signal.SIGKILL)
    assert job.wait(0, 60) == 1
    assert job.messages() == [f"nmt: {job.name(1)} died{REMEDY}"]
    assert "Traceback" not in job.stderr(0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "number"), [("work", signal.SIGKILL), ("compute", signal.SIGKILL), ("compute", signal.SIGSTOP)]
)
def test_a_lost_store_ends_the_job_and_names_its_process(start: Start, what: str, number: signal.Signals) -> None:
    job = start(what)
    job.wait_until_started()
    job.signal(0, number)
    assert job.wait(1, 60) == 1
    (line,) = job.messages()
    assert "no response from the store at 127.0.0.1:" in line
    assert f": {job.name(0)} is dead, stopped or disconnected" in line
    assert line.endswith(REMEDY)
    assert "Traceback" not in job.stderr(1)


@pytest.mark.slow
def test_a_stopped_process_ends_the_job_and_is_named(start: Start) -> None:
    job = start("work", size=3)
    job.wait_until_started()
    job.signal(1, signal.SIGSTOP)
    assert [job.wait(rank, 60) for rank in (0, 2)] == [1, 1]
    assert job.messages() == [
        f"nmt: {job.name(1)} sent no heartbeat for 8 seconds (dead, stopped or disconnected){REMEDY}"
    ]
    job.signal(1, signal.SIGCONT)  # once continued, it exits too
    assert job.wait(1, 60) == 1


@pytest.mark.slow
def test_a_hanging_process_is_named(start: Start) -> None:
    job = start("hang")
    assert [job.wait(rank, 60) for rank in (0, 1)] == [1, 1]
    assert job.messages() == [
        f"nmt: {job.name(1)} hangs: the other ranks have waited for it for 1 seconds{REMEDY}, "
        "or raise NMT_TIMEOUT_SECONDS if it is only slow"
    ]


@pytest.mark.slow
def test_an_exception_is_shown_once_with_its_traceback_and_rank(start: Start) -> None:
    job = start("fail")
    assert [job.wait(rank, 60) for rank in (0, 1)] == [1, 1]
    assert job.messages() == [f"nmt: {job.name(1)} failed: ValueError: boom{REMEDY}"]
    assert "Traceback" in job.stderr(1)
    assert "Traceback" not in job.stderr(0)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["refuse", "refuse_all", "refuse_in_run_on_main"])
def test_a_user_error_is_shown_once(start: Start, what: str) -> None:
    job = start(what, size=3)
    assert [job.wait(rank, 60) for rank in range(3)] == [1, 1, 1]
    (line,) = job.messages()
    assert line.startswith("nmt: ")
    assert line.endswith(MISSING)
    assert line == f"nmt: {MISSING}" or what == "refuse_all", "only ranks other than 0 are named"
    assert all("Traceback" not in job.stderr(rank) for rank in range(3))


@pytest.mark.slow
def test_a_rank_that_pauses_before_it_reads_the_verdict_prints_nothing(start: Start) -> None:
    """Rank 0, which serves the store, waits for it."""
    job = start("refuse_after_a_pause", NMT_WATCH_SECONDS="120")
    wait_until(lambda: MISSING in job.stderr(0))
    assert job.wait(0, EXIT_SECONDS + 1) is None
    job.signal(1, signal.SIGCONT)
    assert [job.wait(rank, 60) for rank in (0, 1)] == [1, 1]
    assert job.messages() == [f"nmt: {MISSING}"]


@pytest.mark.parametrize(
    ("verdict", "serves_store", "waits"), [("", True, 60), ("", False, 0), ("x", True, 60), ("x", False, 5)]
)
def test_a_process_that_leaves_waits_for_ranks_that_need_it(verdict: str, serves_store: bool, waits: int) -> None:
    names = "rank 0 of 3", "rank 1 of 3", "rank 2 of 3"
    heartbeats = ["left", "left", "7 7"]
    detector = FailureDetector.__new__(FailureDetector)
    detector._peers = [Peer(name, "machine", os.getpid()) for name in names]
    detector._me, detector._keys, detector._serves_store = detector._peers[0], list(names), serves_store
    detector._read = lambda keys: heartbeats  # type: ignore[method-assign]
    detector.verdict, detector.patience = verdict, 60.0
    assert [detector._is_needed(waited) for waited in (0, 4, 6, 59, 61)] == [waits > t for t in (0, 4, 6, 59, 61)]
    if verdict:
        detector.verdict = f"{names[2]} died"
        assert [detector._is_needed(waited) for waited in (4, 6)] == [True, False]
    heartbeats[2] = "left"
    assert not detector._is_needed(0)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["leave", "leave_first"])
def test_an_orderly_exit_is_not_a_failure(start: Start, what: str) -> None:
    job = start(what)
    assert [job.wait(rank, 60) for rank in (0, 1)] == [143, 143]
    assert job.messages() == []


@pytest.mark.slow
def test_torchrun_restarts_the_job_after_a_kill(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    done = subprocess.run(
        [*launcher, str(RUN_WORLD), "die_once", str(tmp_path)],
        env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pids = sorted((path.name.split(".")[0], int(path.name.split(".")[1])) for path in tmp_path.glob("*.pid"))
    messages = [line for line in done.stderr.splitlines() if line.startswith("nmt: ")]
    assert [rank for rank, _ in pids] == ["0", "0", "1", "1"]
    assert {path.name for path in tmp_path.glob("*.done")} == {"0.done", "1.done"}
    assert messages in [
        [f"nmt: rank 1 of 2 (host {HOST}, pid {pid}) died{REMEDY}"] for rank, pid in pids if rank == "1"
    ]
    for _, pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
