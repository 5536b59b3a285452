"""`nmt evaluate`, compared with the sacreBLEU command, a reimplementation of multi-bleu, and a fake COMET."""

import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import sacrebleu
import sacremoses

from tests.calling import Nmt, one_line

SYSTEMS = ("good", "fair", "poor")


def sacrebleu_command(*arguments: object, **environment: str) -> list[dict[str, object]]:
    """Return the scores that the sacreBLEU command prints, with 14 digits."""
    command = [sys.executable, "-m", "sacrebleu", *map(str, arguments), "--width", "14"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=True)
    printed = json.loads(done.stdout)
    return printed if isinstance(printed, list) else [printed]


def by_signature(printed: list[dict[str, object]]) -> dict[str, tuple[object, ...]]:
    keys = ("score", "confidence_mean", "confidence_var")
    return {f"{found['name']}|{found['signature']}": tuple(found.get(key) for key in keys) for found in printed}


def rounded(scores: list[dict[str, object]]) -> dict[str, tuple[object, ...]]:
    """Our scores in the form of `by_signature`, each number rounded as `--width 14` does."""

    def digits(number: object) -> float | None:
        return None if number is None else float(f"{number:.14f}")

    return {
        str(score["signature"]): tuple(digits(score[key]) for key in ("value", "mean", "interval")) for score in scores
    }


# --- Scores of sacreBLEU ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (["--confidence"], ["--confidence"]),
        (["--tokenize", "intl", "--lowercase"], ["-tok", "intl", "-lc"]),
        (["--lowercase", "--chrf-lowercase"], ["-lc", "--chrf-lowercase"]),
        (["--tokenize", "char"], ["-tok", "char"]),
        (["--tokenize", "none"], ["-tok", "none"]),
        (
            ["--metrics", "chrf++", "--confidence", "--resamples", "300"],
            ["--chrf-word-order", "2", "-m", "chrf", "-ci", "-cin", "300"],
        ),
    ],
    ids=lambda value: " ".join(value),
)
def test_every_score_equals_the_sacrebleu_command(texts: Path, nmt: Nmt, ours: list[str], theirs: list[str]) -> None:
    status, out, _ = nmt("evaluate", "--ref", texts / "ref", texts / "fair", "--json", *ours)
    metrics = [] if "-m" in theirs else ["-m", "bleu", "chrf", "ter"]
    expected = by_signature(sacrebleu_command(texts / "ref", "-i", texts / "fair", *metrics, *theirs))
    assert status == 0
    (scores,) = json.loads(out)["systems"].values()
    assert rounded(scores) == expected


@pytest.mark.slow
def test_several_references_and_systems_equal_the_sacrebleu_command(texts: Path, nmt: Nmt) -> None:
    refs = ["--ref", texts / "ref", "--ref", texts / "ref2"]
    _, out, _ = nmt("evaluate", *refs, *(texts / name for name in SYSTEMS), "--json")
    found = json.loads(out)["systems"]
    assert list(found) == [str(texts / name) for name in SYSTEMS]
    for name in ("good", "poor"):
        printed = sacrebleu_command(texts / "ref", texts / "ref2", "-i", texts / name, "-m", "bleu", "chrf", "ter")
        assert rounded(found[str(texts / name)]) == by_signature(printed)
    assert "nrefs:2" in found[str(texts / "good")][0]["signature"]


