"""`nmt translate --memory`: the output of an edited text is that of a command without a memory, in every format."""

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from nmt.streams.source import Source
from tests.calling import Nmt, one_line
from tests.cli.nasty_lines import as_bytes, nasty_lines
from tests.extras import import_ctranslate2

BEFORE = [*(f"the old dog {number} sees a cat" for number in range(40)), "", " ", "a\tb", "the old dog 3 sees a cat"]
AFTER = ["a new line", *BEFORE[:10], "the young dog 10", *BEFORE[11:30], *BEFORE[20:], "at the end", "at the end"]
MARKED = ["A <b>red <i>hat</i></b> for {name}: 1,234.5 &amp; 2", "the old <i>cat &amp; I</i>", "", "nothing to keep"]
NUM_NEW = 3  # "at the end" is translated once


@pytest.mark.slow
@pytest.mark.parametrize(
    ("out", "options"),
    [
        ("out.txt", ()),
        ("out.txt.gz", ("--with-scores", "--window", 7)),
        ("out.tsv", ("--n-best", 3, "--with-scores", "--with-alignments", "--no-distinct", "--beam-size", 4)),
        ("out.jsonl", ("--n-best", 2, "--with-alignments")),
        ("out.txt", ("--output-format", "moses", "--n-best", 2)),
        ("out.jsonl", ("--set", "sampling=true", "--n-best", 3)),
        ("out.txt", ("--set", "sampling=true", "--n-best", 4, "--set", "mbr_metric=chrf", "--with-scores")),
    ],
)
def test_output_with_a_memory_is_the_same(
    model: Path, nmt: Nmt, tmp_path: Path, out: str, options: tuple[object, ...]
) -> None:
    for name, lines in (("before", BEFORE), ("after", AFTER)):
        (tmp_path / name).write_bytes(as_bytes(lines))
    options = ("--engine", "torch", "--precision", "fp32", "--batch-tokens", 64, *options)
    memory = ("--memory", tmp_path / "memory.db")
    assert nmt("translate", model, tmp_path / "after", "-o", tmp_path / f"without.{out}", *options)[0] == 0
    status, _, err = nmt("translate", model, tmp_path / "before", "-o", tmp_path / f"before.{out}", *options, *memory)
    assert status == 0, err
    status, _, err = nmt("translate", model, tmp_path / "after", "-o", tmp_path / f"with.{out}", *options, *memory)
    assert status == 0, err
    assert f"; {len(AFTER) - NUM_NEW} lines reused from {tmp_path / 'memory.db'} or repeated" in err
    assert (tmp_path / f"with.{out}").read_bytes() == (tmp_path / f"without.{out}").read_bytes()


