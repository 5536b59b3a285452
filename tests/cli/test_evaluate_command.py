"""`nmt evaluate`, compared with the sacreBLEU command, a reimplementation of multi-bleu, and a fake COMET."""

import json
import math
import os
import re
import subprocess
import sys
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any, Literal

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
    (scores,) = json.loads(out).values()
    assert rounded(scores) == expected


@pytest.mark.slow
def test_several_references_and_systems_equal_the_sacrebleu_command(texts: Path, nmt: Nmt) -> None:
    refs = ["--ref", texts / "ref", "--ref", texts / "ref2"]
    _, out, _ = nmt("evaluate", *refs, *(texts / name for name in SYSTEMS), "--json")
    found = json.loads(out)
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
    assert rounded(next(iter(json.loads(out).values()))) == expected
    assert "seed:77" in next(iter(expected))
    monkeypatch.setenv("SACREBLEU_SEED", "many")
    status, _, err = nmt("evaluate", "--ref", texts / "ref", texts / "good", "--confidence")
    assert status == 1
    assert "SACREBLEU_SEED must be an integer" in one_line(err)


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
    for path, (plain, tokenized, split) in zip(systems, json.loads(out).values(), strict=True):
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
    ((plain, split),) = json.loads(out).values()
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


@pytest.mark.slow
def test_empty_translations_give_a_warning(texts: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "nothing").write_text(" \n" * 66)
    status, out, err = nmt("evaluate", tmp_path / "nothing", "--ref", texts / "ref", "-m", "bleu")
    remark = "is it the right file, and complete?"
    assert (status, err) == (
        0,
        f"warning: 66 of 66 lines of {tmp_path / 'nothing'} are empty (first: line 1); {remark}\n",
    )
    assert "  0.00\n" in out
    (tmp_path / "some").write_text("Hund\n\t\n" * 33)
    for command in (("evaluate",), ("compare", texts / "good")):
        err = nmt(*command, tmp_path / "some", "--ref", texts / "ref", "-m", "bleu")[2]
        assert err == f"warning: 33 of 66 lines of {tmp_path / 'some'} are empty (first: line 2); {remark}\n"


def test_empty_references_give_a_warning(tmp_path: Path, nmt: Nmt) -> None:
    for name, text in (("src", "a\n\nc\n"), ("ref", "A\n\n\n"), ("out", "A\n\nB\n")):
        (tmp_path / name).write_text(text)
    given = ("evaluate", tmp_path / "out", "--ref", tmp_path / "ref", "-m", "bleu")
    remark = "any translation of such a line counts as wrong; is it the right file?"
    assert nmt(*given)[2] == f"warning: 2 of 3 lines of {tmp_path / 'ref'} are empty (first: line 2); {remark}\n"
    err = nmt(*given, "--src", tmp_path / "src")[2]  # a line is empty on both sides
    assert err == f"warning: 1 of 3 lines of {tmp_path / 'ref'} is empty (first: line 3); {remark}\n"
    err = nmt(*given, "--ref", tmp_path / "src")[2]
    assert "(first: line 2); translations count as wrong only if all references are empty; is it the right file?" in err


