"""Runs commands for the trials, with a recipe whose training takes a second or two."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Literal

import torch

from torture_cases.child import FAULT, LOG_DIR, run_in_fork
from torture_cases.faults import Fault

SAVE_EVERY, TEMPLATE_STEP, MAX_STEPS = 5, 20, 30

# Enables everything that resuming must restore: gradient accumulation, dropout, EMA, subword sampling, several epochs,
# validation by loss and by BLEU, removal of old checkpoints, and keeping the best one.
RECIPE = f"""
name = "torture"
src_lang = "en"
tgt_lang = "de"
seed = 7

[[data.train]]
kind = "toy"
pairs = 120

[[data.valid]]
kind = "toy"
split = "valid"
pairs = 12

[data.test.heldout]
kind = "toy"
split = "test"
pairs = 4

[data]
max_tokens = 120

[tokenizer]
vocab_size = 420

[model]
d_model = 16
d_ff = 32
num_heads = 2
num_encoder_layers = 1
num_decoder_layers = 1
dropout = 0.1
max_positions = 256

[train]
max_steps = {MAX_STEPS}
batch_tokens = 500
micro_batch_tokens = 200
micro_batches = 4
schedule = "inverse-sqrt"
learning_rate = 3e-3
warmup_steps = 5
subword_sampling = 0.1
ema_decay = 0.9
precision = "fp32"
device = "cpu"
threads = 1
log_every = 1
validate_every = {SAVE_EVERY}
validate_bleu_every = {2 * SAVE_EVERY}
validate_bleu_sentences = 4
save_every = {SAVE_EVERY}
keep_last = 3
average_count = 3

[decode]
beam_size = 2
max_extra_tokens = 4

[evaluate]
metrics = ["bleu"]
samples = 2
"""

# Time limits of a command in seconds: one process, several processes.
LIMIT, MULTI_PROCESS_LIMIT = 60.0, 240.0

_MARK = "NMT_TORTURE_MARK"


class SetupError(Exception):
    """The preparation of a trial failed."""


@dataclass(frozen=True)
class CommandResult:
    """Result of a command. status: exit status, negative for a signal, None after a timeout."""

    status: int | None
    stderr: str
    seconds: float

    @property
    def error_lines(self) -> list[str]:
        """Error lines of nmt."""
        return [line for line in self.stderr.split("\n") if line.startswith("nmt: ")]

    @property
    def has_traceback(self) -> bool:
        """Whether stderr has a traceback."""
        return "Traceback (most recent call last)" in self.stderr

    @property
    def summary(self) -> str:
        """Exit status, or the time limit, and last error or line of stderr."""
        lines = [line for line in self.stderr.split("\n") if any(map(str.isalpha, line))]
        end = f"time limit exceeded ({self.seconds:.0f} s)" if self.status is None else f"status {self.status}"
        return f"{end}, last line: {(self.error_lines or lines or ['none'])[-1]}"


Process = BaseProcess | subprocess.Popen[bytes]
Launch = Literal["fork", "new"]


class Command:
    """A running command. `log_dir` has its output (`stdout`, `stderr`) and the files of `child`."""

    def __init__(self, process: Process, log_dir: Path, mark: str) -> None:
        self._process, self.log_dir, self._mark = process, log_dir, mark
        self._started = time.monotonic()
        self._status: int | None = None

    def wait(self, seconds: float) -> int | None:
        """Wait up to `seconds`; returns the exit status, or None."""
        if self._status is not None:
            return self._status
        if isinstance(self._process, subprocess.Popen):
            with suppress(subprocess.TimeoutExpired):
                self._status = self._process.wait(seconds)
        else:
            self._process.join(seconds)
            self._status = self._process.exitcode
            if self._status is not None:
                self._process.close()  # hundreds of forks would use up the file descriptors
        return self._status

    def wait_until(self, condition: Callable[[], bool], limit: float, problem: str) -> None:
        """Wait up to `limit` seconds for a condition; raises SetupError with `problem` if it is still false."""
        end = time.monotonic() + limit
        while not condition():
            if time.monotonic() > end or self.wait(0.005) is not None:
                raise SetupError(f"{problem}: {self.finish(1.0).summary}")

    def kill(self) -> None:
        """Send SIGKILL to the command and, if it is a new interpreter, to all processes that it started."""
        if self._status is None:
            self._process.kill()
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        self.wait(LIMIT)

    def finish(self, limit: float = LIMIT) -> CommandResult:
        """Wait for the end, killing the command after `limit` seconds."""
        status = self.wait(limit)
        seconds = time.monotonic() - self._started
        if status is None:
            self.kill()
        path = self.log_dir / "stderr"
        return CommandResult(
            status, path.read_text(encoding="utf-8", errors="replace") if path.exists() else "", seconds
        )

    def processes(self) -> dict[int, int]:
        """Running processes of a command started with a new interpreter: pid to rank, -1 for the launcher."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                environment = dict(
                    entry.split(b"=", 1) for entry in (folder / "environ").read_bytes().split(b"\0") if b"=" in entry
                )
                if environment.get(_MARK.encode()) == self._mark.encode():
                    found[int(folder.name)] = int(environment.get(b"RANK", b"-1"))
        return found


