"""Processes of `nmt repeat` that are forked instead of started: importing torch takes seconds in each process."""

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.context import ForkProcess, ForkServerProcess
from pathlib import Path
from typing import IO, Any

import pytest

from nmt import cli
from nmt.checkpoint import save_checkpoint
from nmt.experiments import launch
from nmt.train import trainer
from tests.forked import PROCESSES


def run_command(arguments: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path) -> None:
    """Run a command of nmt in a folder, with output to a log, and exit."""
    os.chdir(folder)
    os.environ.update(environment)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    patch = pytest.MonkeyPatch()
    patch.setattr(os, "fsync", lambda file: None)
    patch.setitem(sys.modules, "matplotlib", None)  # drawing curves takes longer than training
    patch.setattr(sys, "argv", ["nmt", *arguments])
    cli.main()


class Forked:
    """A command in a forked process, with the methods of `subprocess.Popen` that `launch` calls.

    run: runs the command
    """

    def __init__(
        self,
        process: type[ForkProcess] | type[ForkServerProcess],
        run: Callable[[Sequence[str], Mapping[str, str], Path, Path], None],
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: IO[bytes],
    ) -> None:
        given = ([*arguments], {**os.environ, **environment}, Path.cwd(), Path(log.name).absolute())
        self._process = process(target=run, args=given)
        self._process.start()

    def poll(self) -> int | None:
        """Return the exit status; None while the process runs."""
        return self._process.exitcode

    def wait(self) -> int | None:
        """Return the exit status when the process has ended."""
        self._process.join()
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal to the process."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)


def popen(arguments: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> Forked:
    """Start a command as `launch._popen` does, in a process of the fork server."""
    return Forked(PROCESSES.Process, run_command, arguments, environment, log)


def run_until_the_first_checkpoint(
    arguments: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path
) -> None:
    """Run a command; if it trains with seed 2, kill this process and its parent after the first checkpoint."""

    def save_and_kill(*given: Any) -> None:
        save_checkpoint(*given)
        for process in (os.getppid(), os.getpid()):
            os.kill(process, signal.SIGKILL)
        time.sleep(60)  # until the signal arrives

    if "seed=2" in arguments and arguments[0] == "run":
        pytest.MonkeyPatch().setattr(trainer, "save_checkpoint", save_and_kill)
    run_command(arguments, environment, folder, log)


def run_killed_sweep(arguments: Sequence[str], folder: Path) -> None:
    """Run `nmt repeat`; kill it and its run with seed 2 after the first checkpoint of that run."""
    fork = get_context("fork")  # this process has no threads, and a fork server would import torch again

    def start(arguments: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> Forked:
        return Forked(fork.Process, run_until_the_first_checkpoint, arguments, environment, log)

    pytest.MonkeyPatch().setattr(launch, "_popen", start)
    run_command(["repeat", *arguments], {}, folder, folder / "sweep.log")