@pytest.mark.slow
def test_intervals_use_the_seed_of_sacrebleu(texts: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "77")
    _, out, _ = nmt("evaluate", "--ref", texts / "ref", texts / "poor", "--metrics", "bleu", "--json", "--confidence")
    expected = by_signature(sacrebleu_command(texts / "ref", "-i", texts / "poor", "--confidence"))
    assert rounded(next(iter(json.loads(out)["systems"].values()))) == expected
    assert "seed:77" in next(iter(expected))
    monkeypatch.setenv("SACREBLEU_SEED", "many")
    status, _, err = nmt("evaluate", "--ref", texts / "ref", texts / "good", "--confidence")
    assert status == 1
    assert "SACREBLEU_SEED must be an integer" in one_line(err)


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["bleu", "chrf", "ter"])
def test_scores_of_sentences_equal_the_sacrebleu_command(texts: Path, tmp_path: Path, nmt: Nmt, metric: str) -> None:
    out = tmp_path / "sentences.tsv"
    refs = ["--ref", texts / "ref", "--ref", texts / "ref2"]
    status, _, err = nmt("evaluate", *refs, texts / "fair", texts / "poor", "--metrics", metric, "-sl", out)
    assert status == 0
    header, *rows = [line.split("\t") for line in out.read_text(encoding="utf-8").splitlines()]
    assert header == ["system", "line", metric]
    references = [texts / "ref", texts / "ref2"]
    for name, found in (("fair", rows[: len(rows) // 2]), ("poor", rows[len(rows) // 2 :])):
        command = [sys.executable, "-m", "sacrebleu", *references, "-i", texts / name, "-m", metric, "-sl", "-w", "6"]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True)
        printed = [line.split()[:3] for line in done.stdout.splitlines()]  # signature = score ...
        assert [row[:2] for row in found] == [[str(texts / name), str(line)] for line in range(1, len(printed) + 1)]
        assert [float(row[2]) for row in found] == pytest.approx([float(score) for _, _, score in printed], abs=6e-5)
        assert f"signatures: {printed[0][0]}\n" in err


def test_scores_of_sentences_replace_neither_inputs_nor_other_files(texts: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "notes").write_text("keep", encoding="utf-8")
    for out, problem in ((texts / "ref", "is the input"), (tmp_path / "notes", "was not written by this command")):
        before = out.read_bytes()
        status, _, err = nmt("evaluate", "--ref", texts / "ref", texts / "fair", "--sentence-level", out)
        assert status == 1
        assert problem in one_line(err)
        assert out.read_bytes() == before


# --- The scores of older papers ---------------------------------------------------------------------------------------


def multi_bleu(hypotheses: list[list[str]], references: list[list[str]]) -> float:
    """BLEU as multi-bleu.perl computes it: no smoothing, one reference."""
    logs = 0.0
    for order in range(1, 5):
        matches = total = 0
        for hypothesis, reference in zip(hypotheses, references, strict=True):
            ours, theirs = (
                Counter(zip(*(side[start:] for start in range(order)), strict=False))
                for side in (hypothesis, reference)
            )
            matches, total = matches + (ours & theirs).total(), total + ours.total()
        if not matches:
            return 0.0
        logs += math.log(matches / total) / 4
    lengths = [sum(map(len, lines)) for lines in (hypotheses, references)]
    return 100 * math.exp(logs + min(0.0, 1 - lengths[1] / lengths[0]))


def ende_bleu_tokens(path: Path) -> list[list[str]]:
    """get_ende_bleu.sh: Unicode punctuation replaced, Moses tokens, hyphens inside words made tokens."""
    plain = str.maketrans({"\u201c": '"', "\u201d": '"', "\u2019": "'", "\u2026": "...", "\uff05": "%"})
    moses = sacremoses.MosesTokenizer("de")
    lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    tokenized = [moses.tokenize(line.translate(plain), return_str=True) for line in lines]
    return [re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", line).split() for line in tokenized]


@pytest.mark.slow
def test_compound_split_bleu_equals_an_independent_implementation(texts: Path, nmt: Nmt) -> None:
    systems = [texts / name for name in SYSTEMS]
    metrics = "bleu,bleu-tokenized,bleu-compound-split"
    _, out, _ = nmt("evaluate", "--ref", texts / "ref", *systems, "--json", "--lang", "de", "--metrics", metrics)
    reference = ende_bleu_tokens(texts / "ref")
    for path, (plain, tokenized, split) in zip(systems, json.loads(out)["systems"].values(), strict=True):
        assert split["value"] == pytest.approx(multi_bleu(ende_bleu_tokens(path), reference), abs=1e-9)
        assert len({plain["value"], tokenized["value"], split["value"]}) == 3
        assert "|smooth:none|compounds:split|" in split["signature"]


def test_sacrebleu_and_tokenized_metrics_share_a_table(texts: Path, nmt: Nmt) -> None:
    _, out, _ = nmt(
        "evaluate", "--ref", texts / "ref", texts / "good", "--lang", "de", "--metrics", "bleu,bleu-compound-split"
    )
    header, row, _, first, second, note = out.splitlines()
    assert header.split() == ["system", "bleu", "bleu-compound-split"]
    assert row.split()[0] == str(texts / "good")
    assert first.startswith("bleu                 BLEU|nrefs:1|case:mixed|eff:no|tok:13a|")
    assert second.startswith("bleu-compound-split  BLEU|nrefs:1|case:mixed|eff:no|tok:moses.de.unipunct.")
    assert "not comparable with bleu" in note


# --- Test sets by name ------------------------------------------------------------------------------------------------


@pytest.fixture
def cached(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sacreBLEU cache in which wmt14/full has the text of `texts`."""
    test_set = sacrebleu.dataset.DATASETS["wmt14/full"]
    monkeypatch.setattr(test_set, "_outdir", str(tmp_path / "wmt14" / "full"))
    monkeypatch.setattr(test_set, "_rawdir", str(tmp_path / "raw"))
    (tmp_path / "wmt14" / "full").mkdir(parents=True)
    for field in test_set.fieldnames("en-de"):
        source = texts / (field if field in ("src", "ref") else "src")
        Path(test_set._get_txt_file_path("en-de", field)).write_bytes(source.read_bytes())
    return tmp_path


@pytest.mark.slow
def test_a_sacrebleu_test_set_has_source_reference_and_language(texts: Path, cached: Path, nmt: Nmt) -> None:
    named = ["--test-set", "wmt14/full", "--lang-pair", "en-de"]
    _, out, _ = nmt("evaluate", *named, texts / "fair", "--json", "--metrics", "bleu,bleu-compound-split")
    printed = sacrebleu_command("-t", "wmt14/full", "-l", "en-de", "-i", texts / "fair", SACREBLEU=str(cached))
    ((plain, split),) = json.loads(out)["systems"].values()
    assert rounded([plain]) == by_signature(printed)
    assert "moses.de" in split["signature"]  # from the language pair
    _, table, _ = nmt("evaluate", *named, texts / "fair", "--by-length", "--metrics", "bleu")
    assert "by words in the source sentence" in table  # the test set has a source


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--test-set", "wmt14/ful", "--lang-pair", "en-de"], "unknown sacreBLEU test set 'wmt14/ful'"),
        (["--test-set", "wmt14/full", "--lang-pair", "en-xx"], "has no pair en-xx; it has"),
        (
            ["--test-set", "wmt14/full", "--lang-pair", "en-de"],
            "cannot download wmt14/full (no network); on",
        ),
    ],
)
def test_unavailable_test_set_is_an_error(
    texts: Path, cached: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch, options: list[str], expected: str
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr("urllib.request.urlopen", fail)
    (cached / "wmt14" / "full" / "wmt14_full.en-de.ref").unlink()
    status, out, err = nmt("evaluate", *options, texts / "good")
    assert (status, out) == (1, "")
    assert expected in one_line(err)


@pytest.mark.parametrize(
    ("short", "long"),
    [
        (("-m", "bleu", "-tok", "char", "-lc"), ("--metrics", "bleu", "--tokenize", "char", "--lowercase")),
        (("-m", "chrf", "-f", "json"), ("--metrics", "chrf", "--format", "json")),
    ],
)
def test_short_options_are_those_of_sacrebleu(short: list[str], long: list[str], texts: Path, nmt: Nmt) -> None:
    found = [nmt("evaluate", texts / "good", "--ref", texts / "ref", *options) for options in (short, long)]
    assert found[0] == found[1]
    assert found[0][0] == 0
    assert "test set 'wmt99'" in nmt("evaluate", texts / "good", "-t", "wmt99", "-l", "en-de")[2]


def test_scores_are_printed_as_markdown_or_latex(texts: Path, nmt: Nmt) -> None:
    plain = ("evaluate", "--ref", texts / "ref", texts / "good", "--confidence", "--resamples", 40)
    _, markdown, _ = nmt(*plain, "--format", "markdown")
    _, latex, _ = nmt(*plain, "--format", "latex")
    assert markdown.splitlines()[1] == "|---|---:|---:|---:|"
    assert "- bleu: `BLEU|nrefs:1|bs:40|seed:12345|case:mixed" in markdown
    assert r"\begin{tabular}{lrrr}" in latex
    assert r"$\pm$" in latex
    assert "95%" not in latex.replace(r"95 \%", "")


# --- COMET ------------------------------------------------------------------------------------------------------------

FAKE_COMET = f"""#!{sys.executable}
import sys
words = sys.argv[1:]
files = words[words.index("-t") + 1 : words.index("-r")]
count = len(open(words[words.index("-s") + 1], encoding="utf-8", newline="").read().split("\\n")) - 1
assert words[-2:] == ["--quiet", "--only_system"], words
print("Seed set to 1")
for number, file in enumerate(files):
    lines = open(file, encoding="utf-8").readlines()
    assert len(lines) == count, (len(lines), count)
    print(f"{{file}}\\tscore: {{0.8765 - number / 10:.4f}}")
"""


@pytest.fixture
def comet(tmp_path: Path) -> Path:
    (tmp_path / "comet-score").write_text(FAKE_COMET)
    (tmp_path / "comet-score").chmod(0o755)
    return tmp_path / "comet-score"


def test_comet_runs_as_an_external_program(texts: Path, comet: Path, nmt: Nmt) -> None:
    command = f"{comet} --model Some/model"
    scored = ("evaluate", "--ref", texts / "ref", texts / "good", texts / "poor", "--metrics", "bleu")
    status, out, _ = nmt(*scored, "--src", texts / "src", "--comet", command, "--json")
    assert status == 0
    good, poor = json.loads(out)["systems"].values()
    assert [scores[1]["value"] for scores in (good, poor)] == [0.8765, 0.7765]
    assert good[1]["signature"] == "COMET|nrefs:1|model:Some/model|version:unknown"
    _, table, _ = nmt(*scored, "--src", texts / "src", "--comet", comet)
    assert table.splitlines()[0].split() == ["system", "bleu", "comet"]
    assert table.splitlines()[2].split()[-1] == "0.7765"


@pytest.mark.parametrize(
    ("command", "program", "expected"),
    [
        ("COMET", "", "comet-score in its own environment"),
        ("COMET", "#!/bin/sh\necho broken >&2; exit 3\n", "exit status 3 (broken)"),
        ("COMET", "#!/bin/sh\necho hello\n", "printed no score"),
        ("'comet", "", "has no closing quote"),
    ],
)
def test_comet_that_fails_is_an_error(
    texts: Path, comet: Path, nmt: Nmt, command: str, program: str, expected: str
) -> None:
    if program:
        comet.write_text(program)
    else:
        comet.unlink()
    words = ("--src", texts / "src", "--comet", command.replace("COMET", str(comet)))
    status, out, err = nmt("evaluate", "--ref", texts / "ref", texts / "good", *words)
    assert (status, out) == (1, "")
    assert expected in err.splitlines()[-1]
    assert "Traceback" not in err


# --- Wrong input: one line each ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_invalid_input_is_one_line(texts: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "short").write_text("a\nb\n")
    (tmp_path / "empty").write_text("")
    (tmp_path / "latin").write_bytes("ä\n".encode("latin-1"))
    ref = ["--ref", texts / "ref"]
    good = texts / "good"
    wrong_files: list[tuple[list[object], str]] = [
        ([*ref, tmp_path / "short"], "short has 2; they must match"),
        ([*ref, tmp_path / "empty"], "empty is empty"),
        ([*ref, "--ref", tmp_path / "short", good], "short has 2; they must match"),
        ([*ref, "--src", tmp_path / "short", good], "short has 2; they must match"),
        ([*ref, *ref, good], "ref is given twice; references must be different files"),
        ([*ref, good, "--train-tgt", tmp_path / "empty"], "no words in"),
        ([*ref, tmp_path / "missing"], "cannot read"),
        ([*ref, tmp_path / "latin"], "and --invalid-utf8 of nmt translate can replace invalid bytes"),
        (["--ref", tmp_path / "missing", good], "cannot read"),
        ([*ref, texts / "ref"], "is both a translation and the reference"),
        ([*ref, good, good], "is given twice"),
    ]
    wrong_options: list[tuple[list[object], str]] = [
        ([*ref, good, "--metrics", "blue"], "did you mean 'bleu'?"),
        ([*ref, good, "--metrics", "bleu,chrF2++"], "did you mean 'chrf++'?"),
        ([*ref, good, "--metrics", ","], "--metrics is empty"),
        ([*ref, good, "--tokenize", "13b"], "did you mean '13a'?"),
        ([*ref, good, "--metrics", "bleu-compound-split"], "use --lang"),
        ([*ref, good, "--by-length"], "use --src FILE"),
        ([*ref, good, "--differences", 3], "got 1; give two files"),
        ([good], "give either --ref FILE or --test-set NAME"),
        (["--test-set", "wmt14/full", good], "use --lang-pair"),
        ([*ref, good, "--comet", "comet-score"], "use --src FILE"),
    ]
    for status, cases in ((1, wrong_files), (2, wrong_options)):
        for arguments, expected in cases:
            found, out, err = nmt("evaluate", *arguments)
            assert (found, out) == (status, ""), arguments
            assert expected in one_line(err)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--lowercase", "--metrics", "chrf,ter"], "--lowercase has no effect on chrf, ter"),
        (["--lowercase", "--metrics", "bleu-tokenized", "--lang", "de"], "--lowercase has no effect on bleu-tokenized"),
        (["--chrf-lowercase", "--metrics", "bleu"], "--chrf-lowercase has no effect on bleu"),
        (["--tokenize", "intl", "--metrics", "chrf"], "--tokenize has no effect on chrf"),
        (["--tokenize", "intl", "--metrics", "ter", "--differences", 1], "--tokenize has no effect on ter"),
        (["--resamples", 1000], "--resamples has no effect without --confidence"),
        (["--lang-pair", "en-de"], "--lang-pair has no effect without --test-set"),
        (["--lang", "German"], "--lang is 'German'; it must be an ISO 639 code"),
    ],
)
def test_option_without_effect_is_an_error(texts: Path, nmt: Nmt, options: list[object], expected: str) -> None:
    systems = ["--ref", texts / "ref", texts / "good", texts / "fair"]
    commands = ["evaluate"] if {"--resamples", "--differences"} & set(options) else ["evaluate", "compare"]
    for command in commands:
        status, out, err = nmt(command, *systems, *options)
        assert (status, out) == (2, "")
        assert expected in one_line(err)
