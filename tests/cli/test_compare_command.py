"""`nmt compare`, compared with the paired tests of the sacreBLEU command."""

import gzip
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from nmt.errors import UserError
from nmt.text.lines import count_lines
from tests.calling import Nmt, PipeIn, one_line

SYSTEMS = ("fair", "good", "poor")
THEIR_NAMES = {"bleu": "BLEU", "chrf": "chrF2", "ter": "TER"}
# The sacreBLEU command with one fix: its JSON encoder does not support the 32-bit numbers of chrF and TER.
PROGRAM = """
import functools, json
json.dumps = functools.partial(json.dumps, default=float)
from sacrebleu.sacrebleu import main
main()
"""


def paired_test(texts: Path, *options: str, seed: str) -> list[dict[str, dict[str, float | None]]]:
    """Return the JSON output of the sacreBLEU command: one object for each system, by metric."""
    command = [sys.executable, "-c", PROGRAM, texts / "ref", "-i", *(texts / name for name in SYSTEMS)]
    done = subprocess.run(
        [*map(str, command), "-m", "bleu", "chrf", "ter", *options],
        capture_output=True,
        text=True,
        env={**os.environ, "SACREBLEU_SEED": seed},
        check=True,
    )
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.slow
def test_samples_are_those_of_the_sacrebleu_command(texts: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = "7"  # not the default
    monkeypatch.setenv("SACREBLEU_SEED", seed)
    status, out, _ = nmt(
        "compare", "--ref", texts / "ref", *(texts / name for name in SYSTEMS),
        "--resamples", 200, "--trials", 300, "--format", "json",
    )  # fmt: skip
    assert status == 0
    bootstrap = paired_test(texts, "--paired-bs", "--paired-bs-n", "200", seed=seed)
    trials = paired_test(texts, "--paired-ar", "--paired-ar-n", "300", seed=seed)
    comparisons = json.loads(out)["comparisons"]
    assert [comparison["metric"] for comparison in comparisons] == ["bleu", "chrf", "ter"]
    for comparison in comparisons:
        name = THEIR_NAMES[comparison["metric"]]
        for ours, by_bootstrap, by_trials in zip(comparison["systems"], bootstrap, trials, strict=True):
            assert ours["score"] == by_bootstrap[name]["score"] == by_trials[name]["score"]
            theirs = [by_bootstrap[name]["mean"], by_bootstrap[name]["ci"]]
            assert [ours["mean"], ours["interval"]] == pytest.approx(theirs, abs=1e-4)  # theirs are float32
            if name != "TER":  # whose ties we count: see tests/evaluate/test_significance.py
                assert ours["p_randomization"] == by_trials[name]["p_value"]
        assert [
            f"|bs:200|seed:{seed}|" in comparison["signatures"][0],
            f"|ar:300|seed:{seed}|" in comparison["signatures"][1],
        ] == [True, True]
        base, *others = comparison["systems"]
        assert base["difference"] is None
        assert all(other["difference"] == other["score"] - base["score"] for other in others)


def test_the_table_marks_significant_differences(texts: Path, nmt: Nmt) -> None:
    _, out, err = nmt(
        "compare", "--ref", texts / "ref", texts / "fair", texts / "poor",
        "--metrics", "bleu,bleu-compound-split", "--lang", "de", "--resamples", 200, "--trials", 200,
    )  # fmt: skip
    assert err.startswith("warning: 1 of 66 lines of ") and err.count("\n") == 1
    bleu, split = out.split("\n\nbleu-compound-split\n")
    header, baseline, other = bleu.splitlines()[1:4]
    assert header.split("  ")[0] == "system"
    assert baseline.split()[:2] == [str(texts / "fair"), "(baseline)"]
    assert other.split()[2].startswith("-")
    assert other.count("*") == 2
    assert "tok:moses.de.unipunct" in split
    assert "p: probability that two systems" in split


def test_one_of_the_tests_can_be_left_out(texts: Path, nmt: Nmt) -> None:
    plain = ("compare", "--ref", texts / "ref", texts / "fair", texts / "good", "--metrics", "bleu")
    _, only_trials, _ = nmt(*plain, "--resamples", 0, "--trials", 100)
    _, only_bootstrap, _ = nmt(*plain, "--resamples", 100, "--trials", 0)
    assert ("interval" in only_trials, "randomization" in only_trials) == (False, True)
    assert ("interval" in only_bootstrap, "randomization" in only_bootstrap) == (True, False)
    assert [only_trials.count("BLEU|"), only_bootstrap.count("BLEU|")] == [1, 1]


def test_equal_outputs_are_not_significant(texts: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "copy").write_bytes((texts / "good").read_bytes())
    _, out, err = nmt(
        "compare", "--ref", texts / "ref", texts / "good", tmp_path / "copy", "--metrics", "bleu", "--trials", 50
    )
    assert "copy is identical to the baseline" in err
    assert out.splitlines()[3].split()[-1] == "1.0000"
    assert "*" not in out.partition("\n\n")[0]


@pytest.mark.parametrize(
    ("names", "status", "expected"),
    [
        (["good"], 2, "Missing argument 'OTHER...'"),
        (["good", "good"], 1, "is given twice"),
        (["good", "ref"], 1, "is both a translation and the reference"),
    ],
)
def test_wrong_files_are_one_line(texts: Path, nmt: Nmt, names: list[str], status: int, expected: str) -> None:
    found, out, err = nmt("compare", "--ref", texts / "ref", *(texts / name for name in names))
    assert (found, out) == (status, "")
    assert expected in one_line(err)


@pytest.mark.parametrize(
    ("seed", "expected"), [("0", "SACREBLEU_SEED must not be 0"), ("-1", "SACREBLEU_SEED must be an integer")]
)
def test_wrong_seeds_are_one_line(
    texts: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch, seed: str, expected: str
) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", seed)
    status, out, err = nmt("compare", "--ref", texts / "ref", texts / "good", texts / "fair")
    assert (status, out) == (1, "")
    assert expected in one_line(err)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--resamples", "0", "--trials", "0"], "a comparison needs a test"),
        (["--resamples", "1"], "1 resample has no interval"),
        (["--metrics", "bleu-compond-split"], "did you mean 'bleu-compound-split'?"),
    ],
)
def test_wrong_options_have_exit_status_2(texts: Path, nmt: Nmt, options: list[str], expected: str) -> None:
    status, out, err = nmt("compare", "--ref", texts / "ref", texts / "good", texts / "fair", *options)
    assert (status, out) == (2, "")
    assert expected in one_line(err)


