"""Training in two processes, one of which is signaled, killed or stopped: checkpoints, messages and resuming."""

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nmt.checkpoint import load_checkpoint
from nmt.recipe import Recipe
from nmt.storage.run_folder import list_checkpoints
from tests.train.run_tiny import final_files, start_processes, with_train

OPTIONS: dict[str, Any] = {"schedule": "constant", "keep_last": 100}
MAX_SECONDS = 180  # much longer than needed, for busy machines


class ProcessPair:
    """Two training processes, started without a launcher to see the exit status of each."""

    def __init__(self, recipe: Recipe, data: Path) -> None:
        recipe.directory.mkdir(parents=True, exist_ok=True)
        self.recipe = recipe
        self.errors = [recipe.directory / f"{rank}.err" for rank in (0, 1)]
        # On a busy machine, a process may not send heartbeats for some seconds.
        self.processes = start_processes(recipe, data, self.errors, NMT_WATCH_SECONDS="8")

    def wait_for_step(self, step: int) -> None:
        deadline = time.monotonic() + MAX_SECONDS
        while max(logged_steps(self.recipe), default=0) < step:
            assert time.monotonic() < deadline, [error.read_text() for error in self.errors]
            time.sleep(0.01)

    def signal(self, rank: int, number: signal.Signals) -> None:
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, number)

    def finish(self) -> list[int | None]:
        """Return the exit statuses; None for a process that still runs after `MAX_SECONDS`."""
        for process in self.processes:
            process.join(MAX_SECONDS)
        return [process.exitcode for process in self.processes]

    def messages(self, rank: int) -> list[str]:
        return [line for line in self.errors[rank].read_text().splitlines() if line.startswith("nmt: ")]

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


Start = Callable[[Recipe], ProcessPair]


@pytest.fixture
def start(tiny_data: Path) -> Iterator[Start]:
    pairs: list[ProcessPair] = []

    def start_pair(recipe: Recipe) -> ProcessPair:
        pairs.append(ProcessPair(recipe, tiny_data))
        return pairs[-1]

    yield start_pair
    for pair in pairs:
        pair.end()


def logged_steps(recipe: Recipe) -> list[int]:
    log = recipe.directory / "metrics.jsonl"
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    return [json.loads(line)["step"] for line in lines if line.endswith("\n")]


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "number"), [(0, signal.SIGUSR1), (1, signal.SIGTERM)], ids=["USR1", "TERM"])
def test_a_signal_to_one_process_makes_both_save_and_exit_at_the_same_update(
    tiny_recipe: Recipe, start: Start, tmp_path: Path, rank: int, number: signal.Signals
) -> None:
    endless = {"max_steps": 10**6, "save_every": 10**6, "validate_every": 10**6}
    pair = start(with_train(tiny_recipe, tmp_path / "run", **OPTIONS, **endless))
    pair.wait_for_step(3)
    pair.signal(rank, number)
    assert pair.finish() == [143, 143]
    assert pair.messages(0) == pair.messages(1) == []
    (saved,) = list_checkpoints(pair.recipe.directory)
    steps = logged_steps(pair.recipe)
    assert load_checkpoint(saved).state["step"] == steps[-1] == len(steps)


@pytest.mark.slow
def test_a_run_that_lost_processes_resumes_bit_identically(tiny_recipe: Recipe, start: Start, tmp_path: Path) -> None:
    """One process is killed, and after a restart the other is stopped; the survivor names it each time."""
    options = OPTIONS | {"max_steps": 80, "save_every": 5, "validate_every": 20}
    whole = with_train(tiny_recipe, tmp_path / "whole", **options)
    assert start(whole).finish() == [0, 0]

    broken = with_train(tiny_recipe, tmp_path / "broken", **options)
    for rank, number, step in ((1, signal.SIGKILL, 7), (0, signal.SIGSTOP, 40)):
        pair = start(broken)
        pair.wait_for_step(step)
        lost, survivor = pair.processes[rank], pair.processes[1 - rank]
        pair.signal(rank, number)
        survivor.join(MAX_SECONDS)
        assert survivor.exitcode == 1
        (line,) = pair.messages(1 - rank)
        assert f"rank {rank} of 2 (host {socket.gethostname()}, pid {lost.pid})" in line
        lost.kill()  # as torchrun and Slurm do with a stopped process
        lost.join()

    assert start(broken).finish() == [0, 0]
    assert final_files(broken) == final_files(whole)
