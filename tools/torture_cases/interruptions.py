"""Cases in which one process is killed, stopped, or runs out of disk space, and is restarted."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from nmt.storage.run_folder import checkpoint_step, list_checkpoints
from torture_cases.faults import ALLOCATING, Action, Fault
from torture_cases.run_state import (
    check_repeated,
    corrupt_checkpoints,
    differences,
    metrics,
    newest_step,
)
from torture_cases.sandbox import (
    MAX_STEPS,
    SAVE_EVERY,
    TEMPLATE_STEP,
    CommandResult,
    Launch,
    Sandbox,
    Trial,
    first_problem,
)

KILLED = -int(signal.SIGKILL)
# Step of the checkpoint whose save has a fault.
FAULTY_SAVE = TEMPLATE_STEP + SAVE_EVERY

Item = TypeVar("Item")


def check_completed(result: CommandResult, run: Path, reference: Path) -> str | None:
    """Return a problem unless a restarted run completed like the reference."""
    if result.status != 0 or result.has_traceback:
        return f"the restart failed: {result.summary}"
    different = differences(run, reference)
    return f"the result differs from the fault-free run: {', '.join(different)}" if different else None


def _check_checkpoints(run: Path) -> str | None:
    broken = corrupt_checkpoints(run)
    return f"corrupt checkpoints: {', '.join(broken)}" if broken else None


# --- SIGKILL at random times ------------------------------------------------------------------------------------------


def kill_at_random_moments(sandbox: Sandbox, quick: bool) -> Iterator[Trial]:
    """Kill `nmt run` at uniformly random times: three times in a tenth of the trials, once in the others.

    Another tenth of the trials starts new interpreters, with their own hash seeds; the others use forks.
    """
    for number in range(2 if quick else 50):
        launch: Launch = "new" if number % 10 == 9 else "fork"
        kills = 3 if number % 10 == 4 else 1
        duration = sandbox.reference(launch)[1]
        trial = None
        while trial is None:  # repeat if the command ended before the kill
            moments = [sandbox.random.uniform(0.0, duration / (1 if kills == 1 else 2)) for _ in range(kills)]
            trial = _kill(sandbox, moments, launch)
        yield trial


def _kill(sandbox: Sandbox, moments: Sequence[float], launch: Launch) -> Trial | None:
    run = sandbox.new_run()
    arguments = sandbox.training(run, command="run")
    name = f"{launch}, killed after {' and '.join(f'{moment:.3f}' for moment in moments)} s"
    problem, most, killed = None, 0, 0
    for moment in moments:
        command = sandbox.start(arguments, launch=launch)
        if command.wait(moment) is not None:
            break
        command.kill()
        killed += 1
        again, lost = check_repeated(run, SAVE_EVERY)
        problem, most = first_problem(problem, lost, _check_checkpoints(run)), max(most, again)
    if not killed:
        return None
    result = sandbox.run(arguments, launch=launch)
    problem = first_problem(problem, check_completed(result, run, sandbox.reference()[0]))
    return Trial(name, problem, run, {"updates repeated, at most": most})


# --- SIGKILL at every operation of a save -----------------------------------------------------------------------------


def kill_at_file_operations(sandbox: Sandbox, quick: bool) -> Iterator[Trial]:
    """Kill before every file operation of a save, and in the middle of every write."""
    yield from _kill_save(sandbox, "save", sandbox.template(), (), quick)
    if not quick:
        yield from _kill_save(sandbox, "repeated save", *_interrupted_validation(sandbox), quick)


def _interrupted_validation(sandbox: Sandbox) -> tuple[Path, tuple[str, ...]]:
    """Create a run, stopped during validation, that saves the same step again on resuming; it keeps one checkpoint."""
    few = ("train.keep_last=1", "train.keep_best=0", "train.average_count=1")
    run = sandbox.new_run(sandbox.template(*few))
    stop = Fault("validation", 1, "signal")
    sandbox.start(sandbox.training(run, *few), fault=stop).finish()
    return run, few


def _kill_save(sandbox: Sandbox, name: str, template: Path, overrides: Sequence[str], quick: bool) -> Iterator[Trial]:
    operations = _operations(sandbox, template, overrides)
    if not operations:
        yield Trial(name, "no file operation was recorded")
    actions: list[tuple[int, str, Action]] = []
    for count, operation in enumerate(operations, start=1):
        actions.append((count, operation, "kill"))
        if operation.startswith("write"):
            actions.append((count, f"half of {operation}", "tear"))
    for count, operation, action in _sample(actions, 2 if quick else None):
        run = sandbox.new_run(template)
        arguments = sandbox.training(run, *overrides)
        command = sandbox.start(arguments, fault=Fault("file", count, action, FAULTY_SAVE))
        killed = command.finish()
        not_killed = None if killed.status == KILLED else f"operation {count} did not happen ({killed.summary})"
        again, lost = check_repeated(run, SAVE_EVERY)
        problem = first_problem(not_killed, lost, _check_checkpoints(run))
        result = sandbox.run(arguments)
        yield Trial(
            f"{name}, operation {count} of {len(operations)}: {operation}",
            first_problem(problem, check_completed(result, run, sandbox.reference()[0])),
            run,
            {"operations of a save": len(operations), "updates repeated, at most": again},
        )


def _operations(sandbox: Sandbox, template: Path, overrides: Sequence[str]) -> list[str]:
    """File operations of the save, in order."""
    run = sandbox.new_run(template)
    command = sandbox.start(sandbox.training(run, *overrides), fault=Fault("file", 0, "record", FAULTY_SAVE))
    command.finish()
    path = command.log_dir / "operations"
    return path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []


def _sample(items: Sequence[Item], count: int | None) -> Sequence[Item]:
    """Return all items, or `count` evenly spaced ones."""
    if count is None or count >= len(items):
        return items
    return [items[i * len(items) // count] for i in range(count)]


# --- Disk full --------------------------------------------------------------------------------------------------------


def disk_full(sandbox: Sandbox, quick: bool) -> Iterator[Trial]:
    """Disk full from the n-th operation of a save, for the checkpoints only and for the whole run."""
    template = sandbox.template()
    operations = [
        operation for operation in _operations(sandbox, template, ()) if operation.split(" ")[0] in ALLOCATING
    ]
    actions: list[tuple[int, str, Action]] = [
        (count, operation, action)
        for count, operation in enumerate(operations, start=1)
        for action in ("full", "full-run")
    ]
    for count, operation, action in _sample(actions, 3 if quick else None):
        run = sandbox.new_run(template)
        arguments = sandbox.training(run)
        result = sandbox.start(arguments, fault=Fault("file", count, action, FAULTY_SAVE)).finish()
        problem = first_problem(_check_disk_full_error(result), _check_checkpoints(run), _check_earlier_checkpoint(run))
        restarted = sandbox.run(arguments)
        where = "checkpoints" if action == "full" else "the run"
        yield Trial(
            f"disk full for {where} from operation {count} of {len(operations)}: {operation}",
            first_problem(problem, check_completed(restarted, run, sandbox.reference()[0])),
            run,
            {"operations that need space": len(operations)},
        )


def _check_disk_full_error(result: CommandResult) -> str | None:
    if result.status != 1:
        return f"expected status 1 ({result.summary})"
    if result.has_traceback:
        return f"traceback ({result.summary})"
    if len(result.error_lines) != 1 or "full" not in result.error_lines[0]:
        return f"expected a one-line error about the full disk, got: {' / '.join(result.error_lines) or 'nothing'}"
    return None


def _check_earlier_checkpoint(run: Path) -> str | None:
    return None if TEMPLATE_STEP in map(checkpoint_step, list_checkpoints(run)) else "the earlier checkpoint is missing"


# --- Stop and resume --------------------------------------------------------------------------------------------------


def stop_and_resume(sandbox: Sandbox, quick: bool) -> Iterator[Trial]:
    """Stop with signals 1, 3 and 10 times, between and within updates and at epoch ends."""
    reference = sandbox.reference()[0]
    for times in (2,) if quick else (1, 3, 10):
        ends = epoch_ends(reference)
        chosen = {sandbox.random.choice(ends)} if times > 1 else set()
        while len(chosen) < times:
            chosen.add(sandbox.random.randrange(1, MAX_STEPS))
        yield _stop(sandbox, sorted(chosen), ends, reference)


def epoch_ends(run: Path) -> list[int]:
    """Updates that end an epoch but not the run."""
    epochs = [(int(line["step"]), int(line["train/epoch"])) for line in metrics(run) if "train/epoch" in line]
    return [step for (_, before), (step, epoch) in pairwise(epochs) if epoch > before and step < MAX_STEPS]


def _stop(sandbox: Sandbox, steps: Sequence[int], ends: Sequence[int], reference: Path) -> Trial:
    run = sandbox.prepared_run()
    arguments = sandbox.training(run)
    signals = [(signal.SIGTERM, 143), (signal.SIGUSR1, 143), (signal.SIGINT, 130)]
    problem, before = None, 0
    for i, step in enumerate(steps):
        number, status = signals[i % len(signals)]
        within = step - before > 1 and step not in ends and i % 2 == 0
        fault = Fault(
            "accumulation" if within else "update",
            step - before - (1 if within else 0),
            "signal",
            number=int(number),
        )
        result = sandbox.start(arguments, fault=fault).finish()
        if result.status != status:
            problem = problem or f"{number.name} at update {step}: expected status {status} ({result.summary})"
        if newest_step(run) != step:
            problem = problem or f"{number.name} at update {step}: the newest checkpoint is step {newest_step(run)}"
        before = step
    restarted = sandbox.run(arguments)
    name = f"{len(steps)} stops, at updates {', '.join(map(str, steps))}"
    return Trial(name, first_problem(problem, check_completed(restarted, run, reference)), run)