def test_paths_that_do_not_exist_are_named(texts: Path, nmt: Nmt) -> None:
    status, out, err = nmt("compare", "nosuch1", "nosuch2")
    assert (status, out) == (1, "")
    assert one_line(err).startswith("nosuch1, nosuch2: no such file or directory; ")
    assert one_line(nmt("compare", texts / "good", "nosuch2")[2]).startswith("nosuch2: no such file or directory; ")


# --- Standard input and pipes -----------------------------------------------------------------------------------------


def test_standard_input_and_pipes_are_compared_like_files(
    texts: Path, tmp_path: Path, nmt: Nmt, pipe_in: PipeIn
) -> None:
    options = ("--metrics", "bleu", "--trials", 50, "--resamples", 50)
    _, expected, _ = nmt("compare", "--ref", texts / "ref", texts / "good", texts / "fair", *options)
    os.mkfifo(tmp_path / "ref")
    content = gzip.compress((texts / "ref").read_bytes())
    writer = threading.Thread(target=lambda: (tmp_path / "ref").write_bytes(content), daemon=True)
    writer.start()
    pipe_in(lambda write: write((texts / "fair").read_bytes()))
    status, out, err = nmt("compare", "--ref", tmp_path / "ref", texts / "good", "-", *options)
    writer.join(60)
    assert (status, err) == (0, "")
    assert [line.split()[1:] for line in out.replace("standard input", "fair").splitlines()] == [
        line.split()[1:] for line in expected.splitlines()
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["compare", "--ref", "ref", "-", "-"],
        ["compare", "--ref", "-", "-", "good"],
        ["evaluate", "--ref", "ref", "-", "--src", "-"],
        ["score", "model", "-", "-"],
        ["align", "model", "-", "good", "--choose", "good", "-"],
        ["rerank", "model", "-", "-", "--tune", "good"],
    ],
)
def test_standard_input_given_twice_is_an_error(texts: Path, nmt: Nmt, arguments: list[str]) -> None:
    words = [str(texts / word) if (texts / word).is_file() else word for word in arguments]
    status, out, err = nmt(*words)
    assert (status, out, len(err.splitlines())) == (1, "", 1)
    assert "- is given twice; standard input can be read only once" in err