def test_empty_sources_give_a_warning(tmp_path: Path, nmt: Nmt) -> None:
    for name, text in (("src", "a\n\n\n"), ("ref", "A\nB\n\n"), ("out", "A\nB\n\n")):
        (tmp_path / name).write_text(text)
    err = nmt("evaluate", tmp_path / "out", "--ref", tmp_path / "ref", "--src", tmp_path / "src", "--by-length")[2]
    assert f"1 of 3 lines of {tmp_path / 'src'} is empty (first: line 2); is it the right file?" in err


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (
            "-0.2738\tEin Hund.\n",
            "all lines of OUT have tabs; columns such as scores count as text; extract the text first (cut -f)",
        ),
        (
            "0 ||| Ein Hund. ||| -1.0 ||| -0.5\n",
            "OUT looks like a Moses n-best list, whose indices and scores count as text; extract the text first",
        ),
        (
            '{"a": "Ein Hund."}\n',
            "all lines of OUT are JSON, which counts as text; extract the text first (jq -r .translation)",
        ),
    ],
)
def test_outputs_that_are_not_plain_text_give_a_warning(tmp_path: Path, nmt: Nmt, row: str, expected: str) -> None:
    ref, out = tmp_path / "ref", tmp_path / "out"
    ref.write_text("Ein Hund.\nEine Katze.\n")
    out.write_text(row * 2)
    assert nmt("evaluate", "--ref", ref, out, "-m", "chrf")[::2] == (
        0,
        f"warning: {expected.replace('OUT', str(out))}\n",
    )
    out.write_text(row + "Eine Katze.\n")
    assert nmt("evaluate", "--ref", ref, out, "-m", "chrf")[::2] == (0, "")


def test_sources_that_are_not_plain_text_give_a_warning(tmp_path: Path, nmt: Nmt) -> None:
    for name, text in (("src", "1\ta dog\n2\ta cat\n"), ("ref", "A\nB\n"), ("out", "A\nB\n")):
        (tmp_path / name).write_text(text)
    err = nmt("evaluate", tmp_path / "out", "--ref", tmp_path / "ref", "--src", tmp_path / "src", "--by-length")[2]
    assert f"all lines of {tmp_path / 'src'} have tabs" in err


def test_test_sets_that_are_not_plain_text_give_a_warning(tmp_path: Path, nmt: Nmt) -> None:
    ref, out = tmp_path / "ref.sgm", tmp_path / "out"
    ref.write_text('<refset setid="a" trglang="de">\n<seg id="1">Ein Hund.</seg>\n</refset>\n')
    out.write_text("<a>\nEin Hund.\n</a>\n")
    warning = f"warning: {ref} looks like an SGM or XML test set, whose markup counts as text; extract the text first\n"
    assert nmt("evaluate", "--ref", ref, out, "-m", "chrf")[::2] == (0, warning)


# --- Breakdowns -------------------------------------------------------------------------------------------------------


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
    scores = json.loads(nmt(*plain, "--json")[1])
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


# --- Case -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def lowered(texts: Path, tmp_path: Path) -> Path:
    """The references in lower case, like the output of a system that was trained on lowercased text."""
    path = tmp_path / "lowered"
    path.write_text((texts / "ref").read_text(encoding="utf-8").lower(), encoding="utf-8")
    return path


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


