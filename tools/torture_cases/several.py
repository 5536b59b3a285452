"""Cases of several processes under torchrun, and the proof that the same run twice is the same."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from torture_cases.evidence import (
    broken_checkpoints,
    differences,
    farthest_losses,
    last_step,
    metrics,
    newest_step,
    repeated,
)
from torture_cases.faults import Event, Fault
from torture_cases.interruptions import completed
from torture_cases.trial import Trial, first_problem
from torture_cases.workshop import (
    LIMIT,
    LIMIT_OF_SEVERAL,
    MAX_STEPS,
    SAVE_EVERY,
    Command,
    Ended,
    Launch,
    Workshop,
    WorkshopError,
)

# How long processes may wait in silence for one that is stopped; read by nmt.
_WATCH = {"NMT_WATCH_SECONDS": "3"}

# Longest until a job whose process is lost must have ended: torchrun alone waits 30 seconds before it kills the others.
_END_LIMIT = 60.0

_STOP_LIMIT = 30.0
_CLOSE = 1e-6


# --- One process is lost ----------------------------------------------------------------------------------------------


def lost_process(shop: Workshop, quick: bool) -> Iterator[Trial]:
    """SIGKILL and SIGSTOP for one of two processes: the job ends, names the rank, leaves no process, and goes on."""
    reference = shop.reference("new", 2)[0]
    for number, rank in ((signal.SIGKILL, 1), (signal.SIGSTOP, 1), (signal.SIGKILL, 0), (signal.SIGSTOP, 0))[
        : 1 if quick else None
    ]:
        run = shop.prepared()
        command = shop.start(shop.training(run), processes=2, environment=_WATCH)
        _wait_for_step(command, run, SAVE_EVERY + 2)
        pid = min(pid for pid, of in command.processes().items() if of == rank)
        os.kill(pid, number)
        ended = command.end(_END_LIMIT)
        again, lost = repeated(run, SAVE_EVERY)
        problem = first_problem(_ended_well(ended, number, rank), nothing_left(command), lost)
        restarted = shop.do(shop.training(run), processes=2)
        yield Trial(
            f"{number.name} to rank {rank}",
            first_problem(problem, completed(restarted, run, reference)),
            run,
            {"seconds from the start to the end of the job": ended.seconds, "updates repeated, at most": again},
        )


def _wait_for_step(command: Command, run: Path, step: int) -> None:
    limit = time.monotonic() + LIMIT_OF_SEVERAL
    while last_step(run) < step:
        if time.monotonic() > limit or command.wait(0.005) is not None:
            raise WorkshopError(f"the run did not come to update {step}: {command.end(1.0).summary}")


def _ended_well(ended: Ended, number: signal.Signals, rank: int) -> str | None:
    if ended.status is None:
        watch = " (nothing watches over stopped processes?)" if number == signal.SIGSTOP else ""
        return f"the job did not end within {_END_LIMIT:.0f} s{watch}"
    if ended.status == 0:
        return "the job ended as if all were well"
    # torchrun names the process that died. Of one that was stopped only nmt can know.
    lines = ended.said.split("\n") if number == signal.SIGKILL else ended.error_lines
    if not any(re.search(rf"(rank|process)\D{{0,12}}{rank}\b", line, re.IGNORECASE) for line in lines):
        return f"no message names rank {rank} ({ended.summary})"
    return None


def nothing_left(command: Command) -> str | None:
    """What processes of a job are still there when it has ended; they are ended."""
    limit = time.monotonic() + 5.0
    while (left := command.processes()) and time.monotonic() < limit:
        time.sleep(0.1)
    if left:
        command.kill()
    return f"{len(left)} processes were left" if left else None


# --- SIGTERM to one of two --------------------------------------------------------------------------------------------


def terminated_process(shop: Workshop, quick: bool) -> Iterator[Trial]:
    """SIGTERM to one of two processes in each part of training: both save the same step and leave with 143."""
    reference = shop.reference("new", 2)[0]
    parts: list[tuple[str, Event, int, int]] = [
        ("training", "accumulation", SAVE_EVERY + 2, 1),
        ("validation", "validation", 1, 0),
        ("decoding", "decoding", 3, 1),
        ("saving", "file", 3, 1),
        ("saving", "file", 4, 0),
    ]
    for name, event, count, target in parts[: 1 if quick else None]:
        run = shop.prepared()
        fault = Fault(event, count, "signal", step=SAVE_EVERY, target=target)
        command = shop.start(shop.training(run), processes=2, fault=fault)
        ended = command.end(LIMIT_OF_SEVERAL)
        problem, seconds = _both_stopped(command, ended, run)
        restarted = shop.do(shop.training(run), processes=2)
        yield Trial(
            f"SIGTERM to rank {target} during {name}",
            first_problem(problem, nothing_left(command), completed(restarted, run, reference)),
            run,
            {"seconds from the signal to the end": seconds},
        )


def _both_stopped(command: Command, ended: Ended, run: Path) -> tuple[str | None, float]:
    fired = command.notes / "fired"
    if not fired.exists():
        return f"that part was never entered ({ended.summary})", 0.0
    seconds = time.time() - float(fired.read_text(encoding="utf-8"))
    notes = [command.notes / f"end-{rank}" for rank in (0, 1)]
    ends = [json.loads(note.read_text(encoding="utf-8")) if note.exists() else {} for note in notes]
    saved = newest_step(run)
    wanted = {"status": 143, "updates": saved}
    if ended.status is None or seconds > _STOP_LIMIT:
        return f"it ended only after {seconds:.0f} s", seconds
    if ends != [wanted, wanted]:
        return f"the ranks ended with {ends}; the checkpoint is of step {saved}; {ended.summary}", seconds
    return f"broken: {broken_checkpoints(run)}" if broken_checkpoints(run) else None, seconds


# --- Any number of processes ------------------------------------------------------------------------------------------


def any_number_of_processes(shop: Workshop, quick: bool) -> Iterator[Trial]:
    """1, 2 and 4 processes, and going on from 2 with 1 and with 4: all losses within 1e-6 relative."""
    reference = shop.reference()[0]
    yield _close("2 processes", shop.reference("new", 2)[0], reference)
    half = shop.prepared()
    half_way = Fault("update", MAX_STEPS // 2, "signal", target=1)
    stopped = shop.start(shop.training(half), processes=2, fault=half_way).end(LIMIT_OF_SEVERAL)
    if not 0 < newest_step(half) < MAX_STEPS:
        raise WorkshopError(f"the run of 2 processes did not stop where it should: {stopped.summary}")
    yield _gone_on(shop, half, 1, reference)
    if not quick:
        yield _close("4 processes", shop.reference("new", 4)[0], reference)
        yield _gone_on(shop, half, 4, reference)


def _gone_on(shop: Workshop, half: Path, processes: int, reference: Path) -> Trial:
    run = shop.new_run(half)
    ended = shop.do(shop.training(run), processes=processes)
    name = f"from 2 to {processes} processes at update {newest_step(half)}"
    return _close(name, run, reference) if ended.status == 0 else Trial(name, f"it failed: {ended.summary}")


def _close(name: str, run: Path, reference: Path) -> Trial:
    farthest, missing = farthest_losses(run, reference)
    apart = f"losses differ by {farthest:.1e} relative" if farthest > _CLOSE else None
    return Trial(name, first_problem(missing, apart), figures={"relative difference of losses": farthest})


# --- Twice the same ---------------------------------------------------------------------------------------------------


def same_run_twice(shop: Workshop, quick: bool) -> Iterator[Trial]:
    """Two runs of 100 updates by new interpreters with other hash seeds: every loss and the final state are equal.

    The quick way is two forks of 30 updates.
    """
    steps = MAX_STEPS if quick else 100
    launch: Launch = "fork" if quick else "new"
    runs = [shop.prepared() for _ in range(2)]
    for seed, run in enumerate(runs, start=1):
        environment = {} if quick else {"PYTHONHASHSEED": str(seed)}
        arguments = shop.training(run, f"train.max_steps={steps}")
        ended = shop.start(arguments, launch=launch, environment=environment).end(2 * LIMIT)
        if ended.status != 0:
            raise WorkshopError(f"a run failed: {ended.summary}")
    losses = [[line["train/loss"] for line in metrics(run) if "train/loss" in line] for run in runs]
    equal = sum(mine == theirs for mine, theirs in zip(*losses, strict=True))
    different = None if equal == steps else f"{equal} of {steps} losses are equal"
    rest = ", ".join(differences(*runs)) or None
    yield Trial(f"{steps} updates", first_problem(different, rest), figures={"losses equal": equal})
