"""The ledger of measurements: kept entries, reported additions and commands."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from bench import __main__ as bench_main
from bench import ledger
from bench.__main__ import main
from bench.comparison import Comparison, Measurement
from bench.goals import BY_NAME, GOALS
from bench.ratio import Ratio

LATER = {"date": "2030-01-01T00:00:00+00:00"}


def measured(num_lines: int, note: str, ratio: float = 1.0) -> dict[str, Any]:
    ours, theirs = (Measurement(name, {}, {}, 0.0, [10.0, 11.0]) for name in ("nmt", "ctranslate2"))
    work = {"task": "file", "num_lines": num_lines, "beam_size": 5}
    comparison = Comparison(ours, theirs, Ratio(ratio, ratio, ratio))
    return ledger.comparison_entry(None, work, comparison, "tools/bench/run file nmt ctranslate2", note)


def test_measurements_without_a_goal_are_kept_for_each_text(tmp_path: Path) -> None:
    for entry in (measured(100, "news"), measured(200, "news"), measured(100, "speeches")):
        ledger.add_entries([entry], tmp_path)
    ledger.add_entries([measured(100, "news", 2.0) | LATER], tmp_path)
    entries = ledger.read_ledger(tmp_path)
    kept = [(entry["work"]["num_lines"], entry["note"], entry["ratio"]["ratio"]) for entry in entries]
    assert kept == [(200, "news", 1.0), (100, "speeches", 1.0), (100, "news", 2.0)]


def test_added_measurements_that_are_older_than_those_of_the_ledger_are_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    ledger.add_entries([ledger.value_entry("quickstart", 2.0, "x", "") | LATER], here)
    old = [ledger.value_entry(goal, 2.5, "y", "") for goal in ("quickstart", "train-cpu-linear")]
    ledger.add_entries(old, there)
    assert main(["ledger", "--add", str(there), "--ledger", str(here)]) == 0
    assert [entry["value"] for entry in ledger.read_ledger(here)] == [2.5, 2.0]
    assert "added 1 measurement; left out 1, because the ledger has newer ones" in capfd.readouterr().err


def test_a_comparison_cannot_measure_a_goal_in_seconds(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["file", "nmt", "ctranslate2", "--model", "m", "--source", "s", "--goal", "one-line"])
    assert "invalid choice: 'one-line'" in capfd.readouterr().err


def test_an_unreadable_ledger_is_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results.json").write_text("[{")
    assert main(["ledger", "--ledger", str(tmp_path)]) == 1
    assert "results.json: Expecting property name" in capfd.readouterr().err


def test_commands_in_the_ledger_have_no_local_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    side = Measurement("nmt", {}, {}, 0.0, [1.0, 1.0])
    monkeypatch.setattr(bench_main, "vocabulary_size", lambda _: 300)
    monkeypatch.setattr(bench_main, "compare", lambda *_: Comparison(side, side, Ratio(1.0, 1.0, 1.0)))
    for given in (["--folder", "text", "--ledger", str(tmp_path)], ["--folder=text", f"--ledger={tmp_path}"]):
        assert main(["train", "nmt", "nmt:threads=1", *given, "--updates=3"]) == 0
        (entry,) = ledger.read_ledger(tmp_path)
        assert entry["command"] == "tools/bench/run train nmt nmt:threads=1 --updates=3"


# --- Ledger -----------------------------------------------------------------------------------------------------------


def comparison(ratio: Ratio) -> Comparison:
    nmt, eole = (
        Measurement(name, {"precision": "bf16"}, {"torch": "2.13.0"}, 3.0, [1000.0, 1200.0]) for name in ("nmt", "eole")
    )
    return Comparison(nmt, eole, ratio)


def entry(goal: str | None, ratio: Ratio, note: str = "") -> dict[str, Any]:
    return ledger.comparison_entry(goal, {"task": "train"}, comparison(ratio), "tools/bench/run train nmt eole", note)


def on(cpu: str, measured: dict[str, Any]) -> dict[str, Any]:
    return {**measured, "machine": {"cpu": cpu, "cores": 2, "gpus": []}}


def test_an_empty_ledger_lists_every_goal() -> None:
    text = "\n".join(ledger.format_ledger([]))
    assert text.count("| | not measured | |") == len(GOALS) >= 15
    assert all(goal.name in text for goal in GOALS)


@pytest.mark.parametrize(
    ("goal", "ratio", "verdict"),
    [
        ("train-cpu-eole-bf16", Ratio(2.2, 2.1, 2.3), "reached"),
        ("train-cpu-eole-bf16", Ratio(2.1, 1.9, 2.3), "reached on average"),
        ("train-cpu-eole-bf16", Ratio(1.9, 1.8, 2.0), "not reached"),
        ("file-int8", Ratio(1.01, 0.98, 1.04), "reached on average"),
        ("file-int8", Ratio(1.04, 1.01, 1.07), "reached"),
        ("file-int8", Ratio(0.97, 0.96, 0.98), "not reached"),
    ],
)
def test_ratios_are_compared_with_their_goal(goal: str, ratio: Ratio, verdict: str) -> None:
    """The whole interval must reach the target."""
    measured = entry(goal, ratio)
    assert ledger.is_reached(measured) is (verdict == "reached")
    text = "\n".join(ledger.format_ledger([measured]))
    assert any(line.startswith(f"| {goal}:") and line.endswith(f" | {verdict} |") for line in text.splitlines())


@pytest.mark.parametrize(
    ("goal", "value", "is_reached"),
    [
        ("train-cpu-linear", 0.61, True),
        ("train-cpu-linear", 0.59, False),
        ("quickstart", 2.9, True),
        ("quickstart", 4.7, False),
        ("multi30k-41", 41.0, True),
        ("multi30k-41", 40.9, False),
    ],
)
def test_values_are_compared_with_their_goal(goal: str, value: float, is_reached: bool) -> None:
    assert ledger.is_reached(ledger.value_entry(goal, value, "x", "")) is is_reached


@pytest.mark.parametrize(
    ("goal", "value", "shown"),
    [
        ("train-cpu-linear", 0.613, "at least 60% | Zen 5, 2 cores | 61.3% | reached"),
        ("quickstart", 4.66, "at most 3 min | Zen 5, 2 cores | 4.7 min | not reached"),
        ("multi30k-41", 40.52, "at least 41 BLEU | Zen 5, 2 cores | 40.5 BLEU | not reached"),
    ],
)
def test_values_are_shown_with_their_unit(goal: str, value: float, shown: str) -> None:
    lines = ledger.format_ledger([on("Zen 5", ledger.value_entry(goal, value, "x", ""))])
    assert next(line for line in lines if line.startswith(f"| {goal}:")).endswith(f"| {shown} |")


def test_new_measurements_replace_old_ones_of_the_same_goal_and_machine(tmp_path: Path) -> None:
    measured = [("train-cpu-eole-bf16", Ratio(1.5, 1.4, 1.6)), (None, Ratio(1.0, 0.9, 1.1))]
    for day, (goal, ratio) in enumerate([*measured, ("train-cpu-eole-bf16", Ratio(2.2, 2.0, 2.4))], 1):
        ledger.add_entries([entry(goal, ratio) | {"date": f"2026-11-0{day}T00:00:00+00:00"}], tmp_path)
    entries = json.loads((tmp_path / "results.json").read_text())
    assert [entry["ratio"]["ratio"] for entry in entries] == [1.0, 2.2]  # the newest of each goal and machine, by date
    assert entries[0]["ours"]["rates"] == [1000.0, 1200.0]
    assert entries[0]["versions"]["torch"]
    text = (tmp_path / "RESULTS.md").read_text()
    assert re.search(r"CPU: eole in bf16 \| at least 2x \| [^|]+ \| 2\.20x \(2\.00 to 2\.40\) \| reached \|", text)
    assert "| nmt (torch 2.13.0) | precision bf16 | 1,100.0 (1,000.0 to 1,200.0) | 2 |" in text
    assert "Ratio 1.00x (0.90 to 1.10): no significant difference." in text
    assert "Ratio 2.20x (2.00 to 2.40): faster." in text
    assert text.count("###") == 2


def test_notes_are_shown() -> None:
    noted = entry("train-cpu-fp32", Ratio(1.5, 1.4, 1.6), "Text: made up.")
    assert "Ratio 1.50x (1.40 to 1.60): faster. Text: made up." in list(ledger.format_ledger([noted]))


def test_a_ledger_is_merged_into_another(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    shared = ledger.value_entry("quickstart", 2.0, "x", "")
    ledger.add_entries([shared], here)
    for entry in (shared, ledger.value_entry("quickstart", 2.5, "y", "")):
        ledger.add_entries([entry], there)
    for _ in range(2):  # adding twice changes nothing
        assert main(["ledger", "--add", str(there), "--ledger", str(here)]) == 0
        assert [entry["value"] for entry in ledger.read_ledger(here)] == [2.5]
    assert "2.5 min" in (here / "RESULTS.md").read_text()


def test_a_folder_without_a_ledger_is_not_merged(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", "--add", str(tmp_path / "none"), "--ledger", str(tmp_path / "here")]) == 1
    assert "none has no results.json; --add must be the folder of a ledger" in capfd.readouterr().err
    assert not (tmp_path / "here").exists()


@pytest.mark.slow
def test_each_machine_has_a_row(tmp_path: Path) -> None:
    goal = "train-cpu-linear"
    entries = [
        on(cpu, ledger.value_entry(goal, value, "x", ""))
        for cpu, value in (("Intel(R) Xeon(R) Processor", 0.3), ("Zen 5", 0.65))
    ]
    lines = list(ledger.format_ledger(entries))
    first = next(index for index, line in enumerate(lines) if line.startswith(f"| {goal}:"))
    assert lines[first].endswith("| at least 60% | Intel Xeon, 2 cores | 30.0% | not reached |")
    assert lines[first + 1] == "| | | Zen 5, 2 cores | 65.0% | reached |"


@pytest.mark.slow
def test_limits_are_shown_until_all_machines_reach_the_goal() -> None:
    goal = BY_NAME["train-cpu-linear"]
    slow, fast = (on(cpu, ledger.value_entry(goal.name, value, "x", "")) for cpu, value in (("a", 0.3), ("b", 0.65)))
    for entries, shown in (([slow, fast], f" {goal.limits}"), ([fast], "")):
        assert f"- {goal.name}: `{goal.command}`.{shown}" in list(ledger.format_ledger(entries))


def test_results_page_is_up_to_date() -> None:
    made = "\n".join(ledger.format_ledger(ledger.read_ledger())) + "\n"
    assert made == (ledger.DEFAULT_FOLDER / "RESULTS.md").read_text(encoding="utf-8")


# --- Command line -----------------------------------------------------------------------------------------------------


def test_record_adds_a_value_with_its_evidence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.json").write_text('{"measurements": {"fraction_of_linear": 0.62}}')
    record = ["record", "train-cpu-linear", "0.62", "--command", "nmt bench train base", "--ledger", str(tmp_path)]
    assert main([*record, "--evidence", str(tmp_path / "train.json")]) == 0
    (entry,) = ledger.read_ledger(tmp_path)
    assert entry["evidence"]["measurements"]["fraction_of_linear"] == 0.62
    assert "62.0%" in (tmp_path / "RESULTS.md").read_text()
    assert main([*record, "--evidence", str(tmp_path / "none.json")]) == 1
    assert "cannot read" in capfd.readouterr().err
