"""nmt translate with a glossary, and with constraints of single lines."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.calling import Nmt, PipeIn, one_line
from tests.extras import import_ctranslate2


def test_terms_are_required_and_reported(model: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "in.txt").write_text("a cat\na man\nthe cat and a dog\n")
    (tmp_path / "terms.tsv").write_text("Cat\tsees|house\ndog\ttree\n")
    report, out = tmp_path / "report.tsv", tmp_path / "out.txt"
    given = ("--glossary", tmp_path / "terms.tsv", "--glossary-report", report, "-b", "8", "-o", out)
    status, _, err = nmt("translate", model, tmp_path / "in.txt", *given)
    assert status == 0, err
    assert "CTranslate2 does not support required phrases and glossaries" in err or "not installed" in err
    lines = [line.lower() for line in out.read_text().splitlines()]
    assert len(lines) == 3
    assert all("sees" in lines[i] or "house" in lines[i] for i in (0, 2)) and "tree" in lines[2]
    header, *rows = [row.split("\t") for row in report.read_text().splitlines()]
    assert header == ["line", "term", "translation", "result"]
    assert [row[:2] for row in rows] == [["1", "Cat"], ["3", "Cat"], ["3", "dog"]]
    assert f"glossary (constrain): {sum(row[3] == 'used' for row in rows)} of 3 terms used" in err
    assert nmt("translate", model, tmp_path / "in.txt", *given, "--resume")[0] == 0
    report.unlink()
    status, _, err = nmt("translate", model, tmp_path / "in.txt", *given, "--resume")
    assert status == 1 and not report.exists()
    expected = f"out.txt is complete, but --glossary-report {report} does not exist; a report is written during"
    assert expected in one_line(err)


def test_report_to_standard_output_is_an_error(
    model: Path, tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.txt").write_text("a cat\n")
    (tmp_path / "terms.tsv").write_text("cat\ttree\n")
    own = tmp_path / "own"
    for report in (Path("-"), own):
        with own.open("a") as file, monkeypatch.context() as patch:
            patch.setattr("sys.stdout", file)
            given = ("--glossary", tmp_path / "terms.tsv", "--glossary-report", report)
            status, _, err = nmt("translate", model, tmp_path / "in.txt", *given)
        assert (status, own.read_text()) == (2, "")
        assert f"--glossary-report {report} is standard output; it must be a file; name one" in one_line(err)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_report_and_translations_are_not_mixed_in_a_pipe(
    model: Path, tmp_path: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.txt").write_text("a cat\n")
    (tmp_path / "terms.tsv").write_text("cat\ttree\n")
    os.mkfifo(pipe := tmp_path / "pipe")
    given = (model, tmp_path / "in.txt", "--glossary", tmp_path / "terms.tsv", "--glossary-report", pipe)
    with os.fdopen(os.open(pipe, os.O_RDWR), "w") as file, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", file)
        status, _, err = nmt("translate", *given)
    assert status == 2
    assert f"--glossary-report {pipe} is standard output; it must be a file; name one" in one_line(err)
    status, _, err = nmt("translate", *given, "-o", pipe)
    assert status == 1
    assert f"--glossary-report {pipe} is also -o; each needs its own file" in one_line(err)


def test_the_report_ignores_markup(model: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "in.txt").write_text("a <b>big</b> cat &amp; m<i>an</i>\n")
    (tmp_path / "terms.tsv").write_text("big cat\tsees\n& man\ttree\n")
    report = tmp_path / "report.tsv"
    given = ("--glossary", tmp_path / "terms.tsv", "--glossary-report", report, "--keep", "markup", "-b", "8")
    status, out, err = nmt("translate", model, tmp_path / "in.txt", *given)
    assert status == 0, err
    text = re.sub("<[^>]*>", "", out).lower()
    assert "sees" in text and "tree" in text
    rows = [row.split("\t") for row in report.read_text().splitlines()[1:]]
    assert [row[:3] for row in rows] == [["1", "big cat", "sees"], ["1", "& man", "tree"]]


def test_terms_within_kept_items_are_not_required(model: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "in.txt").write_text("a {cat} sees\na cat\n")
    (tmp_path / "terms.tsv").write_text("cat\ttree\n")
    report = tmp_path / "report.tsv"
    options = ("--keep", "placeholders", "--glossary", tmp_path / "terms.tsv", "--glossary-report", report)
    status, out, err = nmt("translate", model, tmp_path / "in.txt", "-b", "8", *options)
    assert status == 0 and "1 of 1 term used" in err, err
    assert "{cat}" in out.splitlines()[0] and "tree" in out.splitlines()[1]
    assert report.read_text().splitlines()[1:] == ["2\tcat\ttree\tused"]


def test_single_lines_have_their_own_constraints(model: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "terms.tsv").write_text("cat\ttree\n")
    objects: list[dict[str, Any]] = [
        {"text": "a cat", "glossary": [["cat", "house"]], "id": 1},
        {"text": "a cat", "required": [["sees", "man"]]},
        {"text": "a man", "prefix": "the old"},
        {"text": None, "required": ["x"]},
    ]
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in objects))
    status, out, err = nmt("translate", model, tmp_path / "in.jsonl", "-b", "8", "--glossary", tmp_path / "terms.tsv")
    assert status == 0, err
    written = [json.loads(line) for line in out.splitlines()]
    assert [{name: one[name] for name in given} for one, given in zip(written, objects, strict=True)] == objects
    texts = [(one["translation"] or "").lower() for one in written]
    assert "house" in texts[0] and "tree" in texts[1] and ("sees" in texts[1] or "man" in texts[1])
    assert texts[2].startswith("the old") and written[3]["translation"] is None

    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n{"text": "a", "tag": "<none>"}\n')
    status, _, err = nmt("translate", model, tmp_path / "in.jsonl")
    assert status == 1
    assert err.splitlines()[-1].startswith("nmt: line 2: tag '<none>' is unknown to the tokenizer; ")


@pytest.mark.parametrize("impossible", [1, 3, 5])
@pytest.mark.parametrize("field", [{"required": ["the tree " * 40]}, {"required": ["a"], "forbidden": ["a"]}], ids=str)
def test_a_line_with_impossible_constraints_is_named(
    model: Path, tmp_path: Path, nmt: Nmt, impossible: int, field: dict[str, Any]
) -> None:
    objects: list[dict[str, Any]] = [{"text": "a cat"} for _ in range(5)]
    objects[impossible - 1] |= field
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in objects))
    status, out, err = nmt("translate", model, tmp_path / "in.jsonl", "--engine", "torch", "--threads", "1")
    assert (status, out) == (1, "")
    assert err.splitlines()[-1].startswith(f"nmt: line {impossible}: ")


def test_the_error_for_required_phrases_in_a_pipe_names_the_engine_option(
    model: Path, nmt: Nmt, pipe_in: PipeIn
) -> None:
    import_ctranslate2()
    pipe_in(lambda write: write(b'{"text": "a"}\n{"text": "a\\nb", "required": ["tree"]}\n'))
    status, _, err = nmt("translate", model, "--input-format", "jsonl", "--device", "cpu")
    assert status == 1
    message = err.splitlines()[-1]
    assert message.startswith("nmt: line 2: CTranslate2 does not support the required phrases or glossary")
    assert "use --engine torch" in message


@pytest.mark.parametrize("field", ['"required": ["dog"]', '"glossary": [["a", "b"]]'])
def test_samples_with_required_phrases_are_rejected_before_any_line(
    model: Path, nmt: Nmt, tmp_path: Path, field: str
) -> None:
    lines = tmp_path / "in.jsonl"
    lines.write_text(f'{{"text": "a"}}\n{{"text": "a", {field}}}\n')
    options = ("--set", "sampling=true", "--window", 1, "--device", "cpu", "--engine", "torch")
    code, out, err = nmt("translate", model, lines, *options)
    assert (code, out) == (1, "")
    assert "sampling does not support required phrases and glossaries; " in err
