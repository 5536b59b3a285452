"""`nmt translate` in several processes under torchrun: the same output, and no hangs if a process dies."""

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from nmt import cli
from tests.calling import Nmt
from tests.cli.nasty_lines import as_bytes, nasty_lines
from tests.extras import import_ctranslate2
from tests.forked import PROCESSES, job_variables


def run_rank(arguments: list[str], variables: dict[str, str], err: Path, folder: Path | None) -> None:
    os.environ.update(variables)
    if folder is not None:
        os.chdir(folder)
    os.dup2(os.open(err, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    sys.argv = ["nmt", *arguments]
    cli.main()


class Job:
    """Processes of one job, each of which runs the same command."""

    def __init__(
        self, folder: Path, size: int, arguments: tuple[object, ...], folders: Sequence[Path | None] = (None,) * 3
    ) -> None:
        """Start the processes. folders: the directory in which each runs"""
        shared = job_variables(size) | {"NMT_WATCH_SECONDS": "20", "OMP_NUM_THREADS": "1"}
        self.errors = [folder / f"{rank}.err" for rank in range(size)]
        self.processes = [
            PROCESSES.Process(
                target=run_rank,
                args=([*map(str, arguments)], {**shared, "RANK": str(rank)}, self.errors[rank], folders[rank]),
            )
            for rank in range(size)
        ]
        for process in self.processes:
            process.start()

    def wait(self) -> list[int | None]:
        """Return the exit statuses; None for a process that does not end."""
        for process in self.processes:
            process.join(60)
        return [process.exitcode for process in self.processes]

    def messages(self) -> list[str]:
        """Return the messages of nmt on stderr, of all processes."""
        return [line for path in self.errors for line in path.read_text().splitlines() if line.startswith("nmt: ")]


Start = Callable[..., Job]


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    jobs: list[Job] = []

    def start_job(size: int, *arguments: object) -> Job:
        jobs.append(Job(tmp_path_factory.mktemp("job"), size, arguments))
        return jobs[-1]

    yield start_job
    for process in (process for job in jobs for process in job.processes):
        process.kill()
        process.join()


@pytest.mark.slow
def test_output_does_not_depend_on_the_number_of_processes(
    model: Path, nmt: Nmt, start: Start, tmp_path: Path, interrupt_after: Callable[[int], None]
) -> None:
    (tmp_path / "in").write_bytes(as_bytes(nasty_lines(105, num_longest=0)))
    options = ("--window", 10, "--device", "cpu", "--engine", "torch", "--n-best", 2)
    assert nmt("translate", model, tmp_path / "in", "-o", tmp_path / "alone", *options)[0] == 0
    expected = (tmp_path / "alone").read_bytes()
    interrupt_after(5)
    assert nmt("translate", model, tmp_path / "in", "-o", tmp_path / "resumed", *options)[0] == 130
    command = ("translate", model, tmp_path / "in", *options, "-o")
    jobs = [start(2, *command, tmp_path / "fresh"), start(3, *command, tmp_path / "resumed", "--resume")]
    for job in jobs:
        assert job.wait() == [0] * len(job.processes), job.messages()
    assert (tmp_path / "fresh").read_bytes() == expected
    assert (tmp_path / "resumed").read_bytes() == expected
    assert {path.name for path in tmp_path.iterdir()} == {"in", "alone", "fresh", "resumed"}
    assert [path.read_text().count("lines were too long") for path in jobs[0].errors] == [1, 0]


@pytest.mark.slow
def test_processes_must_have_the_same_input(model: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Files of the same name on two machines differ."""
    folder = tmp_path_factory.mktemp("inputs")
    for name in ("0", "1"):
        (folder / name).mkdir()
        (folder / name / "in").write_text(f"a dog {name}\n" * 30)
    command = ("translate", model, "in", "-o", "out", "--device", "cpu")
    job = Job(folder, 2, command, folders=[folder / "0", folder / "1"])
    try:
        assert job.wait() == [1, 1]
        (message,) = job.messages()
        assert "rank 1 has different options than rank 0: input; all must be equal" in message
    finally:
        for process in job.processes:
            process.kill()


@pytest.mark.slow
def test_killed_process_ends_the_job(model: Path, start: Start, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(as_bytes(nasty_lines(20_000, num_longest=0)))
    job = start(2, "translate", model, tmp_path / "in", "-o", tmp_path / "out", "--window", 1, "--device", "cpu")
    part, deadline = tmp_path / "out.part", time.monotonic() + 60
    while not part.exists() or part.read_bytes().count(b"\n") < 10:
        assert time.monotonic() < deadline, job.messages()
        time.sleep(0.02)
    lost = job.processes[1].pid
    assert lost is not None
    os.kill(lost, signal.SIGKILL)
    assert job.wait() == [1, -signal.SIGKILL]
    (message,) = job.messages()
    assert message.endswith(f"pid {lost}) died; rerun the command, with --resume if the output is a file")
    assert part.read_bytes().count(b"\n") >= 10
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_ctranslate2_output_with_several_processes(model: Path, nmt: Nmt, start: Start, tmp_path: Path) -> None:
    import_ctranslate2()
    (tmp_path / "in").write_bytes(as_bytes(nasty_lines(205, num_longest=0)))
    command = ("translate", model, tmp_path / "in", "--window", 20, "--device", "cpu", "--engine", "ctranslate2", "-o")
    job = start(2, *command, tmp_path / "two")  # both find no conversion, unless another test has made it
    assert job.wait() == [0, 0], job.messages()
    assert nmt(*command, tmp_path / "one")[0] == 0
    assert (tmp_path / "two").read_bytes() == (tmp_path / "one").read_bytes()


def read_line(pipe: Path) -> None:
    """Read a line of a named pipe and close it; fail if a job writes nothing within two minutes."""
    descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # otherwise waits without a time limit for a writer
    with os.fdopen(descriptor, "rb") as reader:
        assert select.select([reader], [], [], 120.0)[0], "no output"
        os.set_blocking(descriptor, True)
        assert reader.readline()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_closed_output_pipe_ends_all_processes(model: Path, start: Start, tmp_path: Path, engine: str) -> None:
    if engine == "ctranslate2":
        import_ctranslate2()
    (tmp_path / "in").write_bytes(as_bytes(nasty_lines(20_000, num_longest=0)))
    os.mkfifo(tmp_path / "out")
    options = ("-o", tmp_path / "out", "--window", 10, "--device", "cpu", "--engine", engine)
    job = start(2, "translate", model, tmp_path / "in", *options)
    read_line(tmp_path / "out")
    assert job.wait() == [1, 1]
    assert "Broken pipe" not in "".join(path.read_text() for path in job.errors)
    assert not job.messages()


@pytest.mark.slow
def test_single_process_features_under_torchrun_are_errors(model: Path, start: Start, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("a dog\n")
    jobs = {
        "standard input cannot be read by 2 processes": start(2, "translate", model, "--device", "cpu"),
        "--processes 2 cannot be used under torchrun": start(2, "translate", model, tmp_path / "in", "--processes", 2),
    }
    for expected, job in jobs.items():
        assert job.wait() == [1, 1]
        (message,) = job.messages()
        assert expected in message
