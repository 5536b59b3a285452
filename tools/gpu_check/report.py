"""The table of what held and what did not, for people."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpu_check.driver import STAGES
from gpu_check.outcome import Outcome, escaped, read_outcome

SETUP = "setup"


def outcomes(results: Path) -> list[Outcome]:
    """What is known of each stage, in order."""
    found = (read_outcome(results, name) for name in (SETUP, *(stage.name for stage in STAGES)))
    return [outcome for outcome in found if outcome is not None]


def all_held(found: list[Outcome]) -> bool:
    """Whether something was measured, and all of it held."""
    verdicts = [check.verdict for outcome in found for check in outcome.checks]
    return "held" in verdicts and "did not hold" not in verdicts


def format_table(found: list[Outcome]) -> str:
    """The rows of all checks, and which stages are still to be run."""
    lines = ["| stage | check | expected | seen | |", "|---|---|---|---|---|"]
    for outcome in found:
        for check in outcome.checks:
            seen, verdict = escaped(check.seen), check.verdict
            if verdict == "not measured":
                seen, verdict = "", f"not measured: {seen}"  # type: ignore[assignment]
            lines.append(
                f"| {outcome.stage} | {escaped(check.name)} | {escaped(check.expected)} | {seen} | {verdict} |"
            )
    ended = {outcome.stage for outcome in found if outcome.ended != "unfinished"}
    waiting = [stage.name for stage in STAGES if stage.name not in ended]
    if waiting:
        lines += ["", f"Not run yet: {', '.join(waiting)}."]
    return "\n".join(lines) + "\n"


def format_report(found: list[Outcome]) -> str:
    """The table, then the notes of each stage."""
    return "\n".join(["# GPU check", "", format_table(found), *_notes(found)])


def _notes(found: list[Outcome]) -> Iterator[str]:
    for outcome in found:
        if outcome.notes:
            yield f"## {outcome.stage}\n\n{outcome.seconds:.0f} s, {outcome.ended}.\n"
            yield from outcome.notes
            yield ""
