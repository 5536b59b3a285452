"""Warnings and hints of `nmt evaluate` about texts."""

import unicodedata
from pathlib import Path
from typing import Literal

import pytest

from tests.calling import Nmt, one_line


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
    (tmp_path / "train").write_text("Ein\n")
    by_frequency = ("--metrics", "ter", "--train-tgt", tmp_path / "train")
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


@pytest.mark.slow
def test_a_language_without_tokenizer_rules_gives_a_warning(texts: Path, nmt: Nmt) -> None:
    arguments = ["evaluate", "--ref", texts / "ref", texts / "good", "--metrics", "bleu-tokenized", "--lang"]
    assert "the tokenizers have no rules for da; generic rules are used" in nmt(*arguments, "da")[2]
    assert "have no rules for" not in nmt(*arguments, "da", "--metrics", "chrf")[2]
    assert "have no rules for" not in nmt(*arguments, "de")[2]
    assert "have no rules for" not in nmt(*arguments, "zho")[2]


def test_a_translation_equal_to_the_reference_gives_a_warning(texts: Path, tmp_path: Path, nmt: Nmt) -> None:
    (tmp_path / "copy").write_bytes((texts / "ref").read_bytes())
    status, out, err = nmt("evaluate", "--ref", texts / "ref", tmp_path / "copy", texts / "good", "--metrics", "bleu")
    assert status == 0
    assert out.splitlines()[1].split()[-1] == "100.00"
    (line,) = err.splitlines()
    assert line.startswith("warning: ")
    assert "copy is identical to" in line
