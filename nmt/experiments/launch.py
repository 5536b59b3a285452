"""The runs of an experiment as processes of their own, several at a time, on text that is prepared once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from nmt.data.fingerprint import outdated_splits, preparation_options, read_report
from nmt.data.folder import link_or_copy, replacing
from nmt.experiments.sweep import Run
from nmt.logs import ProgressBar, format_duration, progress, say, warn
from nmt.processes.interruption import Interrupted, interruptible
from nmt.processes.parallel import num_cores
from nmt.recipe import Recipe, RecipeError, UserError, parse_recipe

_PAUSE = 0.2  # seconds between two looks at the processes


def is_complete(run: Run) -> bool:
    """Whether a run was finished with this recipe; the number of threads does not count."""
    try:
        report = json.loads((run.recipe.directory / "report.json").read_text(encoding="utf-8"))
        made = parse_recipe(report["recipe"])
    except (OSError, ValueError, KeyError, TypeError, RecipeError):
        return False
    return _facts(made) == _facts(run.recipe)


def execute(runs: Sequence[Run], jobs: int | None) -> list[Run]:
    """Carry out the runs that are not complete, and return those that failed.

    jobs: processes at a time; by default one for each GPU, or else one. They share GPUs and cores evenly. Raises
    Interrupted, which says how to continue, after Ctrl-C and SIGTERM; each process then saves a checkpoint and ends.
    """
    waiting = [run for run in runs if not is_complete(run)]
    if not waiting:
        return []
    places = _places(waiting[0].recipe, jobs, len(waiting))
    with interruptible():
        unprepared = prepare_data(waiting)
        failed = [run for run in waiting if run in unprepared]
        waiting = [run for run in waiting if run not in unprepared]
        with progress("runs", len(runs), "runs", done=len(runs) - len(waiting) - len(failed)) as bar:
            failed += _Processes(waiting, places, bar).work()
    return failed


def prepare_data(runs: Sequence[Run]) -> list[Run]:
    """Prepare the text of the runs, once where it is the same; returns the runs whose text could not be prepared."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        part = {**preparation_options(run.recipe), "root": str(run.recipe.data.root)}
        groups.setdefault(json.dumps(part, sort_keys=True, default=str), []).append(run)
    failed: list[Run] = []
    for group in groups.values():
        source = next((run for run in group if _is_prepared(run)), None)
        if source is None:
            source = group[0]
            say(f"preparing the text of {len(group)} run{'s' if len(group) > 1 else ''}")
            if _finish(_start("prepare", source, {}, ()), source):
                failed += group
                continue
        for run in group:
            if not run.recipe.data_directory.exists():
                _copy_text(source.recipe.data_directory, run.recipe.data_directory)
    return failed


def command(run: Run, *more: str) -> list[str]:
    """The command line of a run."""
    return ["run", str(run.recipe_file), *run.overrides, *more]


@dataclass(frozen=True)
class _Place:
    """Where one process at a time computes: environment variables, and overrides of the recipe."""

    environment: dict[str, str]
    overrides: tuple[str, ...]


class _Processes:
    """Runs that wait, and those that processes are working on."""

    def __init__(self, waiting: Iterable[Run], places: Sequence[_Place], bar: ProgressBar) -> None:
        self._waiting, self._free, self._bar = list(waiting), list(places), bar
        self._working: list[tuple[subprocess.Popen[bytes], Run, _Place, float]] = []
        self._failed: list[Run] = []

    def work(self) -> list[Run]:
        """Carry out all runs; returns those that failed."""
        try:
            while self._waiting or self._working:
                while self._waiting and self._free:
                    run, place = self._waiting.pop(0), self._free.pop(0)
                    say(f"{run.name}: {run.recipe.directory}")
                    process = _start("run", run, place.environment, place.overrides)
                    self._working.append((process, run, place, time.monotonic()))
                time.sleep(_PAUSE)
                self._collect()
        except Interrupted as error:
            self._stop()
            raise Interrupted(
                f"interrupted; {len(self._waiting) + len(self._working)} runs are not complete; to continue, give the "
                "same command again",
                error.status,
            ) from error
        except BaseException:
            self._stop()
            raise
        return self._failed

    def _collect(self) -> None:
        for entry in [one for one in self._working if one[0].poll() is not None]:
            process, run, place, started = entry
            self._working.remove(entry)
            self._free.append(place)
            if _finish(process, run):
                self._failed.append(run)
            else:
                say(f"{run.name}: complete after {format_duration(time.monotonic() - started)}")
                self._bar.advance(1)

    def _stop(self) -> None:
        """Have all processes save and end."""
        for process, *_ in self._working:
            process.send_signal(signal.SIGTERM)
        for process, *_ in self._working:
            process.wait()


def _start(name: str, run: Run, environment: dict[str, str], overrides: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a command of the program on the recipe of a run; what it says goes into a file beside the run."""
    path = _log(run)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as log:
            return _popen([name, *command(run)[1:], *overrides], environment, log)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}; the folder must be writable; give another with -o"
        ) from error


def _popen(arguments: Sequence[str], environment: dict[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "nmt", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env={**os.environ, **environment},
        start_new_session=True,  # so that Ctrl-C reaches it through us, once
    )


def _finish(process: subprocess.Popen[bytes], run: Run) -> bool:
    """Wait for a process; returns whether it failed, which is said with the last line that it wrote."""
    try:
        status = process.wait()
    except BaseException:
        process.send_signal(signal.SIGTERM)
        process.wait()
        raise
    if status:
        lines = _log(run).read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["it wrote nothing"]
        warn(f"{run.name}: ended with status {status}: {lines[-1]}; its output is in {_log(run)}")
    return status != 0


def _log(run: Run) -> Path:
    directory = run.recipe.directory
    return directory.with_name(f"{directory.name}.log")


def _places(recipe: Recipe, jobs: int | None, runs: int) -> list[_Place]:
    """Where the processes compute: each on a GPU of its own, while there are enough, or on its share of the cores."""
    gpus = _gpus() if recipe.train.device in ("auto", "cuda") else []
    count = min(jobs or len(gpus) or 1, runs)
    if gpus:
        return [_Place({"CUDA_VISIBLE_DEVICES": gpus[place % len(gpus)]}, ()) for place in range(count)]
    threads = max(1, num_cores() // count)
    shared = recipe.train.threads == 0 and count > 1
    return [_Place({}, (f"train.threads={threads}",) if shared else ()) for _ in range(count)]


def _gpus() -> list[str]:
    """The names of the GPUs that this process may use."""
    count = torch.cuda.device_count()
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return given.split(",")[:count] if given else [str(place) for place in range(count)]


def _is_prepared(run: Run) -> bool:
    directory = run.recipe.data_directory
    return read_report(directory) is not None and not outdated_splits(run.recipe, directory)


def _copy_text(source: Path, target: Path) -> None:
    """Give prepared text to another run; what may be rewritten in place is copied, all else has a second name."""
    with replacing(target) as folder:
        for path in source.iterdir():
            if path.suffix == ".json":
                shutil.copyfile(path, folder / path.name)
            elif path.is_file():
                link_or_copy(path, folder / path.name)


def _facts(recipe: Recipe) -> dict[str, Any]:
    return recipe.model_dump(mode="json", exclude={"train": {"threads"}})