@pytest.mark.slow
def test_lowercased_text_gives_a_hint(texts: Path, lowered: Path, tmp_path: Path, nmt: Nmt) -> None:
    plain = ("evaluate", "--ref", texts / "ref", lowered)
    status, _, err = nmt(*plain)
    assert status == 0
    (line,) = err.splitlines()
    assert line.startswith(f"hint: {lowered} is lowercased")
    assert "bleu, chrf" in line and "--lowercase" in line and "--chrf-lowercase" in line
    assert (
        nmt("compare", texts / "good", lowered, "--ref", texts / "ref", "--trials", 0, "--resamples", 2)[2]
        == line + "\n"
    )
    assert nmt(*plain, "--lowercase", "--chrf-lowercase")[2] == ""
    assert "chrf" in nmt(*plain, "--lowercase")[2]
    assert nmt(*plain, "--metrics", "ter")[2] == ""
    breakdowns = ("--metrics", "ter", "--src", texts / "src", "--by-length", texts / "good", "--differences", 1)
    assert "which lowers exact matches, --differences; to ignore case" in nmt(*plain, *breakdowns)[2]
    assert nmt(*plain, *breakdowns, "--lowercase")[2] == ""
    (tmp_path / "counts").write_text("Ein\t3\n")
    by_frequency = ("--metrics", "ter", "--word-counts", tmp_path / "counts")
    assert "which lowers F-measure of words; to ignore case" in nmt(*plain, *by_frequency)[2]
    assert nmt(*plain, *by_frequency, "--lowercase")[2] == ""
    (tmp_path / "also").write_text(lowered.read_text())
    (tmp_path / "nearly").write_text(lowered.read_text() * 2 + "Ein Name\n")  # 133 lines
    (tmp_path / "long").write_text((texts / "ref").read_text() * 2 + "Ein Name\n")
    assert "nearly is lowercased and the" in nmt("evaluate", "--ref", tmp_path / "long", tmp_path / "nearly")[2]
    assert "reference is lowercased" in nmt("evaluate", "--ref", tmp_path / "nearly", tmp_path / "long")[2]
    assert "hint: " not in nmt("evaluate", "--ref", tmp_path / "nearly", tmp_path / "nearly")[2]
    _, _, err = nmt("evaluate", "--ref", lowered, texts / "good", tmp_path / "also")
    assert err.count("hint: ") == err.count(f"hint: the reference is lowercased and {texts / 'good'} is not") == 1
    (tmp_path / "none").write_text("我\n" * 66)
    (tmp_path / "repeated").write_text("aaaa aaaa\n" * 66)  # by a model that has hardly learned
    assert "hint: " not in nmt("evaluate", "--ref", texts / "ref", tmp_path / "repeated")[2]
    assert "hint: " not in nmt("evaluate", "--ref", tmp_path / "also", lowered)[2]
    assert "hint: " not in nmt("evaluate", "--ref", texts / "ref", tmp_path / "none")[2]


