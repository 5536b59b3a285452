"""The ledger of measurements: kept entries, reported additions and commands."""

from pathlib import Path
from typing import Any

import pytest
from bench import __main__ as bench_main
from bench import ledger
from bench.__main__ import main
from bench.comparison import Comparison, Measurement
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
