"""Cases of several processes under torchrun, and reproducibility of a run."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from nmt.storage.run_folder import list_checkpoints
from torture_cases.faults import Action, Event, Fault
from torture_cases.interruptions import check_completed
from torture_cases.run_state import (
    check_repeated,
    corrupt_checkpoints,
    differences,
    last_step,
    max_loss_difference,
    metrics,
    newest_step,
    verifies,
)
from torture_cases.sandbox import (
    LIMIT,
    MAX_STEPS,
    MULTI_PROCESS_LIMIT,
    SAVE_EVERY,
    Command,
    CommandResult,
    Launch,
    Sandbox,
    SetupError,
    Trial,
    first_problem,
)

# Seconds without a heartbeat after which nmt ends the job.
_WATCH = {"NMT_WATCH_SECONDS": "3"}

# Time limit of a job after one process is lost; torchrun waits 30 seconds before it kills the others.
_END_LIMIT = 60.0

_STOP_LIMIT = 30.0
_MAX_DIFFERENCE = 1e-6


# --- A lost process ---------------------------------------------------------------------------------------------------


def lost_process(sandbox: Sandbox, quick: bool) -> Iterator[Trial]:
    """Kill or suspend one of two processes: the job must end, name the rank, leave no process, and resume."""
    reference = sandbox.reference("new", 2)[0]
    for number, rank in ((signal.SIGKILL, 1), (signal.SIGSTOP, 1), (signal.SIGKILL, 0), (signal.SIGSTOP, 0))[
        : 1 if quick else None
    ]:
        run = sandbox.prepared_run()
        command = sandbox.start(sandbox.training(run), processes=2, environment=_WATCH)
        _wait_for_step(command, run, SAVE_EVERY + 2)
        pid = min(pid for pid, of in command.processes().items() if of == rank)
        os.kill(pid, number)
        result = command.finish(_END_LIMIT)
        again, lost = check_repeated(run, SAVE_EVERY)
        problem = first_problem(_check_exit_names_rank(result, number, rank), check_no_processes(command), lost)
        restarted = sandbox.run(sandbox.training(run), processes=2)
        yield Trial(
            f"{number.name} to rank {rank}",
            first_problem(problem, check_completed(restarted, run, reference)),
            run,
            {"seconds from the start to the end of the job": result.seconds, "updates repeated, at most": again},
        )


def _wait_for_step(command: Command, run: Path, step: int) -> None:
    problem = f"the run did not reach update {step}"
    command.wait_until(lambda: last_step(run) >= step, MULTI_PROCESS_LIMIT, problem)


def _check_exit_names_rank(result: CommandResult, number: signal.Signals, rank: int) -> str | None:
    if result.status is None:
        watch = " (is the failure detection off?)" if number == signal.SIGSTOP else ""
        return f"the job did not end within {_END_LIMIT:.0f} s{watch}"
    if result.status == 0:
        return "the job succeeded"
    # torchrun names a killed process. Only nmt can detect a suspended one.
    lines = result.stderr.split("\n") if number == signal.SIGKILL else result.error_lines
    if not any(re.search(rf"(rank|process)\D{{0,12}}{rank}\b", line, re.IGNORECASE) for line in lines):
        return f"no message names rank {rank} ({result.summary})"
    return None


def check_no_processes(command: Command) -> str | None:
    """Return a problem if processes of a finished job are still running, and kill them."""
    limit = time.monotonic() + 5.0
    while (left := command.processes()) and time.monotonic() < limit:
        time.sleep(0.1)
    if left:
        command.kill()
    return f"{len(left)} processes are still running" if left else None


# --- SIGTERM to one of two --------------------------------------------------------------------------------------------


def terminated_process(sandbox: Sandbox, quick: bool) -> Iterator[Trial]:
    """Send SIGTERM to one of two processes in each phase: both must save the same step and exit with 143."""
    reference = sandbox.reference("new", 2)[0]
    parts: list[tuple[str, Event, int, int]] = [
        ("training", "accumulation", SAVE_EVERY + 2, 1),
        ("validation", "validation", 1, 0),
        ("decoding", "decoding", 3, 1),
        ("saving", "file", 3, 1),
        ("saving", "file", 4, 0),
    ]
    for name, event, count, target in parts[: 1 if quick else None]:
        run = sandbox.prepared_run()
        fault = Fault(event, count, "signal", step=SAVE_EVERY, target=target)
        command = sandbox.start(sandbox.training(run), processes=2, fault=fault)
        result = command.finish(MULTI_PROCESS_LIMIT)
        problem, seconds = _check_both_stopped(command, result, run)
        restarted = sandbox.run(sandbox.training(run), processes=2)
        yield Trial(
            f"SIGTERM to rank {target} during {name}",
            first_problem(problem, check_no_processes(command), check_completed(restarted, run, reference)),
            run,
            {"seconds from the signal to the end": seconds},
        )


def _check_both_stopped(command: Command, result: CommandResult, run: Path) -> tuple[str | None, float]:
    fired = command.log_dir / "fired"
    if not fired.exists():
        return f"that phase was not reached ({result.summary})", 0.0
    seconds = time.time() - float(fired.read_text(encoding="utf-8"))
    paths = [command.log_dir / f"end-{rank}" for rank in (0, 1)]
    ends = [json.loads(path.read_text(encoding="utf-8")) if path.exists() else {} for path in paths]
    saved = newest_step(run)
    expected = {"status": 143, "updates": saved}
    if result.status is None or seconds > _STOP_LIMIT:
        return f"it ended only after {seconds:.0f} s", seconds
    if ends != [expected, expected]:
        return f"the ranks ended with {ends}; the newest checkpoint is step {saved}; {result.summary}", seconds
    return f"corrupt: {corrupt_checkpoints(run)}" if corrupt_checkpoints(run) else None, seconds


# --- Number of processes ----------------------------------------------------------------------------------------------


def process_counts(sandbox: Sandbox, quick: bool) -> Iterator[Trial]:
    """Train with 1, 2 and 4 processes, and resume from 2 with 1 and 4: losses must agree within 1e-6."""
    reference = sandbox.reference()[0]
    yield _compare_losses("2 processes", sandbox.reference("new", 2)[0], reference)
    half = sandbox.prepared_run()
    half_way = Fault("update", MAX_STEPS // 2, "signal", target=1)
    stopped = sandbox.start(sandbox.training(half), processes=2, fault=half_way).finish(MULTI_PROCESS_LIMIT)
    if not 0 < newest_step(half) < MAX_STEPS:
        raise SetupError(f"the run of 2 processes did not stop at the fault: {stopped.summary}")
    yield _resumed(sandbox, half, 1, reference)
    if not quick:
        yield _compare_losses("4 processes", sandbox.reference("new", 4)[0], reference)
        yield _resumed(sandbox, half, 4, reference)


def _resumed(sandbox: Sandbox, half: Path, processes: int, reference: Path) -> Trial:
    run = sandbox.new_run(half)
    result = sandbox.run(sandbox.training(run), processes=processes)
    name = f"from 2 to {processes} processes at update {newest_step(half)}"
    return _compare_losses(name, run, reference) if result.status == 0 else Trial(name, f"it failed: {result.summary}")


def _compare_losses(name: str, run: Path, reference: Path) -> Trial:
    difference, missing = max_loss_difference(run, reference)
    problem = f"losses have a relative difference of {difference:.1e}" if difference > _MAX_DIFFERENCE else None
    return Trial(name, first_problem(missing, problem), measured={"relative difference of losses": difference})


# --- Different views of one run ---------------------------------------------------------------------------------------


def different_views(sandbox: Sandbox, quick: bool) -> Iterator[Trial]:
    """Hide or damage the newest checkpoint for the second process, then damage it for both.

    If only the second process is affected, the job must end with an error that names the checkpoint and not change it.
    If both are, they must resume from the previous checkpoint.
    """
    reference = sandbox.reference("new", 2)[0]
    half = sandbox.prepared_run()
    # Stop right after a save, to repeat few updates from the checkpoint before the newest.
    stop = Fault("update", min(2 * SAVE_EVERY + 1, MAX_STEPS - 1), "signal", target=1)
    stopped = sandbox.start(sandbox.training(half), processes=2, fault=stop).finish(MULTI_PROCESS_LIMIT)
    if len(list_checkpoints(half)) < 2:
        raise SetupError(f"the run of 2 processes did not stop at the fault: {stopped.summary}")
    views: tuple[tuple[str, Action], ...] = (("missing", "hide"), ("damaged", "flip"))
    for name, action in views[: 1 if quick else None]:
        run = sandbox.new_run(half)
        newest = list_checkpoints(run)[-1]
        fault = Fault("view", 1, action, step=newest_step(run), rank=1)
        result = sandbox.start(sandbox.training(run), processes=2, fault=fault).finish(MULTI_PROCESS_LIMIT)
        problem = first_problem(_refused(result, newest), None if verifies(newest) else "the checkpoint was changed")
        restarted = sandbox.run(sandbox.training(run), processes=2)
        problem = first_problem(problem, check_completed(restarted, run, reference))
        yield Trial(f"newest checkpoint {name} for process 1", problem, run)
    run = sandbox.new_run(half)
    broken = list_checkpoints(run)[-1] / "model.safetensors"
    broken.write_bytes(broken.read_bytes()[:-1])
    restarted = sandbox.run(sandbox.training(run), processes=2)
    renamed = restarted.stderr.count("set aside as corrupt-")
    once = None if renamed == 1 else f"the checkpoint was renamed {renamed} times instead of once"
    yield Trial("damaged for both processes", first_problem(check_completed(restarted, run, reference), once), run)


def _refused(result: CommandResult, newest: Path) -> str | None:
    if result.status == 0 or result.status is None:
        return f"it continued ({result.summary})"
    if not any(newest.name in line for line in result.error_lines):
        return f"no error names {newest.name} ({result.summary})"
    return None


# --- Reproducibility --------------------------------------------------------------------------------------------------


def same_run_twice(sandbox: Sandbox, quick: bool) -> Iterator[Trial]:
    """Run 100 updates in two new interpreters with different hash seeds: losses and final state must be equal.

    The quick variant is two forks of 30 updates.
    """
    steps = MAX_STEPS if quick else 100
    launch: Launch = "fork" if quick else "new"
    runs = [sandbox.prepared_run() for _ in range(2)]
    for seed, run in enumerate(runs, start=1):
        environment = {} if quick else {"PYTHONHASHSEED": str(seed)}
        arguments = sandbox.training(run, f"train.max_steps={steps}")
        result = sandbox.start(arguments, launch=launch, environment=environment).finish(2 * LIMIT)
        if result.status != 0:
            raise SetupError(f"a run failed: {result.summary}")
    losses = [[line["train/loss"] for line in metrics(run) if "train/loss" in line] for run in runs]
    equal = sum(one == other for one, other in zip(*losses, strict=True))
    different = None if equal == steps else f"{equal} of {steps} losses are equal"
    rest = ", ".join(differences(*runs)) or None
    yield Trial(f"{steps} updates", first_problem(different, rest), measured={"losses equal": equal})