@pytest.mark.parametrize("command", ["score", "align"])
def test_empty_files_are_an_error(tmp_path: Path, nmt: Nmt, command: str) -> None:
    (tmp_path / "empty").touch()
    status, out, err = nmt(command, "model", tmp_path / "empty", tmp_path / "empty")
    assert (status, out, len(err.splitlines())) == (1, "", 1)
    assert f"{tmp_path / 'empty'} is empty" in err


@pytest.mark.parametrize("command", ["score", "align"])
def test_csv_that_is_read_as_text_is_a_warning(model: Path, tmp_path: Path, nmt: Nmt, command: str) -> None:
    src, tgt = tmp_path / "a.csv", tmp_path / "b.CSV.gz"
    src.write_text('id,text\n1,"a, b"\n')
    tgt.write_bytes(gzip.compress(b"b\na;c\n"))
    remark = (
        "is read as plain text, including commas and quotes; extract the text first, or rename the file if it is plain "
        "text"
    )
    status, _, err = nmt(command, model, src, tgt, "--device", "cpu")
    warnings = [line for line in err.splitlines() if line.startswith("warning: ")]
    assert (status, warnings) == (0, [f"warning: {path} {remark}" for path in (src, tgt)])
    src.write_text("b\nc\n")
    (tmp_path / "text").write_text("a, b\na\n")
    status, _, err = nmt(command, model, src, tmp_path / "text", "--device", "cpu")
    assert (status, "warning" in err) == (0, False)


@pytest.mark.parametrize("command", ["evaluate", "compare"])
def test_csv_that_is_scored_as_text_is_a_warning(tmp_path: Path, nmt: Nmt, command: str) -> None:
    files = [tmp_path / name for name in ("ref.csv", "a.csv", "b.csv")]
    for path, word in zip(files, ("cat", "dog", "cow"), strict=True):
        path.write_text(f'id,text\n1,"a {word}, there"\n')
    status, _, err = nmt(command, *files[1:], "--ref", files[0], "--metrics", "chrf")
    warnings = [line for line in err.splitlines() if line.startswith("warning: ")]
    assert status == 0
    assert [line.partition(" is read as plain text")[0] for line in warnings] == [f"warning: {path}" for path in files]


@pytest.mark.parametrize("command", ["score", "align"])
def test_a_pair_too_long_names_the_file(model: Path, tmp_path: Path, nmt: Nmt, command: str) -> None:
    (tmp_path / "short").write_text("a\na\n")
    (tmp_path / "long").write_text("a\n" + "b c " * 99 + "\n")
    for src, tgt in (("long", "short"), ("short", "long")):
        status, _, err = nmt(command, model, tmp_path / src, tmp_path / tgt, "--device", "cpu")
        assert (status, err.count("\n")) == (1, 1)
        assert f"{tmp_path / 'long'}, line 2 has " in err


def test_a_pipe_that_would_be_read_twice_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UserError, match="fifo is a pipe, but is read more than once; it must be a file"):
        count_lines(tmp_path / "fifo")  # does not open it, which would wait for a writer
