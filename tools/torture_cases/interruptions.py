"""Cases in which one process is killed, stopped, or finds the disk full, and the same command is given again."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from torture_cases.evidence import broken_checkpoints, checkpoints, differences, metrics, newest_step, repeated, step_of
from torture_cases.faults import SPACE_TAKING, Deed, Fault
from torture_cases.trial import Trial, first_problem
from torture_cases.workshop import MAX_STEPS, SAVE_EVERY, TEMPLATE_STEP, Ended, Launch, Workshop

KILLED = -int(signal.SIGKILL)
DISTURBED_SAVE = TEMPLATE_STEP + SAVE_EVERY

Item = TypeVar("Item")


def completed(ended: Ended, run: Path, reference: Path) -> str | None:
    """What is wrong with a run that should have gone on to the same end as the undisturbed one, if anything."""
    if ended.status != 0 or ended.traceback:
        return f"the restart failed: {ended.summary}"
    different = differences(run, reference)
    return f"the end differs from the undisturbed run: {', '.join(different)}" if different else None


def _whole(run: Path) -> str | None:
    broken = broken_checkpoints(run)
    return f"checkpoints that do not verify: {', '.join(broken)}" if broken else None


# --- SIGKILL at any moment --------------------------------------------------------------------------------------------


def kill_at_random_moments(shop: Workshop, quick: bool) -> Iterator[Trial]:
    """`nmt run` from nothing, killed at moments drawn evenly over its length; every tenth trial is killed three times.

    Every tenth trial is a new interpreter, with a hash seed of its own; the others are forks.
    """
    for number in range(2 if quick else 50):
        launch: Launch = "new" if number % 10 == 9 else "fork"
        kills = 3 if number % 10 == 4 else 1
        duration = shop.reference(launch)[1]
        trial = None
        while trial is None:  # it may be through before its moment comes: then there was no kill
            moments = [shop.random.uniform(0.0, duration / (1 if kills == 1 else 2)) for _ in range(kills)]
            trial = _kill(shop, moments, launch)
        yield trial


def _kill(shop: Workshop, moments: Sequence[float], launch: Launch) -> Trial | None:
    run = shop.new_run()
    arguments = shop.training(run, command="run")
    name = f"{launch}, killed after {' and '.join(f'{moment:.3f}' for moment in moments)} s"
    problem, most, killed = None, 0, 0
    for moment in moments:
        command = shop.start(arguments, launch=launch)
        if command.wait(moment) is not None:
            break
        command.kill()
        killed += 1
        again, lost = repeated(run, SAVE_EVERY)
        problem, most = first_problem(problem, lost, _whole(run)), max(most, again)
    if not killed:
        return None
    ended = shop.do(arguments, launch=launch)
    problem = first_problem(problem, completed(ended, run, shop.reference()[0]))
    return Trial(name, problem, run, {"updates repeated, at most": most})


# --- SIGKILL at every operation of a save -----------------------------------------------------------------------------


def kill_at_file_operations(shop: Workshop, quick: bool) -> Iterator[Trial]:
    """Killed before every operation on files during a save, and in the middle of every write."""
    yield from _kill_save(shop, "save", shop.template(), (), quick)
    if not quick:
        yield from _kill_save(shop, "save anew", *_broken_off_validation(shop), quick)


def _broken_off_validation(shop: Workshop) -> tuple[Path, tuple[str, ...]]:
    """A run that was stopped while it validated, so that it saves the same step once more; it keeps one checkpoint."""
    few = ("train.keep_last=1", "train.keep_best=0", "train.average_count=1")
    run = shop.new_run(shop.template(*few))
    stop = Fault("validation", 1, "signal")
    shop.start(shop.training(run, *few), fault=stop).end()
    return run, few


def _kill_save(shop: Workshop, name: str, template: Path, overrides: Sequence[str], quick: bool) -> Iterator[Trial]:
    operations = _operations(shop, template, overrides)
    if not operations:
        yield Trial(f"{name}: there is no such save")
    deeds: list[tuple[int, str, Deed]] = []
    for count, operation in enumerate(operations, start=1):
        deeds.append((count, operation, "kill"))
        if operation.startswith("write"):
            deeds.append((count, f"half of {operation}", "tear"))
    for count, operation, deed in _some(deeds, 2 if quick else None):
        run = shop.new_run(template)
        arguments = shop.training(run, *overrides)
        command = shop.start(arguments, fault=Fault("file", count, deed, DISTURBED_SAVE))
        killed = command.end()
        died = None if killed.status == KILLED else f"operation {count} never came ({killed.summary})"
        again, lost = repeated(run, SAVE_EVERY)
        problem = first_problem(died, lost, _whole(run))
        ended = shop.do(arguments)
        yield Trial(
            f"{name}, operation {count} of {len(operations)}: {operation}",
            first_problem(problem, completed(ended, run, shop.reference()[0])),
            run,
            {"operations of a save": len(operations), "updates repeated, at most": again},
        )


def _operations(shop: Workshop, template: Path, overrides: Sequence[str]) -> list[str]:
    """All that the disturbed save does to files, in its order."""
    run = shop.new_run(template)
    command = shop.start(shop.training(run, *overrides), fault=Fault("file", 0, "record", DISTURBED_SAVE))
    command.end()
    noted = command.notes / "operations"
    return noted.read_text(encoding="utf-8").split("\n")[:-1] if noted.exists() else []


def _some(items: Sequence[Item], count: int | None) -> Sequence[Item]:
    """All items, or so many at even distances."""
    if count is None or count >= len(items):
        return items
    return [items[place * len(items) // count] for place in range(count)]


# --- Disk full --------------------------------------------------------------------------------------------------------


def disk_full(shop: Workshop, quick: bool) -> Iterator[Trial]:
    """No room on the disk from the n-th operation of a save on: for checkpoints alone, and for the whole run."""
    template = shop.template()
    operations = [operation for operation in _operations(shop, template, ()) if operation.split(" ")[0] in SPACE_TAKING]
    deeds: list[tuple[int, str, Deed]] = [
        (count, operation, deed) for count, operation in enumerate(operations, start=1) for deed in ("full", "full-run")
    ]
    for count, operation, deed in _some(deeds, 3 if quick else None):
        run = shop.new_run(template)
        arguments = shop.training(run)
        ended = shop.start(arguments, fault=Fault("file", count, deed, DISTURBED_SAVE)).end()
        problem = first_problem(_says_that_the_disk_is_full(ended), _whole(run), _earlier_is_there(run))
        restarted = shop.do(arguments)
        where = "checkpoints" if deed == "full" else "the run"
        yield Trial(
            f"no room for {where} from operation {count} of {len(operations)}: {operation}",
            first_problem(problem, completed(restarted, run, shop.reference()[0])),
            run,
            {"operations that need room": len(operations)},
        )


def _says_that_the_disk_is_full(ended: Ended) -> str | None:
    if ended.status != 1:
        return f"its exit status must be 1 ({ended.summary})"
    if ended.traceback:
        return f"it shows a traceback ({ended.summary})"
    if len(ended.error_lines) != 1 or "full" not in ended.error_lines[0]:
        return f"it must say in one line that the disk is full; it says: {' / '.join(ended.error_lines) or 'nothing'}"
    return None


def _earlier_is_there(run: Path) -> str | None:
    return None if TEMPLATE_STEP in map(step_of, checkpoints(run)) else "the earlier checkpoint is gone"


# --- Stop and resume --------------------------------------------------------------------------------------------------


def stop_and_resume(shop: Workshop, quick: bool) -> Iterator[Trial]:
    """Stopped by signals 1, 3 and 10 times, after whole updates and within them, at ends of epochs too."""
    reference = shop.reference()[0]
    for times in (2,) if quick else (1, 3, 10):
        ends = epoch_ends(reference)
        chosen = {shop.random.choice(ends)} if times > 1 else set()
        while len(chosen) < times:
            chosen.add(shop.random.randrange(1, MAX_STEPS))
        yield _stop(shop, sorted(chosen), ends, reference)


def epoch_ends(run: Path) -> list[int]:
    """The updates that end an epoch but not the run."""
    epochs = [(int(line["step"]), line["train/epoch"]) for line in metrics(run) if "train/epoch" in line]
    return [step for (_, before), (step, epoch) in pairwise(epochs) if epoch > before and step < MAX_STEPS]


def _stop(shop: Workshop, steps: Sequence[int], ends: Sequence[int], reference: Path) -> Trial:
    run = shop.prepared()
    arguments = shop.training(run)
    kinds = [(signal.SIGTERM, 143), (signal.SIGUSR1, 143), (signal.SIGINT, 130)]
    problem, before = None, 0
    for place, step in enumerate(steps):
        number, status = kinds[place % len(kinds)]
        within = step - before > 1 and step not in ends and place % 2 == 0
        fault = Fault(
            "accumulation" if within else "update",
            step - before - (1 if within else 0),
            "signal",
            number=int(number),
        )
        ended = shop.start(arguments, fault=fault).end()
        if ended.status != status:
            problem = problem or f"{number.name} at update {step}: exit status must be {status} ({ended.summary})"
        if newest_step(run) != step:
            problem = problem or f"{number.name} at update {step}: the checkpoint saved is of {newest_step(run)}"
        before = step
    restarted = shop.do(arguments)
    name = f"{len(steps)} stops, at updates {', '.join(map(str, steps))}"
    return Trial(name, first_problem(problem, completed(restarted, run, reference)), run)
