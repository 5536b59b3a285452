"""`tools/search-table`: every kind of search runs, and the oracle scores at least as high as its candidates."""

import sys
from pathlib import Path

import pytest
import search_table

LINES = ["a dog runs", "two dogs", "the cat sees a dog", "no", "a cat"]


def table_rows(out: str) -> dict[str, list[str]]:
    """Return the cells of a Markdown table by the name in the first column, without its two header lines."""
    lines = [line for line in out.splitlines() if line.startswith("|")][2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name: cells for name, *cells in rows}


@pytest.fixture
def texts(tmp_path: Path) -> list[str]:
    (tmp_path / "src").write_text("\n".join(LINES) + "\n")
    (tmp_path / "ref").write_text("\n".join(reversed(LINES)) + "\n")
    return [str(tmp_path / "src"), str(tmp_path / "ref")]


@pytest.mark.slow
def test_only_selects_rows_besides_the_reference(
    model: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(model), *texts, "--lines", "2", "--repetitions", "1", "--device", "auto"]
    given += ["--only", "patience", "exact"]
    monkeypatch.setattr(sys, "argv", ["search-table", *given])
    assert search_table.main() == 0
    assert list(table_rows(capsys.readouterr().out)) == ["beam 5", "beam 5, patience 2", "beam 5, exact stop"]


@pytest.mark.slow
def test_every_kind_of_search_has_a_row(
    model: Path,
    texts: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [str(model), *texts, "--ensemble", str(model), "--lines", "2", "--repetitions", "1"]
    monkeypatch.setattr(sys, "argv", ["search-table", *given])
    assert search_table.main() == 0
    rows = table_rows(capsys.readouterr().out)
    assert list(rows) == [search.name for search in search_table.searches(model, model, "cpu")]
    assert rows["beam 5"][:3] == rows["beam 5, the other model"][:3], "they are the same model"
    assert rows["beam 5"][4] == "1.00"
    assert float(rows["beam 10, oracle of 10"][1]) >= float(rows["beam 10"][1]), (
        "the oracle can choose the output of beam 10"
    )


@pytest.mark.parametrize(("lowercase", "case"), [(False, "mixed"), (True, "lc")])
def test_lower_case_is_scored_without_regard_to_case(lowercase: bool, case: str) -> None:
    row = search_table.Row(search_table.Search(search_table.REFERENCE, (), {}), ["a dog sees two cats"], [1.0])
    *table, bleu, chrf = search_table.table([row], ["A Dog sees two Cats"], "en", lowercase)
    assert (f"| {search_table.REFERENCE} | 100.00 | 100.00 |" in table[2]) == lowercase
    assert f"case:{case}" in bleu
    assert f"case:{case}" in chrf
    assert (
        search_table.closest(["A dog sees two", "a dog sees two cats"], "A DOG SEES TWO CATS", "en", True)
        == "a dog sees two cats"
    )


@pytest.mark.parametrize("tgt_lang", ["zh", "zho"])
def test_bleu_uses_the_tokenizer_of_the_target_language(tgt_lang: str) -> None:
    row = search_table.Row(search_table.Search(search_table.REFERENCE, (), {}), ["我喜欢红色的狗"], [1.0])
    *table, bleu, _ = search_table.table([row], ["我喜欢红色的猫"], tgt_lang, False)
    assert "tok:zh" in bleu
    assert float(table[2].split("|")[2]) > 50
    assert search_table.closest(["狗猫很好", "我喜欢红色的狗"], "我喜欢红色的猫", tgt_lang, False) == "我喜欢红色的狗"


def test_only_that_matches_no_row_is_an_error(
    model: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["search-table", str(model), *texts, "--only", "exact", "sampel"])
    assert search_table.main() == 1
    assert capsys.readouterr().err.startswith("search-table: --only 'sampel' matches no row; rows: beam 1 ")


def test_texts_of_different_length_are_an_error(
    model: Path,
    texts: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path(texts[1]).write_text("a cat\n")
    monkeypatch.setattr(sys, "argv", ["search-table", str(model), *texts])
    assert search_table.main() == 1
    assert capsys.readouterr().err.endswith(
        f"has 5 lines and {texts[1]} has 1; they must match line by line; check both\n"
    )
