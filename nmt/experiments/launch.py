"""Execution of a sweep: one process per run, several in parallel, with shared prepared data."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from nmt.alignment.training import changed_alignment, require_alignment_files
from nmt.data.corpus import require_files
from nmt.data.fingerprint import outdated_splits, preparation_options, read_report
from nmt.data.folder import replacing
from nmt.data.reused_tokenizers import reused_tokenizers, tokenizer_sources
from nmt.data.test_sets import test_sets
from nmt.decode.requirements import decoding_files, require_decoding_inputs
from nmt.errors import CommandError, UserError
from nmt.evaluate.translated import context_digest, has_other_output, is_changed, output_name, text_digest
from nmt.experiments.sweep import Run, merge_overrides
from nmt.logs import ProgressBar, counted, format_duration, progress, say, warn
from nmt.processes.cores import num_cores
from nmt.processes.distributed import choose_device
from nmt.processes.environment import import_path, world_size
from nmt.processes.interruption import Interrupted, interruptible, uninterrupted
from nmt.processes.run_lock import run_lock
from nmt.recipe import Recipe, parse_saved_recipe
from nmt.storage.run_folder import MODEL, list_checkpoints
from nmt.storage.sealed import CorruptError, link_or_copy
from nmt.train.resume import require_used_options
from nmt.train.state import TrainState, require_same_run
from nmt.train.warm_start import require_start_model, with_start_model

_POLL_SECONDS = 0.2
_PROMPT = "$ nmt "  # marks the start of each process in the log


def is_complete(run: Run) -> bool:
    """Return whether a run has finished with this recipe and its current files; the number of threads may differ."""
    try:
        report = json.loads((run.recipe.directory / "report.json").read_text(encoding="utf-8"))
        finished = parse_saved_recipe(report["recipe"])
        recorded = dict(report.get("decoding_files", {}))  # absent from reports of earlier versions
    except (OSError, ValueError, KeyError, TypeError):
        return False
    recipe = with_start_model(run.recipe)
    if _relevant_options(finished) != _relevant_options(recipe):
        return False
    files = decoding_files(recipe.decode)
    return all(recorded.get(name, digest) == digest for name, digest in files.items()) and _has_same_text(recipe)


def execute(runs: Sequence[Run], jobs: int | None) -> list[Run]:
    """Execute the runs that are not complete; return those that failed.

    jobs: parallel processes, which share the GPUs, or else the cores, evenly; None starts one per GPU, or one on a CPU

    Raises UserError, before any work, if another process executes one of them, for example after its sweep was killed.
    Raises Interrupted after a signal, once each process has saved a checkpoint.
    """
    _require_one_process()
    pending = [run for run in runs if not is_complete(run)]
    if not pending:
        say(f"nothing to run: {counted(len(runs), 'run')} already complete")
        return []
    for run in pending:
        choose_device(run.recipe.train.device)  # before preparing data
        _require_idle(run)
    slots = _slots(pending, jobs)
    with interruptible():
        failed = prepare_data(pending)
        ready = [run for run in pending if run not in failed]
        with progress("runs", len(runs), "runs", done=len(runs) - len(pending)) as bar:
            return failed + _execute(ready, slots, bar)


def prepare_data(runs: Sequence[Run]) -> list[Run]:
    """Prepare the data of the runs, once per distinct corpus and reused tokenizer; return the runs that failed.

    Raises UserError, before preparing, if another process prepares a run, or if the initial model of a run or another
    file that its options name is missing. Raises Interrupted after a signal.
    """
    _require_one_process()
    for run in runs:
        _require_inputs(run)
        if not _is_prepared(run):
            _require_idle(run)
    groups: dict[str, list[Run]] = {}
    for run in runs:
        data = run.recipe.data
        # The options of preparation exclude the folders of absolute paths.
        corpora = [
            corpus.model_dump(mode="json", exclude={"weight", "alignment"}) for corpus in data.train + data.valid
        ]
        options = {**preparation_options(with_start_model(run.recipe)), "root": str(data.root), "corpora": corpora}
        options["reused"] = _identify_tokenizers(run.recipe)
        groups.setdefault(json.dumps(options, sort_keys=True, default=str), []).append(run)
    failed: list[Run] = []
    with interruptible():
        for group in groups.values():
            source = next((run for run in group if _is_prepared(run)), None)
            if source is None:
                source = group[0]
                say(f"preparing the data of {counted(len(group), 'run')}")
                if not _succeeds(_start("prepare", source, _Slot()), source):
                    failed += group
                    continue
            for run in group:
                if not run.recipe.data_directory.exists():
                    _copy_data(source.recipe.data_directory, run.recipe.data_directory)
    return failed


def command(run: Run) -> list[str]:
    """Return the arguments of `nmt` for a run."""
    return ["run", str(run.recipe_file), *run.overrides]


@dataclass(frozen=True)
class _Slot:
    """Compute resources of one process.

    gpu:     GPU of runs whose device is `auto` or `cuda`; None if there is none
    threads: CPU threads of other runs that set none; None if they use all cores
    """

    gpu: str | None = None
    threads: int | None = None

    def environment(self, run: Run) -> dict[str, str]:
        """Return the environment variables of a run in this slot."""
        return {"CUDA_VISIBLE_DEVICES": self.gpu} if self.gpu is not None and _shares_gpus(run) else {}

    def overrides(self, run: Run) -> tuple[str, ...]:
        """Return the overrides of a run in this slot."""
        if self.threads is None or run.recipe.train.threads or self.environment(run):
            return run.overrides
        return merge_overrides(run.overrides, [f"train.threads={self.threads}"])


@dataclass(frozen=True)
class _Job:
    """A process that executes a run in a slot. started: time in seconds on the monotonic clock"""

    process: subprocess.Popen[bytes]
    run: Run
    slot: _Slot
    started: float


def _execute(runs: Sequence[Run], slots: Sequence[_Slot], bar: ProgressBar) -> list[Run]:
    """Execute the runs, one at a time in each slot; return those that failed."""
    pending = list(runs)
    free = list(slots)
    active: list[_Job] = []
    failed: list[Run] = []
    try:
        while pending or active:
            while pending and free:
                run, slot = pending.pop(0), free.pop(0)
                say(f"{run.name}: {run.recipe.directory}")
                with uninterrupted():  # a process missing from `active` would keep running
                    active.append(_Job(_start("run", run, slot), run, slot, time.monotonic()))
            time.sleep(_POLL_SECONDS)
            for job in [job for job in active if job.process.poll() is not None]:
                active.remove(job)
                free.append(job.slot)
                if _succeeds(job.process, job.run):
                    say(f"{job.run.name}: complete after {format_duration(time.monotonic() - job.started)}")
                    bar.advance(1)
                else:
                    failed.append(job.run)
    except BaseException as error:
        for job in active:
            job.process.send_signal(signal.SIGTERM)  # saves a checkpoint
        for job in active:
            job.process.wait()
        if isinstance(error, Interrupted):
            raise Interrupted(
                f"interrupted; incomplete: {counted(len(pending) + len(active), 'run')}; rerun the command to continue",
                error.status,
            ) from error
        raise
    return failed


def _start(name: str, run: Run, slot: _Slot) -> subprocess.Popen[bytes]:
    """Start a subcommand of `nmt` on the recipe of a run, with a log file beside the run directory."""
    path = _log_path(run)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        arguments = [name, str(run.recipe_file), *slot.overrides(run)]
        with path.open("ab") as log:
            log.write(f"{_PROMPT}{shlex.join(arguments)}\n".encode(errors="surrogateescape"))
            log.flush()
            return _popen(arguments, slot.environment(run), log)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}; the directory must be writable; select another with -o"
        ) from error


def _popen(arguments: Sequence[str], environment: dict[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    # Not -m nmt: it would import from the working directory first.
    program = f"import sys; sys.path[:] = {import_path()!a}; from nmt.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-P", "-c", program, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env={**os.environ, **environment},
        start_new_session=True,  # Ctrl-C reaches only this process, which forwards it
    )


def _succeeds(process: subprocess.Popen[bytes], run: Run) -> bool:
    """Wait for a process; on failure, warn with its error, or else the last line of its log.

    An earlier process, whose sweep was killed, may still write to the same log. The last line may therefore come from
    that process.
    """
    try:
        status = process.wait()
    except BaseException:
        process.send_signal(signal.SIGTERM)
        process.wait()
        raise
    if status:
        output = _log_path(run).read_text(encoding="utf-8", errors="replace").rpartition(_PROMPT)[2]
        lines = output.strip().splitlines()[1:] or ["no output"]
        errors = [line for line in lines if line.startswith("nmt: ")]
        warn(f"{run.name}: failed with exit status {status}: {(errors or lines)[-1]}; the log is {_log_path(run)}")
    return status == 0


def _log_path(run: Run) -> Path:
    directory = run.recipe.directory
    return directory.with_name(f"{directory.name}.log")


def _slots(runs: Sequence[Run], jobs: int | None) -> list[_Slot]:
    """Assign GPUs to processes in turn, and divide the cores among them."""
    gpus = _gpus() if any(map(_shares_gpus, runs)) else []
    count = min(jobs or len(gpus) or 1, len(runs))
    threads = max(1, num_cores() // count) if count > 1 else None
    return [_Slot(gpus[index % len(gpus)] if gpus else None, threads) for index in range(count)]


def _shares_gpus(run: Run) -> bool:
    """Return whether a run uses any GPU; `cuda:N` and `cpu` are the same devices in each slot."""
    return run.recipe.train.device in ("auto", "cuda")


def _gpus() -> list[str]:
    count = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return visible.split(",")[:count] if visible else [str(index) for index in range(count)]


def _require_one_process() -> None:
    """Raise CommandError under torchrun, whose processes would start every run several times."""
    if (size := world_size()) != 1:
        raise CommandError(
            f"nmt repeat must run as one process, which starts the runs, got {size} processes; run it without torchrun"
        )


def _require_options_of_finished(recipe: Recipe) -> None:
    """Raise UserError if a run has finished training with other options."""
    require_same_run(recipe)
    for checkpoint in list_checkpoints(recipe.directory)[-1:]:
        with suppress(CorruptError):
            state = TrainState.load(checkpoint)
            if state.limits_reached(recipe.train):
                require_used_options(recipe, state, checkpoint)


def _require_idle(run: Run) -> None:
    """Raise UserError, which names the process, if another process executes a run."""
    if run.recipe.directory.exists():
        with run_lock(run.recipe.directory):
            pass


def _require_inputs(run: Run) -> None:
    try:
        recipe = with_start_model(run.recipe)
        require_start_model(recipe)
        require_decoding_inputs(recipe)
        _require_options_of_finished(recipe)
        if read_report(recipe.data_directory) is None:  # prepared text does not need the original files
            require_files((*recipe.data.train, *recipe.data.valid), recipe.data.root)
            require_alignment_files(recipe)
            reused_tokenizers(recipe)
    except UserError as error:
        raise UserError(f"{run.name}: {error}") from error


def _identify_tokenizers(recipe: Recipe) -> dict[str, str] | list[str]:
    """Return the SHA-256 of the reused tokenizers; their paths if they cannot be read."""
    with suppress(UserError):
        tokenizers = reused_tokenizers(recipe)
        return {} if tokenizers is None else tokenizers.digests()
    return list(map(str, tokenizer_sources(recipe)))


def _is_prepared(run: Run) -> bool:
    directory = run.recipe.data_directory
    if read_report(directory) is None:
        return False
    return not outdated_splits(with_start_model(run.recipe), directory, warns=False)


def _copy_data(source: Path, target: Path) -> None:
    """Copy JSON files, which may be rewritten in place, and hard-link the others."""
    with replacing(target) as folder:
        for path in source.iterdir():
            if path.suffix == ".json":
                shutil.copyfile(path, folder / path.name)
            elif path.is_file():
                link_or_copy(path, folder / path.name)


def _has_same_text(recipe: Recipe) -> bool:
    """Return whether a model exists, and text, its alignments (if they still exist) and translations are up to date.

    Does not query the Hub, which could time out for each run.
    """
    prepared, run = recipe.data_directory, recipe.directory
    if read_report(prepared) is not None and outdated_splits(recipe, prepared, warns=False, asks_hub=False):
        return False
    if changed_alignment(recipe):
        return False
    if not (run / "model" / MODEL).is_file():
        return False
    if recipe.is_language_model:  # does not translate its test sets
        return True
    for name in recipe.data.test:
        if has_other_output(run, name, run / "translations" / output_name(recipe, name)):
            return False
    with suppress(UserError):  # a deleted test set; reading the results raises this error
        return not any(
            is_changed(run, name, "source", text_digest(test.src))
            or is_changed(run, name, "context", context_digest(test.previous))
            for name, test in test_sets(recipe).items()
        )
    return True


def _relevant_options(recipe: Recipe) -> dict[str, Any]:
    """Return the options that a run must share with a finished one; its directory may have been moved."""
    return recipe.model_dump(mode="json", exclude={"run_dir": True, "data": {"workers"}, "train": {"threads"}})
