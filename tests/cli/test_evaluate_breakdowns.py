"""Breakdowns of `nmt evaluate`, and their options."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.calling import Nmt, one_line


@pytest.mark.slow
def test_json_combines_all_breakdowns(texts: Path, nmt: Nmt) -> None:
    status, out, err = nmt(
        "evaluate", "--ref", texts / "ref", texts / "good", texts / "poor", "--src", texts / "src", "--by-length",
        "--train-tgt", texts / "ref2", "--differences", 2, "--confidence", "--resamples", 50, "--format", "json",
    )  # fmt: skip
    assert status == 0 and err.startswith("warning: 1 of 66 lines of ") and err.count("\n") == 1
    found = json.loads(out)
    good, poor = (str(texts / name) for name in ("good", "poor"))
    assert list(found["systems"]) == [good, poor]
    lengths = found["by_source_length"][good]
    assert sum(group["sentences"] for group in lengths) == 66
    assert [score["name"] for score in lengths[0]["scores"]] == ["bleu", "chrf", "ter"]
    rows = found["by_training_frequency"][poor]
    assert sum(row["in_reference"] for row in rows) == sum(
        row["in_reference"] for row in found["by_training_frequency"][good]
    )
    assert {row["frequency"] for row in rows} >= {"0", "1"}
    assert found["first_ahead"][0]["line"] == 1  # its translation by the poor system is empty
    assert found["first_ahead"][0]["translations"][1] == ""
    assert len(found["second_ahead"]) == 2


@pytest.mark.slow
def test_breakdowns_do_not_change_the_scores_in_json(texts: Path, tmp_path: Path, nmt: Nmt) -> None:
    plain = ("evaluate", "--ref", texts / "ref", texts / "good", texts / "poor", "--metrics", "bleu,chrf")
    scores = json.loads(nmt(*plain, "--json")[1])["systems"]
    assert list(scores) == [str(texts / "good"), str(texts / "poor")]
    breakdowns = {
        ("--src", texts / "src", "--by-length"): {"by_source_length"},
        ("--train-tgt", texts / "ref2"): {"by_training_frequency", "words"},
        ("--differences", 2): {"first_ahead", "second_ahead"},
    }
    for options, keys in breakdowns.items():
        status, out, _ = nmt(*plain, *options, "--json")
        assert status == 0
        assert json.loads(out).keys() == {"systems", *keys}
        assert json.loads(out)["systems"] == scores
        assert out == nmt(*plain, *options, "--format", "json")[1]
    (tmp_path / "twin").write_bytes((texts / "good").read_bytes())
    twins = (texts / "good", tmp_path / "twin", "--differences", 2, "--json")
    _, equal, err = nmt("evaluate", "--ref", texts / "ref", *twins)
    assert "--differences: all sentences of the two systems have equal chrF2\n" in err
    _, _, err = nmt("evaluate", "--ref", texts / "ref", *twins, "--lowercase")
    assert "--differences: all sentences of the two systems have equal lowercased chrF2\n" in err
    assert (json.loads(equal)["first_ahead"], json.loads(equal)["second_ahead"]) == ([], [])
    status, out, err = nmt(*plain, "--json", "--format", "latex")
    assert (status, out) == (2, "")
    assert "--json" in err and "--format" in err


@pytest.mark.slow
def test_lowercase_applies_to_every_breakdown(texts: Path, lowered: Path, nmt: Nmt) -> None:
    plain = ("evaluate", "--ref", texts / "ref", "--src", texts / "src", "--metrics", "bleu,chrf", "--format", "json")
    groups = json.loads(nmt(*plain, lowered, "--by-length", "--lowercase")[1])["by_source_length"][str(lowered)]
    assert {group["exact"] for group in groups} == {100.0}
    groups = json.loads(nmt(*plain, lowered, "--by-length")[1])["by_source_length"][str(lowered)]
    assert all(group["exact"] < 100.0 for group in groups)

    found = json.loads(nmt(*plain, lowered, texts / "fair", "--differences", 9, "--lowercase")[1])
    assert found["first_ahead"] and not found["second_ahead"]
    assert {difference["scores"][0] for difference in found["first_ahead"]} == {100.0}
    assert {difference["metric"] for difference in found["first_ahead"]} == {"lowercased chrF2"}
    assert json.loads(nmt(*plain, lowered, texts / "fair", "--differences", 9)[1])["second_ahead"]


def test_words_are_scored_by_frequency_in_the_training_text(texts: Path, tmp_path: Path, nmt: Nmt) -> None:
    plain = ("evaluate", "--ref", texts / "ref", texts / "good", "--metrics", "bleu", "--tokenize", "none")
    assert "F-measure of words" in nmt(*plain, "--train-tgt", texts / "ref2")[1]
    status, _, err = nmt(*plain, *["--train-tgt", texts / "ref2"] * 2)
    assert (status, "ref2 is given twice; its words would count twice" in one_line(err)) == (1, True)
    (tmp_path / "lower").write_text((texts / "ref2").read_text().lower())
    assert "hint: the training text is lowercased" in nmt(*plain, "--train-tgt", tmp_path / "lower")[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ["--lowercase", "--by-length"],
        ["--chrf-lowercase", "--differences", 1],
        ["--tokenize", "intl", "--train-tgt", "ref2"],
        ["--lowercase", "--train-tgt", "ref2"],
    ],
)
def test_options_of_metrics_apply_to_breakdowns(texts: Path, nmt: Nmt, options: list[str], lowered: Path) -> None:
    plain = ["evaluate", "--ref", texts / "ref", "--src", texts / "src", lowered, texts / "fair", "--metrics", "ter"]
    given = [texts / word if word == "ref2" else word for word in options]
    without = given[1:] if str(given[0]).endswith("lowercase") else given[2:]
    (status, out, _), (_, other, _) = nmt(*plain, *given, "--json"), nmt(*plain, *without, "--json")
    assert status == 0
    assert breakdowns(out) != breakdowns(other)


def breakdowns(out: str) -> dict[str, Any]:
    """Return the numbers of the breakdowns, without the labels, which also name the options."""
    found = {name: value for name, value in json.loads(out).items() if name not in ("systems", "words")}
    for difference in [*found.get("first_ahead", ()), *found.get("second_ahead", ())]:
        del difference["metric"]
    return found
