"""Where trials are made: commands are started here, on a recipe so small that a run takes a second or two."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Literal

import torch
import torch._dynamo  # what an optimiser would import when it is made, in every fork for seconds

from torture_cases.child import FAULT, NOTES, run_in_fork
from torture_cases.faults import Fault

SAVE_EVERY, TEMPLATE_STEP, MAX_STEPS = 5, 20, 30

# Everything that a resumed run must get right is on: accumulation, dropout, moving average, subword sampling, several
# epochs, validation by loss and by decoding, old checkpoints removed and the best one kept.
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

# Longest that a command may take, in seconds: alone, and of several processes.
LIMIT, LIMIT_OF_SEVERAL = 60.0, 240.0

_MARK = "NMT_TORTURE_MARK"


class WorkshopError(Exception):
    """A trial cannot be made, because what it begins from does not come about."""


@dataclass(frozen=True)
class Ended:
    """How a command ended: exit status (negative: by that signal; None: it had to be killed), and what it said."""

    status: int | None
    said: str
    seconds: float

    @property
    def error_lines(self) -> list[str]:
        """What it said as errors."""
        return [line for line in self.said.split("\n") if line.startswith("nmt: ")]

    @property
    def traceback(self) -> bool:
        """Whether it showed a traceback."""
        return "Traceback (most recent call last)" in self.said

    @property
    def summary(self) -> str:
        """Status and last words, on one line."""
        lines = [line for line in self.said.split("\n") if any(map(str.isalpha, line))]
        return f"status {self.status}, last words: {(self.error_lines or lines or ['none'])[-1]}"


Process = BaseProcess | subprocess.Popen[bytes]
Launch = Literal["fork", "new"]


class Command:
    """A command under way; `notes` holds what it says (`out`, `said`) and what its processes note (see `child`)."""

    def __init__(self, process: Process, notes: Path, mark: str) -> None:
        self._process, self.notes, self._mark = process, notes, mark
        self._started = time.monotonic()
        self._status: int | None = None

    def wait(self, seconds: float) -> int | None:
        """Wait for its end, but not longer; the exit status, or None."""
        if self._status is not None:
            return self._status
        if isinstance(self._process, subprocess.Popen):
            with suppress(subprocess.TimeoutExpired):
                self._status = self._process.wait(seconds)
        else:
            self._process.join(seconds)
            self._status = self._process.exitcode
            if self._status is not None:
                self._process.close()  # of hundreds of forks the descriptors would run out
        return self._status

    def kill(self) -> None:
        """SIGKILL to the command and to every process that it started."""
        if self._status is None:
            self._process.kill()
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        self.wait(LIMIT)

    def end(self, limit: float = LIMIT) -> Ended:
        """Wait for its end, kill it after `limit` seconds, and tell how it went."""
        status = self.wait(limit)
        seconds = time.monotonic() - self._started
        if status is None:
            self.kill()
        said = self.notes / "said"
        return Ended(status, said.read_text(encoding="utf-8", errors="replace") if said.exists() else "", seconds)

    def processes(self) -> dict[int, int]:
        """The living processes of a command that was not forked: process id to rank, -1 for the launcher."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                environment = dict(
                    entry.split(b"=", 1) for entry in (folder / "environ").read_bytes().split(b"\0") if b"=" in entry
                )
                if environment.get(_MARK.encode()) == self._mark.encode():
                    found[int(folder.name)] = int(environment.get(b"RANK", b"-1"))
        return found