@pytest.mark.parametrize(("first", "second"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_another_unicode_form_gives_a_hint(
    tmp_path: Path, nmt: Nmt, first: Literal["NFC", "NFD"], second: Literal["NFC", "NFD"]
) -> None:
    def write(name: str, form: Literal["NFC", "NFD"], lines: list[str]) -> Path:
        path = tmp_path / name
        path.write_text(unicodedata.normalize(form, "".join(f"{line}\n" for line in lines)))
        return path

    lines = ["Grüße", "ヒ\u30d1ン", "a", "b"] * 10
    ref, hypothesis, other = (
        write("ref", second, lines),
        write("hyp", first, lines),
        write("other", second, ["Bär"] * 40),
    )
    (hint,) = nmt("evaluate", "--ref", ref, hypothesis, other)[2].splitlines()
    assert hint == (
        f"hint: in 20 of 40 lines, {hypothesis} and the reference have the same letters in different Unicode forms, "
        "which metrics count as errors; normalize the files to NFC"
    )
    messages = nmt("compare", "--ref", ref, hypothesis, other, "--trials", 0, "--resamples", 2)[2].splitlines()
    assert messages == [hint]


@pytest.mark.slow
def test_text_without_spaces_gives_a_hint(tmp_path: Path, nmt: Nmt) -> None:
    for name, line in (
        ("ref", "我喜欢读书。今天天气很好。"),
        ("hyp", "我喜欢读书。今天天气不错。"),
        ("spaced", "我 喜欢 读书 。"),
    ):
        (tmp_path / name).write_text(f"{line}\n" * 9 + "NATO\n")
    command = ("evaluate", "--ref", tmp_path / "ref", tmp_path / "hyp")
    hint = "hint: the reference has no spaces between words, so whole clauses are words for "
    ter = "for ter, use --lang zh\n"
    bleu = "for bleu, use --tokenize char or --lang zh"
    assert nmt(*command)[2] == f"{hint}bleu and ter; {bleu}, and {ter}"
    assert nmt(*command, "--metrics", "chrf,bleu")[2] == f"{hint}bleu; {bleu}\n"
    assert nmt(*command, "--lang", "zh")[2] == ""  # splits characters for both
    assert nmt(*command, "--tokenize", "char")[2] == f"{hint}ter; {ter}"
    assert nmt(*command, "--tokenize", "char", "--metrics", "bleu,chrf")[2] == ""
    assert nmt(*command, "--metrics", "chrf")[2] == ""
    assert nmt(*command, "--metrics", "chrf", "--src", tmp_path / "spaced", "--by-length")[2] == ""
    by_length = ("--metrics", "chrf", "--src", tmp_path / "also", "--by-length")
    (tmp_path / "also").write_text("今天天气很好\n" * 10)
    assert nmt(*command, *by_length)[2].startswith(
        "hint: the source has no spaces between words, so --by-length counts"
    )
    older = nmt(*command, "--metrics", "bleu-tokenized,bleu-tokenized-lc", "--lang", "zh")[2]
    assert older == f"{hint}bleu-tokenized and bleu-tokenized-lc; compute bleu instead\n"
    assert nmt("evaluate", "--ref", tmp_path / "spaced", tmp_path / "hyp")[2] == ""
    (tmp_path / "thai").write_text("วันนี้อากาศดีมาก\n" * 10)
    thai = ("evaluate", "--ref", tmp_path / "thai", tmp_path / "hyp", "--metrics", "bleu")
    char = f"{hint}bleu; for bleu, use --tokenize char"
    assert nmt(*thai, "--lang", "zh")[2] == nmt(*thai, "--tokenize", "intl")[2] == f"{char}\n"
    assert nmt(*thai, "--tokenize", "char")[2] == ""
    for text, advice in (("今日は天気がいいです。", " or --lang ja"), ("ཁོང་གིས་དཔེ་ཆ་དེ་ཀློག་པ་རེད།", "")):
        (tmp_path / "other").write_text(f"{text}\n" * 10)
        other = nmt("evaluate", "--ref", tmp_path / "other", tmp_path / "hyp")[2]
        assert other == f"{hint}bleu and ter; for bleu, use --tokenize char{advice}, and leave out ter\n"


def test_references_with_characters_that_translations_cannot_have_give_a_hint(tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "ref").write_text("a\u200f dog\n" * 10)
    (tmp_path / "hyp").write_text("a dog\n" * 10)
    hint = "hint: the reference has invisible characters such as U+200F in 10 of 10 lines, and "
    assert nmt("evaluate", "--ref", tmp_path / "ref", tmp_path / "hyp")[2].startswith(hint)
    (tmp_path / "same").write_text("a\u200f dog.\n" * 10)
    assert nmt("evaluate", "--ref", tmp_path / "ref", tmp_path / "same")[2] == ""


def test_a_metric_among_the_files_is_named(tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "ref").write_text("a dog\n")
    status, _, err = nmt("evaluate", "--ref", tmp_path / "ref", "-m", "bleu", "chrf", tmp_path / "hyp")
    expected = "there is no file chrf; chrf is a metric; separate metrics by commas: -m bleu,chrf"
    assert (status, one_line(err)) == (1, expected)


def test_training_text_in_another_unicode_form_gives_a_hint(tmp_path: Path, nmt: Nmt) -> None:
    for name, form in (("ref", "NFC"), ("nfc", "NFC"), ("nfd", "NFD")):
        (tmp_path / name).write_text(unicodedata.normalize(form, "Die Grüße über Lübeck\n" * 3))  # type: ignore[arg-type]
    (tmp_path / "hyp").write_text("Die Stadt\n" * 3)
    command = ("evaluate", "--ref", tmp_path / "ref", tmp_path / "hyp", "--metrics", "bleu", "--train-tgt")
    assert nmt(*command, tmp_path / "nfc")[2] == ""
    assert nmt(*command, tmp_path / "nfd")[2] == (
        "hint: the training text has 9 words of the reference in another Unicode form, counted as unseen; "
        "normalize the files to NFC\n"
    )


def test_training_text_that_is_not_plain_text_gives_a_warning(tmp_path: Path, nmt: Nmt) -> None:
    for name in ("ref", "plain.de"):
        (tmp_path / name).write_text("Die Stadt\nDer Hund\n")
    (tmp_path / "hyp").write_text("Die Stadt\nEin Hund\n")
    (tmp_path / "mono.jsonl").write_text('{"text": "Die Stadt"}\n{"text": "Der Hund"}\n')
    (tmp_path / "mono.csv").write_text("1,Die Stadt\n2,Der Hund\n")
    command = ("evaluate", "--ref", tmp_path / "ref", tmp_path / "hyp", "--metrics", "bleu", "--train-tgt")
    assert nmt(*command, tmp_path / "plain.de")[2] == ""
    assert "mono.jsonl, lines 1 to 2, are JSON, which counts as text" in nmt(*command, tmp_path / "mono.jsonl")[2]
    assert "mono.csv is read as plain text" in nmt(*command, tmp_path / "mono.csv")[2]


def test_word_counts_are_equivalent_to_the_text(texts: Path, tmp_path: Path, nmt: Nmt) -> None:
    words = Counter(word for line in (texts / "ref2").read_text().splitlines() for word in line.split())
    (tmp_path / "counts").write_text("".join(f"{word}\t{count}\n" for word, count in words.items()))
    plain = ("evaluate", "--ref", texts / "ref", texts / "good", "--metrics", "bleu", "--tokenize", "none")
    _, by_text, _ = nmt(*plain, "--train-tgt", texts / "ref2")
    _, by_counts, _ = nmt(*plain, "--word-counts", tmp_path / "counts")
    assert by_text == by_counts
    assert "F-measure of words" in by_text
    status, _, err = nmt(*plain, *["--train-tgt", texts / "ref2"] * 2)
    assert (status, "ref2 is given twice; its words would count twice" in one_line(err)) == (1, True)
    lowercased = Counter[str]()
    for word, count in words.items():
        lowercased[word.lower()] += count
    assert any(count > words[word] for word, count in lowercased.items())
    (tmp_path / "lower").write_text("".join(f"{word} {count}\n" for word, count in lowercased.items()))
    _, by_text, _ = nmt(*plain, "--train-tgt", texts / "ref2", "--lowercase")
    for counts in ("counts", "lower"):
        assert nmt(*plain, "--word-counts", tmp_path / counts, "--lowercase")[1:] == (by_text, "")
    assert "hint: the training text is lowercased" in nmt(*plain, "--word-counts", tmp_path / "lower")[2]
    (tmp_path / "counts").write_text("Haus 3\nHaus\n")
    status, _, err = nmt(*plain, "--word-counts", tmp_path / "counts")
    assert (status, "line 2: invalid word count 'Haus'" in one_line(err)) == (1, True)


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
    good, poor = json.loads(out).values()
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
        ([*ref, good, "--word-counts", tmp_path / "empty"], "no words in"),
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


@pytest.mark.slow
def test_a_language_without_tokenizer_rules_gives_a_warning(texts: Path, nmt: Nmt) -> None:
    arguments = ["evaluate", "--ref", texts / "ref", texts / "good", "--metrics", "bleu-tokenized", "--lang"]
    assert "the tokenizers have no rules for da; generic rules are used" in nmt(*arguments, "da")[2]
    assert "have no rules for" not in nmt(*arguments, "da", "--metrics", "chrf")[2]
    assert "have no rules for" not in nmt(*arguments, "de")[2]
    assert "have no rules for" not in nmt(*arguments, "zho")[2]


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


def test_a_translation_equal_to_the_reference_gives_a_warning(texts: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "copy").write_bytes((texts / "ref").read_bytes())
    status, out, err = nmt("evaluate", "--ref", texts / "ref", tmp_path / "copy", texts / "good", "--metrics", "bleu")
    assert status == 0
    assert out.splitlines()[1].split()[-1] == "100.00"
    (line,) = err.splitlines()
    assert line.startswith("warning: ")
    assert "copy is identical to" in line
