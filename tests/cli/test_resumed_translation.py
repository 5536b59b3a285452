"""`nmt translate --resume` and `--restart` after any interruption."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nmt import DecodeRecipe
from nmt.checkpoint import write_with_decode
from nmt.streams.job import TranslationJob
from nmt.streams.workers import Counts
from tests.calling import Nmt, PipeIn, one_line
from tests.cli.nasty_lines import SENTENCES, as_bytes


@pytest.mark.slow
def test_resume_after_an_invalid_line(model: Path, nmt: Nmt, pipe_in: PipeIn, tmp_path: Path) -> None:
    lines = [json.dumps({"text": text}) for text in SENTENCES]
    command = ("translate", model, "-o", tmp_path / "out.jsonl.gz", "--input-format", "jsonl", "--engine", "torch")
    pipe_in(lambda write: write(as_bytes([*lines[:13], '{"text"', *lines[14:]])))
    status, _, err = nmt(*command)
    assert status == 1
    assert "standard input, line 14 is not JSON" in one_line(err)
    pipe_in(lambda write: write(as_bytes(lines)))
    assert nmt(*command, "--resume")[0] == 0
    written = gzip.decompress((tmp_path / "out.jsonl.gz").read_bytes()).decode().splitlines()
    assert [json.loads(line)["text"] for line in written] == SENTENCES


@pytest.mark.slow
@pytest.mark.parametrize("name", ["out.txt", "out.jsonl.gz", "out.tsv"])
def test_resume_after_interruption_gives_the_same_output(
    model: Path, nmt: Nmt, tmp_path: Path, interrupt_after: Callable[[int], None], name: str
) -> None:
    def text(path: Path) -> bytes:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()

    (tmp_path / "in.tsv").write_bytes(as_bytes(["en", *SENTENCES]))
    out, part = tmp_path / name, tmp_path / f"{name}.part"
    command: list[object] = ["translate", model, tmp_path / "in.tsv", "--header", "-o", out, "--window", 6]
    command += ["--n-best", 2, "--engine", "torch"]
    assert nmt(*command)[0] == 0
    expected = text(out)
    out.unlink()
    for windows in (0, 1, 3):
        interrupt_after(windows)
        status, _, err = nmt(*command)
        assert status == 130
        if windows == 0:
            assert one_line(err) == "interrupted"
            assert sorted(path.name for path in tmp_path.iterdir()) == ["in.tsv"]
            continue
        told = f"interrupted; {part} has the first {6 * windows} lines; to continue, add --resume to the command"
        assert one_line(err) == told
        status, _, err = nmt(*command)
        assert status == 2
        assert f"{part} has {6 * windows} lines from an interrupted command" in one_line(err)
        status, _, err = nmt(*command, "--resume", "--batch-tokens", 999)
        assert status == 0, err
        assert text(out) == expected
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in.tsv", name]
        status, _, err = nmt(*command, "--resume")
        assert status == 0
        assert f"{out} is complete: 20 lines, as many as {tmp_path / 'in.tsv'}; its model and" in err
        out.unlink()
    out.write_text("no list\n")
    if name == "out.txt":
        status, _, err = nmt(*command, "--resume")
        assert status == 1
        assert f"{out} is not an n-best list; --resume needs an output with the same options" in one_line(err)


@pytest.mark.slow
@pytest.mark.parametrize("change", [lambda path: path.write_bytes(as_bytes(["x", *SENTENCES])), Path.unlink])
def test_an_input_that_changes_during_translation_is_an_error(
    model: Path, nmt: Nmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object]
) -> None:
    source, out = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_bytes(as_bytes(SENTENCES))
    translate = TranslationJob._translate

    def translate_and_change(*arguments: Any) -> Counts | None:
        counts = translate(*arguments)
        change(source)
        return counts

    monkeypatch.setattr(TranslationJob, "_translate", translate_and_change)
    command = ("translate", model, source, "-o", out, "--engine", "torch")
    status, _, err = nmt(*command)
    if source.exists():
        assert status == 1
        assert one_line(err).startswith(f"{source} changed during translation")
        assert one_line(err).endswith("with --resume, which fails if translated lines have changed, or with --restart")
        assert sorted(tmp_path.iterdir()) == [source, tmp_path / "out.txt.part", tmp_path / "out.txt.part.jsonl"]
        status, _, err = nmt(*command, "--resume")
        assert (status, "does not start with the 20 lines" in one_line(err)) == (2, True)
    else:  # all lines were read from the open file
        assert status == 0
        assert len(out.read_text(encoding="utf-8").splitlines()) == len(SENTENCES)


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--prefixes", "--required"])
def test_constraints_that_change_during_translation_are_an_error(
    model: Path, nmt: Nmt, sentences: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    constraints = tmp_path / "constraints"
    constraints.write_bytes(as_bytes(["the"] * len(SENTENCES)))
    translate = TranslationJob._translate

    def translate_and_change(*arguments: Any) -> Counts | None:
        counts = translate(*arguments)
        constraints.write_bytes(as_bytes(["cat"] * len(SENTENCES)))
        return counts

    monkeypatch.setattr(TranslationJob, "_translate", translate_and_change)
    out = tmp_path / "out.txt"
    status, _, err = nmt("translate", model, sentences, option, constraints, "-o", out, "--engine", "torch")
    assert (status, out.exists()) == (1, False)
    assert one_line(err).startswith(f"{constraints} changed during translation")


@pytest.mark.slow
def test_resume_requires_the_same_options_and_input(
    model: Path, nmt: Nmt, sentences: Path, tmp_path: Path, interrupt_after: Callable[[int], None]
) -> None:
    other = tmp_path / "other"
    write_with_decode(model, DecodeRecipe(beam_size=2), other)
    (tmp_path / "shortened").write_bytes(as_bytes(SENTENCES[:3]))
    (tmp_path / "changed").write_bytes(as_bytes(["a cat", *SENTENCES[1:]]))
    (tmp_path / "corrected").write_bytes(as_bytes([*SENTENCES[:-1], "a cat"]))
    more = ("-o", tmp_path / "out", "--engine", "torch", "--window", 6)
    interrupt_after(2)
    assert nmt("translate", model, sentences, *more)[0] == 130
    part = (tmp_path / "out.part").read_bytes()
    for models, source, options, expected in (
        (other, sentences, (), f"model was {model} (SHA-256 "),
        (model, sentences, ("--ensemble", other), f"ensemble was [] and is {other} (SHA-256 "),
        (model, sentences, ("--beam-size", 3), "decode.beam_size was 2 and is 3"),
        (model, sentences, ("--with-scores",), "with-scores was false and is true"),
        (
            model,
            sentences,
            ("--prefixes", sentences),
            f"{sentences} with --prefixes {sentences} does not start with the 12 lines",
        ),
        (model, tmp_path / "shortened", (), f"shortened has 3 lines; {tmp_path / 'out.part'} has translations of 12"),
        (model, tmp_path / "changed", (), f"lines that {tmp_path / 'out.part'} was made from ({sentences});"),
        (model, tmp_path / "changed", (), "use the same input, --prefixes and --required, or --restart to start over"),
    ):
        status, _, err = nmt("translate", models, source, *more, *options, "--resume")
        assert status == 2
        assert expected in one_line(err)
        assert (tmp_path / "out.part").read_bytes() == part
    assert nmt("translate", model, tmp_path / "corrected", *more, "--resume")[0] == 0
    assert not (tmp_path / "out.part").exists()
    assert nmt("translate", model, sentences, "--engine", "torch", "-o", tmp_path / "whole")[0] == 0
    resumed, whole = ((tmp_path / name).read_text().splitlines() for name in ("out", "whole"))
    assert resumed[:-1] == whole[:-1]
    status, _, err = nmt("translate", model, tmp_path / "shortened", *more, "--resume")
    assert status == 1
    assert f"out has 20 lines, {tmp_path / 'shortened'} has 3, and there is no out.part to resume" in one_line(err)
    status, _, err = nmt("translate", model, sentences, *more, "--resume", "--restart")
    assert status == 2
    assert "give one of them" in one_line(err)


@pytest.mark.slow
def test_resume_rejects_a_complete_output_of_another_format(model: Path, nmt: Nmt, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(as_bytes(["", *SENTENCES]))
    (tmp_path / "in.tsv").write_bytes(as_bytes(["", *SENTENCES]))
    kinds = {
        "text": ("in",),
        "text with scores": ("in", "--with-scores"),
        "JSON Lines": ("in", "--output-format", "jsonl"),
        "TSV": ("in.tsv", "--output-format", "tsv"),
    }
    for written, (source, *options) in kinds.items():
        command = ("translate", model, "--engine", "torch", "-o", tmp_path / "out")
        assert nmt(*command, tmp_path / source, *options)[0] == 0
        content = (tmp_path / "out").read_bytes()
        for kind, (source, *options) in kinds.items():
            status, _, err = nmt(*command, tmp_path / source, *options, "--resume")
            if written == kind or (written, kind) == ("text with scores", "TSV"):
                assert (status, "is complete: 21 lines" in err) == (0, True)  # both have columns
                continue
            assert status == 1
            assert one_line(err) == (
                f"{tmp_path / 'out'} is not {kind}; --resume needs an output with the same options; choose another "
                "output, or leave out --resume to replace it"
            )
        assert (tmp_path / "out").read_bytes() == content
    with_alignments = (*command, tmp_path / "in", "--with-alignments")
    assert nmt(*with_alignments)[0] == 0
    assert "is complete: 21 lines" in nmt(*with_alignments, "--resume")[2]


@pytest.mark.slow
def test_resume_distinguishes_n_best_lists(model: Path, nmt: Nmt, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(as_bytes(["a dog", "a cat"]))
    command = ("translate", model, tmp_path / "in", "--engine", "torch", "--n-best", 2, "-o", tmp_path / "out")
    kinds = {"an n-best list with tabs": "text", "a Moses n-best list": "moses"}
    for written in kinds.values():
        assert nmt(*command, "--output-format", written)[0] == 0
        for name, kind in kinds.items():
            status, _, err = nmt(*command, "--output-format", kind, "--resume")
            if kind == written:
                assert (status, "is complete: 2 lines" in err) == (0, True)
            else:
                assert status == 1 and one_line(err).startswith(f"{tmp_path / 'out'} is not {name}; --resume needs")


@pytest.mark.slow
def test_interrupted_and_resumed_commands_report_their_long_lines(
    model: Path, nmt: Nmt, tmp_path: Path, interrupt_after: Callable[[int], None]
) -> None:
    long = " ".join(["the old dog"] * 300)
    (tmp_path / "in.txt").write_text(
        "".join(f"{line}\n" for line in [*SENTENCES[:5], long, *SENTENCES[:5], long, long])
    )
    command = ["translate", model, tmp_path / "in.txt", "-o", tmp_path / "out", "--window", 6, "--engine", "torch"]
    interrupt_after(1)
    status, _, err = nmt(*command)
    assert status == 130
    assert "warning: 1 line was too long for the model and was translated in parts" in err
    status, _, err = nmt(*command, "--resume")
    assert status == 0
    assert "the first 6 lines were translated earlier; warnings count only the others" in err
    assert "warning: 2 lines were too long for the model and were translated in parts" in err


def test_an_interrupted_command_with_resume_is_rerun_unchanged(
    model: Path, nmt: Nmt, sentences: Path, tmp_path: Path, interrupt_after: Callable[[int], None]
) -> None:
    out = tmp_path / "out"
    interrupt_after(2)
    status, _, err = nmt("translate", model, sentences, "-o", out, "--engine", "torch", "--window", 6, "--resume")
    told = f"interrupted; {out}.part has the first 12 lines; to continue, rerun the command"
    assert (status, one_line(err)) == (130, told)


@pytest.mark.parametrize("option", ["--prefixes", "--required"])
def test_resume_names_a_missing_option(
    model: Path, nmt: Nmt, sentences: Path, tmp_path: Path, interrupt_after: Callable[[int], None], option: str
) -> None:
    (tmp_path / "words").write_text("cat\n" * len(SENTENCES))
    command = ("translate", model, sentences, "-o", tmp_path / "out", "--engine", "torch", "--window", 6)
    interrupt_after(2)
    assert nmt(*command, option, tmp_path / "words")[0] == 130
    status, _, err = nmt(*command, "--resume")
    assert status == 2
    assert f"made from ({sentences} with {option} {tmp_path / 'words'}); use the same input, --pref" in one_line(err)


@pytest.mark.slow
def test_restart_keeps_the_part_if_the_model_does_not_load(
    model: Path, nmt: Nmt, sentences: Path, tmp_path: Path, interrupt_after: Callable[[int], None]
) -> None:
    command = ("translate", model, sentences, "-o", tmp_path / "out", "--engine", "torch", "--window", 6)
    interrupt_after(2)
    assert nmt(*command)[0] == 130
    kept = {path.name: path.read_bytes() for path in tmp_path.glob("out*")}
    assert kept.keys() == {"out.part", "out.part.jsonl"}
    for option in ("--fusion", "--ensemble", "--shortlist"):
        assert nmt(*command, "--restart", option, sentences)[0] == 1, option
    (tmp_path / "memory").write_text("text")
    assert nmt(*command, "--restart", "--memory", tmp_path / "memory")[0] == 1
    assert {path.name: path.read_bytes() for path in tmp_path.glob("out*")} == kept
    assert nmt(*command, "--restart")[0] == 0
    assert {path.name for path in tmp_path.glob("out*")} == {"out"}


@pytest.mark.slow
def test_resume_requires_the_same_header(
    model: Path, nmt: Nmt, tmp_path: Path, interrupt_after: Callable[[int], None]
) -> None:
    source = tmp_path / "in.tsv"
    rows = "".join(f"{number}\t{text}\n" for number, text in enumerate(SENTENCES))
    source.write_text(f"id\ten\n{rows}")
    command = ("translate", model, source, "--header", "--column", 1, "-o", tmp_path / "out.jsonl", "--window", 6)
    interrupt_after(2)
    assert nmt(*command, "--engine", "torch")[0] == 130
    source.write_text(f"id\tEnglish\n{rows}")
    status, _, err = nmt(*command, "--engine", "torch", "--resume")
    assert status == 2
    assert 'header was ["id", "en"] and is ["id", "English"]' in one_line(err)
    source.write_text(f"id\ten\n{rows}")
    assert nmt(*command, "--engine", "torch", "--resume")[0] == 0
    assert (tmp_path / "out.jsonl").read_text().count('"en": ') == len(SENTENCES)


@pytest.mark.slow
def test_resume_requires_the_same_glossary_report(
    model: Path, nmt: Nmt, tmp_path: Path, interrupt_after: Callable[[int], None]
) -> None:
    """A new report would lack the rows of the first lines."""
    (tmp_path / "in").write_bytes(as_bytes(SENTENCES))
    (tmp_path / "terms").write_text("cat\tdog\n")
    command = ("translate", model, tmp_path / "in", "-o", tmp_path / "out", "--window", 6)
    options = ("--glossary", tmp_path / "terms", "--engine", "torch", "--resume")
    interrupt_after(2)
    assert nmt(*command, *options)[0] == 130
    status, _, err = nmt(*command, *options, "--glossary-report", tmp_path / "report")
    assert (status, "glossary-report was null and is" in one_line(err)) == (2, True)
    assert not (tmp_path / "report").exists()
    assert nmt(*command, *options)[0] == 0


@pytest.mark.slow
def test_resume_from_a_pipe_requires_the_same_lines(model: Path, nmt: Nmt, pipe_in: PipeIn, tmp_path: Path) -> None:
    command = ("translate", model, "-o", tmp_path / "out", "--window", 1)
    pipe_in(lambda write: write(as_bytes([*SENTENCES[:5]]) + b"\xff\n"))
    assert nmt(*command)[0] == 1
    pipe_in(lambda write: write(as_bytes(["a cat", *SENTENCES[1:]])))
    status, _, err = nmt(*command, "--resume")
    assert status == 2
    assert "standard input does not start with the 5 lines that" in one_line(err)
    pipe_in(lambda write: write(as_bytes(SENTENCES)))
    assert nmt(*command, "--resume")[0] == 0
    assert (tmp_path / "out").read_text().count("\n") == 20
    pipe_in(lambda write: write(as_bytes(SENTENCES)))
    status, _, err = nmt(*command, "--resume")
    assert status == 0
    assert "out is complete: 20 lines, as many as standard input" in err
