"""The ledger of measurements: `results.json` stores the newest per goal and machine, `RESULTS.md` shows all."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.comparison import Comparison, Measurement
from bench.goals import BY_NAME, GOALS, Goal
from bench.ratio import Ratio
from nmt.bench.statistics import Spread
from nmt.evaluate.report import describe_machine, describe_software, find_git_commit
from nmt.recipe import UserError

HOME = Path(__file__).parent
Entry = dict[str, Any]

_HEAD = """\
# Speed measurements

Made by `tools/bench/run`; `results.json` has the samples, versions and command of every measurement. Comparisons run
two systems in alternating rounds on one machine; only one of them computes at a time. Rates are target tokens
without padding per second (preparation: tokens of both sides; files and servers: lines), as median (minimum to
maximum). Ratios are geometric means over the rounds with Student's 95 % interval; **one system is faster only if the
interval excludes 1, and a goal is reached only if the whole interval reaches it**. Machines differ: the Intel Xeon
computes bf16 matmuls with AMX, seven times as fast as float32 (2.3 and 0.31 TFLOP/s on two cores); the AMD EPYC with
AVX512_BF16, three times as fast (0.39 and 0.12); a newer AMD EPYC (measurements from 2026-11-26, 16:00 UTC, to
2026-11-27, 15:00 UTC), twice as fast (528 and 261 GFLOP/s per core).
"""


def read_ledger(folder: Path = HOME) -> list[Entry]:
    """Return the newest measurement of each goal and machine, oldest first."""
    path = folder / "results.json"
    entries: list[Entry] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return entries


def add_entries(added: Sequence[Entry], folder: Path = HOME) -> None:
    """Add measurements, replacing older ones of the same goal and machine, and update `RESULTS.md`.

    Without a goal, command, workload and note must be the same: the command does not name the model and the text.
    """
    entries = sorted([*read_ledger(folder), *added], key=_date)
    newest = {(entry["goal"] or _identity(entry), _machine(entry)): entry for entry in entries}
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(sorted(newest.values(), key=_date), indent=1, ensure_ascii=False)
    (folder / "results.json").write_text(text + "\n", encoding="utf-8")
    write_results(folder)


def _identity(entry: Entry) -> str:
    return json.dumps([entry["command"], entry.get("work"), entry["note"]], sort_keys=True)


def _date(entry: Entry) -> str:
    return str(entry["date"])


def write_results(folder: Path = HOME) -> None:
    """Make `RESULTS.md` from `results.json`."""
    (folder / "RESULTS.md").write_text("\n".join(format_ledger(read_ledger(folder))) + "\n", encoding="utf-8")


def comparison_entry(goal: str | None, work: dict[str, Any], comparison: Comparison, command: str, note: str) -> Entry:
    """Ledger entry of a comparison. work: description of the workload; its `task` decides the unit of the rates."""
    return {**_metadata(goal, command), "work": work, **asdict(comparison), "note": note}


def value_entry(goal: str, value: float, command: str, note: str, evidence: Any = None) -> Entry:
    """Ledger entry of a value measured by another command, such as `nmt bench --json`."""
    return {**_metadata(goal, command), "value": value, "note": note, "evidence": evidence}


def is_reached(entry: Entry) -> bool:
    """Return whether a measurement reaches its goal, a ratio with its whole interval."""
    goal = BY_NAME[entry["goal"]]
    return goal.is_reached(Ratio(**entry["ratio"]).low if "ratio" in entry else entry["value"])


def _verdict(entry: Entry) -> str:
    if is_reached(entry):
        return "reached"
    is_in_mean = "ratio" in entry and BY_NAME[entry["goal"]].is_reached(Ratio(**entry["ratio"]).ratio)
    return "reached in the mean" if is_in_mean else "not reached"


def format_result(entry: Entry) -> str:
    """Result of a measurement of a goal, in the goal's unit."""
    if "ratio" in entry:
        return _format_ratio(Ratio(**entry["ratio"]))
    return BY_NAME[entry["goal"]].format_value(entry["value"])


