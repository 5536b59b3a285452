"""The table of results and the report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpu_check.driver import STAGES
from gpu_check.outcome import Outcome, read_outcome, table_row

SETUP = "setup"


def outcomes(results: Path) -> list[Outcome]:
    """Read the outcomes of all stages, in order."""
    found = (read_outcome(results, name) for name in (SETUP, *(stage.name for stage in STAGES)))
    return [outcome for outcome in found if outcome is not None]


def all_passed(found: list[Outcome]) -> bool:
    """Return whether at least one check was measured and none failed."""
    verdicts = [check.verdict for outcome in found for check in outcome.checks]
    return "passed" in verdicts and "failed" not in verdicts


def format_table(found: list[Outcome]) -> str:
    """Format all checks as a table, and list the stages that have not run."""
    lines = ["| stage | check | expected | actual | |", "|---|---|---|---|---|"]
    for outcome in found:
        for check in outcome.checks:
            result = [check.actual, check.verdict]
            if check.verdict == "not measured":
                result = ["", f"not measured: {check.actual}"]
            lines.append(table_row([outcome.stage, check.name, check.expected, *result]))
    finished = {outcome.stage for outcome in found if outcome.status != "unfinished"}
    if remaining := [stage.name for stage in STAGES if stage.name not in finished]:
        lines += ["", f"Not run yet: {', '.join(remaining)}."]
    return "\n".join(lines) + "\n"


def format_report(found: list[Outcome]) -> str:
    """Format the table and the notes of each stage."""
    return "\n".join(["# GPU check", "", format_table(found), *_notes(found)])


def _notes(found: list[Outcome]) -> Iterator[str]:
    for outcome in found:
        if outcome.notes:
            yield f"## {outcome.stage}\n\n{outcome.seconds:.0f} s, {outcome.status}.\n"
            yield from outcome.notes
            yield ""
