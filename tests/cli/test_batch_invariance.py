"""`tools/batch-invariance`: a small model passes, and outputs that depend on the batch are reported."""

import re
import sys
from pathlib import Path

import batch_invariance
import pytest
import search_table

from nmt import Translation, Translator
from tests.cli.nasty_lines import as_bytes, nasty_lines


def run(model: Path, file: Path, monkeypatch: pytest.MonkeyPatch, device: str = "cpu") -> int:
    monkeypatch.setattr(sys, "argv", ["batch-invariance", str(model), str(file), "--device", device])
    return batch_invariance.main()


@pytest.mark.slow
def test_results_do_not_depend_on_batch_size_or_order(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").write_bytes(as_bytes(nasty_lines(40, num_longest=0)))
    status = run(model, tmp_path / "in", monkeypatch)
    out = capsys.readouterr().out
    assert status == 0, out
    rows = [line.split("|")[1:4] for line in out.splitlines() if line.startswith("| ")][1:]
    assert [int(size) for size, _, _ in rows] == [1, 1, 2, 2, 7, 7, 32, 32, 128, 128]
    assert all(int(strings) == 0 for _, _, strings in rows)


def test_options_shared_with_search_table_have_the_same_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tool", "--help"])
    monkeypatch.setenv("COLUMNS", "200")
    names = []
    for one in (batch_invariance, search_table):
        with pytest.raises(SystemExit):
            one.main()
        lines = re.findall(r"^  (\S.*?)  +(\S.*)$", capsys.readouterr().out, re.MULTILINE)
        names.append({meaning: name for name, meaning in lines})
    shared = names[0].keys() & names[1].keys()
    ours, theirs = ({meaning: name for meaning, name in one.items() if meaning in shared} for one in names)
    assert set(ours.values()) > {"model", "src", "--lines N", "--device DEVICE"}
    assert ours == theirs


def test_batch_dependent_translation_is_reported(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def leaky(self: Translator, lines: list[str]) -> list[list[Translation]]:
        return [[Translation(f"{line} {len(lines)}", -1.0 / len(lines), -1.0, [line], [-1.0])] for line in lines]

    monkeypatch.setattr(Translator, "translate_n_best", leaky)
    (tmp_path / "in").write_text("a\nb\n")
    assert run(model, tmp_path / "in", monkeypatch, "auto") == 1
    out = capsys.readouterr().out
    assert "| 2 | in order | 2 | 5.0e-01 | 0.0e+00 |" in out
    assert "line 1: a\n  alone    -1.0000000 a 1\n  together -0.5000000 a 2" in out


def test_a_missing_model_and_an_empty_file_are_errors(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").write_text("a\n")
    (tmp_path / "empty").touch()
    assert run(tmp_path / "none", tmp_path / "in", monkeypatch) == 1
    assert "none does not exist; expected a model directory" in capsys.readouterr().err
    assert run(model, tmp_path / "empty", monkeypatch) == 1
    assert capsys.readouterr().err.endswith("empty is empty; it must have one sentence per line; check the file\n")