class Sandbox:
    """Runs commands and manages their folders. `random` is the only source of randomness.

    A single process is a fork of this process, which has imported torch, or a new interpreter. Several processes
    are started by torchrun.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.recipe = folder / "torture.toml"
        self.recipe.write_text(RECIPE, encoding="utf-8")
        self._count = 0
        self._commands: list[Command] = []
        self._references: dict[str, tuple[Path, float]] = {}
        torch.set_num_threads(1)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *error: object) -> None:
        """Kill all processes that are left."""
        for command in self._commands:
            if command.wait(0.0) is None:
                command.kill()

    # --- Commands -----------------------------------------------------------------------------------------------

    def training(self, run: Path, *overrides: str, command: str = "train") -> list[str]:
        """Arguments of a training command with run directory `run`."""
        return [command, str(self.recipe), f"run_dir={run}", *overrides]

    def start(
        self,
        arguments: Sequence[str],
        *,
        launch: Launch = "fork",
        processes: int = 1,
        fault: Fault | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Command:
        """Start `nmt` with these arguments."""
        self._count += 1
        log_dir = self.folder / "logs" / f"{self._count:04d}"
        log_dir.mkdir(parents=True)
        mark = log_dir.as_posix()
        if launch == "fork" and processes == 1:
            assert not environment, "a fork inherits the environment"
            process = _fork(arguments, fault, log_dir)
        else:
            variables = {**os.environ, **(environment or {}), _MARK: mark, LOG_DIR: str(log_dir)}
            process = _start_interpreter(arguments, processes, fault, log_dir, variables)
        self._commands.append(Command(process, log_dir, mark))
        return self._commands[-1]

    def run(self, arguments: Sequence[str], *, launch: Launch = "fork", processes: int = 1) -> CommandResult:
        """Run `nmt` with these arguments."""
        limit = LIMIT if processes == 1 else MULTI_PROCESS_LIMIT
        return self.start(arguments, launch=launch, processes=processes).finish(limit)

    # --- Folders ------------------------------------------------------------------------------------------------

    def new_run(self, like: Path | None = None) -> Path:
        """Return the path of a new run, or of a copy of another run."""
        self._count += 1
        run = self.folder / "runs" / f"{self._count:04d}"
        run.parent.mkdir(exist_ok=True)
        if like is not None:
            shutil.copytree(like, run)
        return run

    def prepared_run(self) -> Path:
        """Create a run with prepared data only."""
        run = self.new_run()
        shutil.copytree(self.reference()[0] / "data", run / "data")
        return run

    def reference(self, launch: Launch = "fork", processes: int = 1) -> tuple[Path, float]:
        """Return a fault-free run, created on first use, and its duration in seconds."""
        name = f"{launch} {processes}"
        if name not in self._references:
            run = self.new_run() if processes == 1 else self.prepared_run()
            command = "run" if processes == 1 else "train"
            result = self.run(self.training(run, command=command), launch=launch, processes=processes)
            if result.status != 0:
                raise SetupError(f"the fault-free run failed: {result.summary}; see {run.parent.parent}")
            self._references[name] = run, result.seconds
        return self._references[name]

    def template(self, *overrides: str) -> Path:
        """Return a run, to be copied, that ends at the checkpoint before the save with a fault."""
        name = f"template {' '.join(overrides)}"
        if name not in self._references:
            run = self.prepared_run()
            result = self.run(self.training(run, f"train.max_steps={TEMPLATE_STEP}", *overrides))
            if result.status != 0:
                raise SetupError(f"the template run failed: {result.summary}")
            self._references[name] = run, result.seconds
        return self._references[name][0]


def _fork(arguments: Sequence[str], fault: Fault | None, log_dir: Path) -> Process:
    _require_one_thread()
    forked = multiprocessing.get_context("fork").Process(target=run_in_fork, args=(arguments, fault, log_dir))
    forked.start()
    return forked


def _start_interpreter(
    arguments: Sequence[str], processes: int, fault: Fault | None, log_dir: Path, variables: dict[str, str]
) -> Process:
    program = "nmt" if fault is None else "torture_cases.child"
    if fault is not None:
        variables[FAULT] = fault.to_json()
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    launcher = [sys.executable, *(torchrun if processes > 1 else []), "-m", program]
    with (log_dir / "stdout").open("wb") as stdout, (log_dir / "stderr").open("wb") as stderr:
        return subprocess.Popen(
            [*launcher, *arguments],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )


def _require_one_thread() -> None:
    """Raise SetupError if this process has several threads, as a fork keeps only one.

    jemalloc (from pyarrow) restarts its threads after a fork.
    """
    names = [path.read_text(encoding="utf-8").strip() for path in Path("/proc/self/task").glob("*/comm")]
    if len(others := [name for name in names if not name.startswith("jemalloc")]) > 1:
        raise SetupError(
            f"this process has {len(others)} threads ({', '.join(others)}) and cannot be forked; "
            "start it with OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1, as tools/torture does"
        )


@dataclass(frozen=True)
class Trial:
    """One trial of a case.

    problem:  error message; None if it passed
    run:      its folder, if it has one; kept on failure
    measured: values by name; the table shows the maximum over all trials
    """

    name: str
    problem: str | None = None
    run: Path | None = None
    measured: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A group of trials.

    title:   the fault and the pass criterion
    seconds: approximate duration of the full case on two cores
    trials:  runs the trials; True selects fewer
    multi_process: needs torchrun; not part of quick runs
    """

    name: str
    title: str
    seconds: float
    trials: Callable[[Sandbox, bool], Iterator[Trial]]
    multi_process: bool = False


def first_problem(*problems: str | None) -> str | None:
    """Return the first problem that is not None."""
    return next((problem for problem in problems if problem), None)
