"""`tools/keep-check` finds violations, and scores a model with and without markup."""

import random
import re
from pathlib import Path

import pytest
from keep_check.__main__ import main
from keep_check.contents import KINDS, read_content, violation
from keep_check.scores import mark_lines, without_markup

from nmt.keep.items import ItemGrammar
from nmt.keep.markup import MarkedText

GRAMMAR = ItemGrammar(KINDS, "en", "de")
LINE = 'a <b id="1">red</b><br/>car for 1,234.5 or {x}'


@pytest.mark.parametrize(
    ("translation", "expected"),
    [
        ('ein <b id="1">rotes</b><br/>Auto für 1.234,5 oder {x}', ""),
        ('ein <b id="1">rotes</b><br/>Auto für 1.234,5 oder 2 {x} 100', "added"),
        ('ein <b id="1">rotes<br/></b>Auto für 1.234,5 oder {x}', ""),
        ('ein <b id="1">rotes<br/>Auto für 1.234,5 oder {x}', "not well-formed"),
        ('ein <b id="2">rotes</b><br/>Auto für 1.234,5 oder {x}', "different elements"),
        ('ein <b id="1">rotes</b>Auto für 1.234,5 oder {x}', "different elements"),
        ('ein <b id="1">rotes</b><br/>Auto für 1,234.5 oder {x}', "missing"),
        ('ein <b id="1">rotes</b><br/>Auto für 1.234,5 oder', "missing"),
        ('ein <b id="1">rotes</b><br/>Auto für 1.234,5 oder {x} {x}', "added"),
        ('ein <b id="1">rotes</b><br/>Auto für 1.234,5 oder {x} 1.234,5', "added"),
    ],
)
def test_each_difference_is_a_violation(translation: str, expected: str) -> None:
    found = violation(GRAMMAR, LINE, translation)
    assert found.startswith(expected) and bool(found) is bool(expected)


def test_inserted_markup_is_well_formed_and_changes_no_text() -> None:
    rng = random.Random(1)
    lines = ["", *(" ".join(rng.choices("a b c & < d. e".split(), k=rng.randint(1, 12))) for _ in range(300))]  # noqa: SIM905
    marked = mark_lines(lines, 1)
    assert [without_markup(line) for line in marked] == lines
    with_elements = sum(len(read_content(line).elements) > 1 for line in marked)
    assert 0.6 < with_elements / len(lines) < 0.7
    assert any(re.search(r"<\w+ id=\S+<\w+ id=", line) for line in marked), "some elements are nested"


def test_random_lines_have_no_violations(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--lines", "200"]) == 0
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[2] for row in rows] == ["20"] * 10 and all(row[-1] == "0" for row in rows)
    assert any(row[4] != "0.0%" for row in rows), "some lines are split"


def test_a_damaged_output_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    insert = MarkedText.insert
    monkeypatch.setattr(MarkedText, "insert", lambda *arguments: insert(*arguments).replace("</b>", ""))
    assert main(["--lines", "50"]) == 1
    assert "not well-formed" in capsys.readouterr().out


@pytest.mark.slow
def test_a_model_is_scored_with_and_without_markup(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text"
    text.write_text("a dog & 12 cats\nthe man\nthe dog\n")
    assert main(["--lines", "0", *map(str, (model, text, text))]) == 0
    out = capsys.readouterr().out
    rows = [line.strip("| ").split(" | ") for line in out.splitlines() if "±" in line]
    assert [row[0] for row in rows] == ["plain text", "with markup, --keep", "with markup, without --keep"]
    assert rows[1][2] == "0" and "BLEU|nrefs:1|bs:1000" in out


def test_texts_of_different_length_are_an_error(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    src, ref = tmp_path / "src", tmp_path / "ref"
    src.write_text("a\n")
    ref.write_text("a\nb\n")
    assert main(["--lines", "0", *map(str, (model, src, ref))]) == 1
    assert "has 1 line and" in capsys.readouterr().err


def test_rows_without_lines_have_no_violations(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--lines", "1"]) == 0
    assert capsys.readouterr().out.count("| 0 | 0.0% |") == 9


def test_a_negative_number_of_lines_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--lines", "-3"])
    assert "--lines must be at least 0, got -3" in capsys.readouterr().err