@pytest.mark.slow
def test_a_reader_that_closes_the_pipe_after_the_last_line_causes_no_message(model: Path, tmp_path: Path) -> None:
    """The signal for the closed pipe arrives while the memory is being closed."""
    command = [sys.executable, "-m", "nmt", "-q", "translate", str(model), "--memory", str(tmp_path / "memory.db")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        process.stdin.write("the old dog\n")
        process.stdin.close()
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode in (0, 1)  # depends on whether the pipe is closed before the last write


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_kept_items_are_those_of_a_run_without_a_memory(model: Path, nmt: Nmt, tmp_path: Path, engine: str) -> None:
    precision = "fp32"
    if engine == "ctranslate2":
        import_ctranslate2()
        precision = "int8"  # in fp32, its scores depend on the size of a batch
    before = [*MARKED, *(f"<i>the old dog</i> {number} sees {{name}}" for number in range(4))]
    after = ["<b>the</b> old dog 2 sees {name}", *before[:-1], "a new line", "the <u>old cat &amp; I</u>"]
    options = ("--engine", engine, "--precision", precision, "--with-scores")
    keep, keep_numbers = ("--keep", "markup,numbers,placeholders"), ("--keep", "numbers")
    for name, lines in (("before", before), ("after", after)):
        (tmp_path / name).write_bytes(as_bytes(lines))
    memory = ("--memory", tmp_path / "memory.db")
    assert nmt("translate", model, tmp_path / "before", *options, *keep, *memory)[0] == 0
    status, expected, _ = nmt("translate", model, tmp_path / "after", *options, *keep)
    assert status == 0
    status, out, err = nmt("translate", model, tmp_path / "after", *options, *keep, *memory)
    assert (status, out) == (0, expected), err
    assert f"; {len(after) - 1} lines reused" in err  # without tags, only the new line differs
    status, out, err = nmt("translate", model, tmp_path / "after", *options, *memory, *keep_numbers)
    assert status == 0, err
    assert out == nmt("translate", model, tmp_path / "after", *options, *keep_numbers)[1] != expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--memory", "new", "-o", "new"), "--memory {0}/new is also -o"),
        (("--memory", "out.part", "-o", "out"), "--memory {0}/out.part is also the partial output of -o"),
        (("--memory", "out.part.jsonl", "-o", "out"), "--memory {0}/out.part.jsonl is also the journal of -o"),
        (("--memory", "empty", "-o", "out"), "is the input"),
        (("--memory", "new", "--glossary-report", "new", "-o", "out"), "--glossary-report {0}/new is also --memory"),
    ],
)
def test_a_memory_path_that_is_also_another_file_is_an_error(
    model: Path, nmt: Nmt, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    (tmp_path / "empty").write_bytes(b"")
    given = [one if one.startswith("-") else tmp_path / one for one in options]
    status, _, err = nmt("translate", model, tmp_path / "empty", *given)
    assert status == 1 and message.format(tmp_path) in one_line(err)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["empty"]
    assert (tmp_path / "empty").read_bytes() == b""


@pytest.mark.parametrize("name", ["out.part", "out.part.jsonl"])
def test_an_input_that_the_partial_output_would_replace_is_refused(
    model: Path, nmt: Nmt, tmp_path: Path, name: str
) -> None:
    content = '{"text": "the old dog"}\n'
    (tmp_path / name).write_text(content)
    status, _, err = nmt("translate", model, tmp_path / name, "-o", tmp_path / "out", "--restart")
    assert status == 1 and "of -o" in one_line(err) and "is the input" in err
    assert (tmp_path / name).read_text() == content
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [name]


@pytest.mark.slow
def test_lines_are_reused_only_with_the_same_options(model: Path, nmt: Nmt, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("the old dog\nthe old cat\n")
    (tmp_path / "prefixes").write_text("a\n\n")
    (tmp_path / "required").write_text("\ndog\tcat\n")
    (tmp_path / "required2").write_text("\ndog cat\n")
    command = ("translate", model, tmp_path / "in", "--engine", "torch")
    variants: list[tuple[tuple[object, ...], int]] = [
        ((), 0),
        (("--window", 1, "--batch-tokens", 99), 2),  # changes rounding only
        (("--output-format", "jsonl"), 0),  # has scores
        (("--with-scores",), 2),
        (("--beam-size", 3), 0),
        (("--prefixes", tmp_path / "prefixes"), 1),
        (("--required", tmp_path / "required"), 1),
        (("--required", tmp_path / "required2"), 1),
        (("--tag", "<web>"), 0),
        (("--set", "max_length_ratio=0.3"), 0),
        (("--ensemble", model), 0),
    ]
    variants = [((*options, "--precision", "fp32"), reused) for options, reused in variants]
    for options, reused in [*variants, (("--precision", "bf16"), 0)]:
        _, expected, _ = nmt(*command, *options)
        status, out, err = nmt(*command, *options, "--memory", tmp_path / "m")
        assert (status, out) == (0, expected), err
        assert f"{reused} line{'s' * (reused != 1)} reused" in err, options


def test_reused_lines_that_are_too_long_are_counted(model: Path, nmt: Nmt, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("the old dog\n" + f"{'the old dog sees a cat ' * 200}\n" * 2)
    command = ("translate", model, tmp_path / "in", "--memory", tmp_path / "m", "--set", "long_lines=truncate")
    for reused in (1, 3):
        _, _, err = nmt(*command, "--engine", "torch")
        assert f"{reused} line{'s' * (reused > 1)} reused" in err
        assert "warning: 2 lines were too long for the model and were truncated\n" in err


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.html", "<p>the old dog</p>\n<p>the old cat</p>\n"),
        ("a.srt", "1\n00:00:01,000 --> 00:00:02,000\nthe old dog\n\n2\n00:00:03,000 --> 00:00:04,000\nthe cat\n\n"),
    ],
)
def test_the_end_of_a_document_is_not_a_reused_line(
    model: Path, nmt: Nmt, tmp_path: Path, name: str, content: str
) -> None:
    (tmp_path / name).write_text(content)
    for reused in (0, 2):
        status, _, err = nmt("translate", model, tmp_path / name, "--memory", tmp_path / "m", "--engine", "torch")
        assert status == 0 and f"{reused} lines reused" in err and "translated 2 lines" in err


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_a_checkpoint_saved_meanwhile_is_not_used(
    model: Path, nmt: Nmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    if engine == "ctranslate2":
        import_ctranslate2()
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in BEFORE))
    checkpoints, saved = tmp_path / "run" / "checkpoints", tmp_path / "saved"
    shutil.copytree(model, checkpoints / "step-00000001")
    assert nmt("heads", model, tmp_path / "in", tmp_path / "in", "--prune", 1, "-o", saved)[0] == 0
    options = (tmp_path / "in", "--engine", engine, "--precision", "fp32")
    _, first, _ = nmt("translate", model, *options)
    _, second, _ = nmt("translate", saved, *options)
    check = Source.check

    def check_and_save(source: Source) -> int | None:
        if saved.exists():
            saved.rename(checkpoints / "step-00000002")
        return check(source)

    monkeypatch.setattr(Source, "check", check_and_save)
    for expected in (first, second):
        status, out, err = nmt("translate", tmp_path / "run", *options, "--memory", tmp_path / "m")
        assert (status, out) == (0, expected), err
    assert first != second