def format_ledger(entries: Sequence[Entry]) -> Iterator[str]:
    """Lines of `RESULTS.md`: the goals, then all measurements, newest first."""
    by_goal = {goal.name: [entry for entry in entries if entry["goal"] == goal.name] for goal in GOALS}
    yield _HEAD
    yield "## Goals"
    yield ""
    yield "| goal | target | machine | measured | |"
    yield "|---|---|---|---|---|"
    for goal in GOALS:
        yield from _goal_rows(goal, by_goal[goal.name])
    yield ""
    yield "## Commands and limits"
    yield ""
    for goal in GOALS:
        done = bool(by_goal[goal.name]) and all(map(is_reached, by_goal[goal.name]))
        yield f"- {goal.name}: `{goal.command}`.{'' if done or not goal.limits else f' {goal.limits}'}"
    yield ""
    yield "## Measurements"
    if not entries:
        yield ""
        yield "None yet."
    for entry in reversed(entries):
        yield ""
        yield from _measurement(entry)


def _metadata(goal: str | None, command: str) -> Entry:
    if goal is not None and goal not in BY_NAME:
        raise UserError(f"unknown goal {goal!r}; it must be one of {', '.join(BY_NAME)}; choose one")
    return {
        "goal": goal,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": asdict(describe_machine()),
        "versions": describe_software(),
        "git_commit": find_git_commit(),
        "command": command,
    }


def _goal_rows(goal: Goal, entries: Sequence[Entry]) -> Iterator[str]:
    """One row per machine; only the first names the goal."""
    subject = f"{goal.name}: {goal.text} | {goal.target_text}"
    if not entries:
        yield f"| {subject} | | not measured | |"
    for entry in entries:
        yield f"| {subject} | {_machine(entry)} | {format_result(entry)} | {_verdict(entry)} |"
        subject = "|"


def _machine(entry: Entry) -> str:
    machine = entry["machine"]
    cpu = machine["cpu"].replace("(R)", "").removesuffix(" Processor")
    return ", ".join((f"{cpu}, {machine['cores']} cores", *machine["gpus"]))


def _format_ratio(ratio: Ratio) -> str:
    return f"{ratio.ratio:.2f}x ({ratio.low:.2f} to {ratio.high:.2f})"


def _measurement(entry: Entry) -> Iterator[str]:
    commit, dirty, _ = (entry["git_commit"] or "of unknown commit").partition("-dirty")
    commit = commit[:12] if entry["git_commit"] else commit
    yield f"### {entry['date']}: {entry['goal'] or 'no goal'}"
    yield ""
    yield f"{_machine(entry)}; nmt {commit}{dirty}; `{entry['command']}`"
    yield ""
    if "value" in entry:
        yield f"{format_result(entry)}. {entry['note']}".rstrip()
        return
    work, ratio = entry["work"], Ratio(**entry["ratio"])
    is_file = work["task"] in ("file", "serve")
    yield f"| system | settings | {'lines' if is_file else 'tokens'}/s | rounds |"
    yield "|---|---|---|---|"
    for key in ("ours", "theirs"):
        yield _system_row(Measurement(**entry[key]))
    yield ""
    verdict = "faster" if ratio.low > 1 else "slower" if ratio.high < 1 else "no significant difference"
    clients = f", {work['clients']} clients" if "clients" in work else ""
    size = f"{work['num_lines']:,} lines, beam {work['beam_size']}{clients}. " if is_file else ""
    yield f"Ratio {_format_ratio(ratio)}: {verdict}. {size}{entry['note']}".rstrip()


def _system_row(measurement: Measurement) -> str:
    spread = Spread.of(measurement.rates)
    settings = ", ".join(f"{key} {value}" for key, value in measurement.settings.items()) or "-"
    package = {"nmt": "torch", "opennmt": "OpenNMT-py"}.get(measurement.name, measurement.name)
    packages = [name for name in dict.fromkeys((package, "torch")) if name in measurement.versions]
    versions = ", ".join(f"{name} {measurement.versions[name]}" for name in packages)
    rates = f"{spread.median:,.1f} ({spread.least:,.1f} to {spread.most:,.1f})"
    return f"| {measurement.name} ({versions}) | {settings} | {rates} | {len(measurement.rates)} |"
