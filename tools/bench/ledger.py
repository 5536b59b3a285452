"""The ledger of all measurements: `results.json` holds them, `RESULTS.md` is made from it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.contest import Contest, Side
from bench.files import FileWork
from bench.goals import BY_NAME, GOALS, Goal
from bench.work import Work
from nmt.bench.statistics import Ratio, Spread
from nmt.evaluate.report import describe_machine, describe_software, find_git_commit
from nmt.recipe import UserError
from nmt.text.lines import count_lines

HOME = Path(__file__).parent
Entry = dict[str, Any]

_HEAD = """\
# Speed, measured

Made by `tools/bench/run`; every figure with its samples, versions and command is in `results.json`. Two systems are
measured in turns on one machine, one of them stopped while the other computes. Rates are target tokens a second,
padding not counted, as median (least to most); a ratio is the geometric mean of the rounds with Student's 95 %
interval, and **one system is faster only where the interval leaves out 1**. Machines differ: the Intel Xeon
multiplies bf16 by AMX, seven times as fast as float32 (2.3 against 0.31 TFLOP/s on two cores); the AMD EPYC by
AVX512_BF16, three times as fast (0.39 against 0.12).
"""


def read_ledger(folder: Path = HOME) -> list[Entry]:
    """The newest measurement of each goal and machine, oldest first."""
    path = folder / "results.json"
    entries: list[Entry] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return entries


def add_entry(entry: Entry, folder: Path = HOME) -> None:
    """Note a measurement in place of an older one of its goal and machine, and write `RESULTS.md`."""
    entries = [*read_ledger(folder), entry]
    newest = {_subject(entry): entry for entry in sorted(entries, key=lambda entry: entry["date"])}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(
        json.dumps(list(newest.values()), indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    write_results(folder)


def write_results(folder: Path = HOME) -> None:
    """Make `RESULTS.md` from `results.json`."""
    (folder / "RESULTS.md").write_text("\n".join(format_ledger(read_ledger(folder))) + "\n", encoding="utf-8")


def contest_entry(goal: str | None, work: Work, contest: Contest, command: str, note: str = "") -> Entry:
    """What is noted of two systems in turns. note: what else must be known."""
    shown = {key: value for key, value in asdict(work).items() if key not in ("folder", "options")}
    sides = {"ours": asdict(contest.ours), "theirs": asdict(contest.theirs)}
    noted = {"note": note} if note else {}
    return {**_circumstances(goal, command), "work": shown, **sides, "ratio": asdict(contest.ratio), **noted}


def file_entry(goal: str | None, work: FileWork, contest: Contest, command: str, note: str = "") -> Entry:
    """What is noted of two whole commands in turns. note: what else must be known, such as recipe and text."""
    shown = {"task": "file", "num_lines": count_lines(work.source), "beam_size": work.beam_size}
    sides = {"ours": asdict(contest.ours), "theirs": asdict(contest.theirs)}
    noted = {"note": note} if note else {}
    return {**_circumstances(goal, command), "work": shown, **sides, "ratio": asdict(contest.ratio), **noted}


def figure_entry(goal: str, value: float, command: str, note: str, evidence: Any = None) -> Entry:
    """What is noted of a figure that was measured otherwise, as by `nmt bench --json`; UserError without a goal."""
    _goal(goal)
    return {**_circumstances(goal, command), "value": value, "note": note, "evidence": evidence}


def format_ledger(entries: Sequence[Entry]) -> Iterator[str]:
    """`RESULTS.md`, line by line: the goals, then all measurements, newest first."""
    yield _HEAD
    yield "## Goals"
    yield ""
    yield "| goal | wanted | machine | measured | |"
    yield "|---|---|---|---|---|"
    for goal in GOALS:
        yield from _goal_rows(goal, _newest(goal, entries))
    yield ""
    yield "## The command of each, and what is still in the way"
    yield ""
    for goal in GOALS:
        yield _goal_item(goal, _newest(goal, entries))
    yield ""
    yield "## Measurements"
    if not entries:
        yield ""
        yield "None yet."
    for entry in reversed(entries):
        yield ""
        yield from _measurement(entry)


def is_reached(entry: Entry) -> bool:
    """Whether a measurement reaches its goal: in a contest, one that is won or lost by the interval too."""
    goal = _goal(entry["goal"])
    if "ratio" not in entry:
        return goal.is_reached(entry["value"])
    ratio = Ratio(**entry["ratio"])
    # To be level is wanted where the goal is at most 1; a win must be one beyond doubt.
    return goal.is_reached(ratio.ratio) and (goal.wanted <= 1.0 or ratio.low > 1.0)


def measured(entry: Entry) -> str:
    """What a measurement of a goal came to, in the goal's unit."""
    return _ratio(Ratio(**entry["ratio"])) if "ratio" in entry else _value(_goal(entry["goal"]), entry["value"])