@pytest.mark.slow
def test_several_processes_share_a_memory(model: Path, nmt: Nmt, tmp_path: Path) -> None:
    lines = nasty_lines(300, num_longest=0)
    (tmp_path / "in").write_bytes(as_bytes(lines))
    command = ("translate", model, tmp_path / "in", "--device", "cpu", "--engine", "torch", "--precision", "fp32")
    _, expected, _ = nmt(*command)
    for _ in range(2):
        status, out, err = nmt(*command, "--memory", tmp_path / "m", "--processes", 2, "--window", 20)
        assert (status, out) == (0, expected), err
    assert "; 300 lines reused" in err
    database, num_distinct = sqlite3.connect(tmp_path / "m"), len(set(lines))
    counts = database.execute("SELECT count(*), max(entries) FROM translations, state").fetchone()
    assert counts == (num_distinct, num_distinct)
    database.close()


def test_the_memory_has_as_many_entries_as_its_limit(model: Path, nmt: Nmt, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(as_bytes(BEFORE))
    command = ("translate", model, tmp_path / "in", "--memory", tmp_path / "m", "--memory-limit", 5, "--window", 10)
    assert nmt(*command)[0] == 0
    database = sqlite3.connect(tmp_path / "m")
    assert database.execute("SELECT count(*) FROM translations").fetchone() == (5,)
    database.close()


@pytest.mark.parametrize(
    ("options", "status", "expected"),
    [
        (("--memory-limit", 5), 2, "--memory-limit has no effect without --memory; add --memory, or leave out --mem"),
        (("--memory", "in"), 1, "--memory in is the input in; it must be another file"),
        (("--memory", ".", "-o", "text"), 2, "'--memory': . is a directory; it must be a file; name one in it"),
        (
            ("--memory", "text"),
            1,
            "text is damaged or not a translation memory (it is not an SQLite database); --memory needs",
        ),
        (("--memory", "no/m"), 1, "cannot use no/m: unable to open database file; --memory needs a readable and"),
        (("--memory", "m", "-o", "m"), 1, "-o m is the input m; it must be another file"),
    ],
)
def test_wrong_options_are_one_line_errors(
    model: Path,
    nmt: Nmt,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[object, ...],
    status: int,
    expected: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").write_text("a dog\n")
    Path("m").write_text("")
    Path("text").write_text("a cat\n")
    found, out, err = nmt("translate", model, "in", *options)
    assert (found, out) == (status, "")
    assert expected in one_line(err)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "m", "text"]
    assert (Path("in").read_text(), Path("text").read_text()) == ("a dog\n", "a cat\n")
