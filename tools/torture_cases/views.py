"""Cases in which processes of one job see different checkpoints, as with disks of their own or a faulty cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torture_cases.evidence import checkpoints, newest_step, verifies
from torture_cases.faults import Deed, Fault
from torture_cases.interruptions import completed
from torture_cases.trial import Trial, first_problem
from torture_cases.workshop import LIMIT_OF_SEVERAL, MAX_STEPS, SAVE_EVERY, Ended, Workshop, WorkshopError


def different_views(shop: Workshop, quick: bool) -> Iterator[Trial]:
    """The second process lacks the newest checkpoint, or reads it damaged; then it is damaged for both.

    Where only the second process sees it so, the job must end with a line that names the process or the file, and leave
    the checkpoint as it is. Where both do, they must resume from the one before.
    """
    reference = shop.reference("new", 2)[0]
    half = shop.prepared()
    # The update after a save, so that the checkpoint before the newest one repeats few updates.
    stop = Fault("update", min(2 * SAVE_EVERY + 1, MAX_STEPS - 1), "signal", target=1)
    stopped = shop.start(shop.training(half), processes=2, fault=stop).end(LIMIT_OF_SEVERAL)
    if len(checkpoints(half)) < 2:
        raise WorkshopError(f"the run of 2 processes did not stop where it should: {stopped.summary}")
    views: tuple[tuple[str, Deed], ...] = (("lacks", "hide"), ("reads damaged", "flip"))
    for name, deed in views[: 1 if quick else None]:
        run = shop.new_run(half)
        newest = checkpoints(run)[-1]
        fault = Fault("view", 1, deed, step=newest_step(run), rank=1)
        ended = shop.start(shop.training(run), processes=2, fault=fault).end(LIMIT_OF_SEVERAL)
        problem = first_problem(_refused(ended, newest), None if verifies(newest) else "the checkpoint was changed")
        restarted = shop.do(shop.training(run), processes=2)
        problem = first_problem(problem, completed(restarted, run, reference))
        yield Trial(f"process 1 {name} what process 0 sees", problem, run)
    run = shop.new_run(half)
    broken = checkpoints(run)[-1] / "model.safetensors"
    broken.write_bytes(broken.read_bytes()[:-1])
    restarted = shop.do(shop.training(run), processes=2)
    told = None if restarted.said.count("set aside as corrupt-") == 1 else "it was not set aside once"
    yield Trial("damaged for both", first_problem(completed(restarted, run, reference), told), run)


def _refused(ended: Ended, newest: Path) -> str | None:
    if ended.status == 0 or ended.status is None:
        return f"it trained on ({ended.summary})"
    if not any(newest.name in line for line in ended.error_lines):
        return f"no error names {newest.name} ({ended.summary})"
    return None