def add_ledger(other: Path, folder: Path = HOME) -> int:
    """Add the measurements of another ledger that are not in this one; how many they are."""
    known = read_ledger(folder)
    added = [entry for entry in read_ledger(other) if entry not in known]
    for entry in added:
        add_entry(entry, folder)
    return len(added)


def _goal(name: str) -> Goal:
    if name not in BY_NAME:
        raise UserError(f"{name!r} is no goal; it must be one of {', '.join(BY_NAME)}; choose one")
    return BY_NAME[name]


def _circumstances(goal: str | None, command: str) -> Entry:
    if goal is not None:
        _goal(goal)
    return {
        "goal": goal,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": asdict(describe_machine()),
        "versions": describe_software(),
        "git_commit": find_git_commit(),
        "command": command,
    }


def _subject(entry: Entry) -> tuple[str, str]:
    """What two measurements must share for the newer to replace the older."""
    return entry["goal"] or entry["command"], _machine(entry)


def _newest(goal: Goal, entries: Sequence[Entry]) -> list[Entry]:
    """What decides: the newest measurement of a goal on each machine, by the order in which machines came."""
    newest = {_machine(entry): entry for entry in entries if entry["goal"] == goal.name}
    return list(newest.values())


def _goal_rows(goal: Goal, newest: Sequence[Entry]) -> Iterator[str]:
    """A row for each machine; only the first says what the goal is."""
    subject = f"{goal.name}: {goal.text} | {goal.wanted_text}"
    if not newest:
        yield f"| {subject} | | not measured | |"
    for entry in newest:
        verdict = "reached" if is_reached(entry) else "not reached"
        yield f"| {subject} | {_machine(entry)} | {measured(entry)} | {verdict} |"
        subject = "|"


def _goal_item(goal: Goal, newest: Sequence[Entry]) -> str:
    """How the goal is measured, and what remains to be done for it where a machine does not reach it."""
    is_done = bool(newest) and all(map(is_reached, newest))
    remains = "" if is_done else f" {goal.remains}".rstrip()
    return f"- {goal.name}: `{goal.command}`.{remains}"


def _machine(entry: Entry) -> str:
    machine = entry["machine"]
    cpu = machine["cpu"].replace("(R)", "").removesuffix(" Processor")
    return ", ".join((f"{cpu}, {machine['cores']} cores", *machine["gpus"]))


def _value(goal: Goal, value: float) -> str:
    match goal.unit:
        case "ratio":
            return f"{value:.2f}x"
        case "share":
            return f"{value:.1%}"
        case "minutes":
            return f"{value:.1f} min"
        case "seconds":
            return f"{value:.2f} s"
        case "BLEU":
            return f"{value:.1f} BLEU"


def _ratio(ratio: Ratio) -> str:
    return f"{ratio.ratio:.2f}x ({ratio.low:.2f} to {ratio.high:.2f})"


def _measurement(entry: Entry) -> Iterator[str]:
    yield f"### {entry['date']}: {entry['goal'] or 'beside the goals'}"
    yield ""
    yield f"{_machine(entry)}; nmt {_short(entry['git_commit'])}; `{entry['command']}`"
    if "value" in entry:
        yield ""
        yield f"{_value(_goal(entry['goal']), entry['value'])}. {entry['note']}"
        return
    ratio = Ratio(**entry["ratio"])
    verdict = "faster" if ratio.low > 1 else "slower" if ratio.high < 1 else "no difference shown"
    yield ""
    unit = "lines/s" if entry["work"]["task"] == "file" else "tokens/s"
    yield f"| system | settings | {unit} | rounds |"
    yield "|---|---|---|---|"
    for side in (Side(**entry["ours"]), Side(**entry["theirs"])):
        yield _side_row(side)
    yield ""
    lines = f"{entry['work']['num_lines']:,} lines, beam {entry['work']['beam_size']}. " if unit == "lines/s" else ""
    yield f"Ratio {_ratio(ratio)}: {verdict}. {lines}{entry.get('note', '')}".rstrip()


def _short(commit: str | None) -> str:
    """The beginning of a commit's name, with the mark of a tree that had changes."""
    name, dirty, _ = (commit or "of unknown origin").partition("-dirty")
    return name[:12] + dirty if commit else name


def _side_row(side: Side) -> str:
    spread: Spread = side.spread
    settings = ", ".join(f"{key} {value}" for key, value in side.settings.items()) or "-"
    package = {"nmt": "torch", "opennmt": "OpenNMT-py"}.get(side.name, side.name)
    named = [name for name in dict.fromkeys((package, "torch")) if name in side.versions]
    versions = ", ".join(f"{name} {side.versions[name]}" for name in named)
    rates = f"{spread.median:,.1f} ({spread.least:,.1f} to {spread.most:,.1f})"
    return f"| {side.name} ({versions}) | {settings} | {rates} | {len(side.rates)} |"