class Workshop:
    """Starts commands and keeps folders for them; everything drawn at random comes from `random`.

    A command alone is a fork of this process, which has imported all that it needs, or a new interpreter; several
    processes are always new interpreters, started by torchrun.
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

    def __enter__(self) -> Workshop:
        return self

    def __exit__(self, *error: object) -> None:
        """Leave no process behind, whatever happened."""
        for command in self._commands:
            if command.wait(0.0) is None:
                command.kill()

    # --- Commands -------------------------------------------------------------------------------------------------

    def training(self, run: Path, *overrides: str, command: str = "train") -> list[str]:
        """The arguments of a command that trains in the folder `run`."""
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
        notes = self.folder / "notes" / f"{self._count:04d}"
        notes.mkdir(parents=True)
        mark = notes.as_posix()
        if launch == "fork" and processes == 1:
            assert not environment, "a fork has the environment of this process"
            process = _fork(arguments, fault, notes)
        else:
            variables = {**os.environ, **(environment or {}), _MARK: mark, NOTES: str(notes)}
            process = _start_interpreter(arguments, processes, fault, notes, variables)
        self._commands.append(Command(process, notes, mark))
        return self._commands[-1]

    def do(self, arguments: Sequence[str], *, launch: Launch = "fork", processes: int = 1) -> Ended:
        """Run `nmt` to its end."""
        limit = LIMIT if processes == 1 else LIMIT_OF_SEVERAL
        return self.start(arguments, launch=launch, processes=processes).end(limit)

    # --- Folders --------------------------------------------------------------------------------------------------

    def new_run(self, like: Path | None = None) -> Path:
        """A folder for a run that does not exist yet, or a copy of another run."""
        self._count += 1
        run = self.folder / "runs" / f"{self._count:04d}"
        run.parent.mkdir(exist_ok=True)
        if like is not None:
            shutil.copytree(like, run)
        return run

    def prepared(self) -> Path:
        """A new run of which nothing is done but preparing the text."""
        run = self.new_run()
        shutil.copytree(self.reference()[0] / "data", run / "data")
        return run

    def reference(self, launch: Launch = "fork", processes: int = 1) -> tuple[Path, float]:
        """The undisturbed run of a way to start it, made when first asked for; and the seconds that it took."""
        name = f"{launch} {processes}"
        if name not in self._references:
            run = self.new_run() if processes == 1 else self.prepared()
            command = "run" if processes == 1 else "train"
            ended = self.do(self.training(run, command=command), launch=launch, processes=processes)
            if ended.status != 0:
                raise WorkshopError(f"the undisturbed run failed: {ended.summary}; see {run.parent.parent}")
            self._references[name] = run, ended.seconds
        return self._references[name]

    def template(self, *overrides: str) -> Path:
        """A run that has come to the save before the one that is to be disturbed, to be copied."""
        name = f"template {' '.join(overrides)}"
        if name not in self._references:
            run = self.prepared()
            ended = self.do(self.training(run, f"train.max_steps={TEMPLATE_STEP}", *overrides))
            if ended.status != 0:
                raise WorkshopError(f"the run to begin from failed: {ended.summary}")
            self._references[name] = run, ended.seconds
        return self._references[name][0]


def _fork(arguments: Sequence[str], fault: Fault | None, notes: Path) -> Process:
    _require_one_thread()
    forked = multiprocessing.get_context("fork").Process(target=run_in_fork, args=(arguments, fault, notes))
    forked.start()
    return forked


def _start_interpreter(
    arguments: Sequence[str], processes: int, fault: Fault | None, notes: Path, variables: dict[str, str]
) -> Process:
    program = "nmt" if fault is None else "torture_cases.child"
    if fault is not None:
        variables[FAULT] = fault.to_json()
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    launcher = [sys.executable, *(torchrun if processes > 1 else []), "-m", program]
    with (notes / "out").open("wb") as out, (notes / "said").open("wb") as said:
        return subprocess.Popen(
            [*launcher, *arguments],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=said,
            start_new_session=True,
        )


def _require_one_thread() -> None:
    """A fork has only the thread that forked: what the others held or did is lost in it.

    The threads of jemalloc, which comes with pyarrow, do no harm: it starts them anew in a fork.
    """
    names = [path.read_text(encoding="utf-8").strip() for path in Path("/proc/self/task").glob("*/comm")]
    if len(others := [name for name in names if not name.startswith("jemalloc")]) > 1:
        raise WorkshopError(
            f"this process has {len(others)} threads ({', '.join(others)}) and cannot be forked; "
            "start it with OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1, as tools/torture does"
        )
