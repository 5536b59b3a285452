"""Likely mistakes in prepared text are named."""

from pathlib import Path

import pytest

from nmt.data.prepare import prepare
from tests.data.dirty_corpus import recipe_for, sentence_pairs, write_corpus


def test_warning_for_empty_validation_sentences(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_corpus(folder / "text", sentence_pairs(200), [*sentence_pairs(20), ("a cat", ""), ("", "")])
    prepare(recipe_for(folder))
    (warning,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("warning"))
    assert warning == (
        "warning: 1 of 22 lines of the target of data.valid is empty (first: line 21); "
        "they make the loss and BLEU wrong; correct them"
    )


def test_warning_for_columns_in_the_validation_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_corpus(folder / "text", sentence_pairs(200), [(src, f"0.5\t{tgt}") for src, tgt in sentence_pairs(20)])
    prepare(recipe_for(folder))
    assert "warning: all lines of the target of data.valid have tabs" in capsys.readouterr().err


def test_warning_for_a_header_that_counts_as_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_corpus(folder / "text", [("source", "target"), *sentence_pairs(200)], [("src", "tgt"), *sentence_pairs(20)])
    prepare(recipe_for(folder))
    errors = capsys.readouterr().err
    assert "warning: the source of data.train.0, lines 1 to 201, begins with 'source', which looks like" in errors
    assert "warning: the target of data.valid begins with 'tgt', which looks like a column name" in errors


def test_language_codes_of_both_sides_are_a_header(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_corpus(folder / "text", [("en", "de"), *sentence_pairs(200)], [("en", "en"), *sentence_pairs(20)])
    prepare(recipe_for(folder))
    errors = capsys.readouterr().err
    assert "warning: the source of data.train.0, lines 1 to 201, begins with 'en', which looks like" in errors
    assert "warning: the target of data.train.0, lines 1 to 201, begins with 'de', which looks like" in errors
    assert "data.valid begins" not in errors


def test_header_words_of_both_sides_are_a_header(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs, valid = [("sentence", "Translation"), *sentence_pairs(200)], [("text", "Text"), *sentence_pairs(20)]
    write_corpus(folder / "text", pairs, valid)
    prepare(recipe_for(folder))
    errors = capsys.readouterr().err
    assert "warning: the source of data.train.0, lines 1 to 201, begins with 'sentence', which looks like" in errors
    assert "data.valid begins" not in errors


def test_warning_for_validation_text_with_equal_sides(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_corpus(folder / "text", sentence_pairs(200), [(src, src) for src, _ in sentence_pairs(20)])
    prepare(recipe_for(folder))
    warning = "warning: the target of data.valid is identical to the source; is it the right file?\n"
    assert warning in capsys.readouterr().err


@pytest.mark.parametrize("form", ["NFC", "none"])
def test_warning_for_validation_references_in_another_unicode_form(
    form: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Validation BLEU compares them with translations; the loss normalizes them."""
    valid = [(src, f"{tgt} u\u0308ber") for src, tgt in sentence_pairs(20)]
    write_corpus(folder / "text", sentence_pairs(200), valid)
    options = ("tokenizer.vocab_size=300", "train.validate_every=10", f"data.unicode_form={form}")
    prepare(recipe_for(folder, "loss", *options))
    assert "not in NFC" not in capsys.readouterr().err
    prepare(recipe_for(folder, "bleu", *options, "train.validate_bleu_every=10"))
    warning = "warning: the target of data.valid is not in NFC, the form of translations"
    assert (warning in capsys.readouterr().err) == (form == "NFC")


def test_test_sets_without_a_tag_that_all_corpora_have_are_a_warning(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_corpus(folder / "text", sentence_pairs(200), sentence_pairs(20))
    tagged = "data.train=[{kind='text',src='train.en',tgt='train.de',tag='<a>'}]"
    test = "data.test={t={kind='text',src='valid.en',tgt='valid.de'}}"
    valid = "data.valid=[{kind='text',src='valid.en',tgt='valid.de',tag='<a>'}]"
    for name, options, sets in (
        ("untagged", (test,), ""),
        ("no test set", (tagged,), "data.valid.0 has none; set one"),
        ("tag", (tagged, test, "decode.tag=<a>"), "data.valid.0 has none; set one"),
        ("tags", (tagged, valid, test, "decode.tag=<a>"), ""),
        ("no test tag", (tagged, valid, test), "data.test.t has none; set one"),
        ("no tag", (tagged, test), "data.valid.0, data.test.t have none; set one for each"),
    ):
        prepare(recipe_for(folder, name, *options))
        warning = f"warning: all corpora of data.train have a tag, but {sets}\n"
        assert capsys.readouterr().err.count("have a tag") == bool(sets), name
        if sets:
            prepare(recipe_for(folder, name, *options))
            assert warning in capsys.readouterr().err


@pytest.mark.parametrize(
    ("form", "warning"),
    [
        ("{}\t0.5", "all lines of the source of data.train.0, lines 1 to 200, have tabs"),
        ('<seg id="1">{}</seg>', "the source of data.train.0, lines 1 to 200, has tags or entities such as "),
        ("{} &quot;", "tags or entities such as &quot; in 200 of 200 lines; they count as text; remove"),
        ("\u2581{}", "has subword marks such as \u2581 in 200 of 200 lines; it must be plain text; decode it"),
        ("a@@ {}", "has subword marks such as a@@ in 200 of 200 lines; it must be plain text; decode it"),
        ("{} <de> a < b & c @ @@", ""),
    ],
)
def test_warning_for_columns_and_markup_in_the_training_text(
    form: str, warning: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_corpus(folder / "text", [(form.format(s), t) for s, t in sentence_pairs(200)], sentence_pairs(20))
    prepare(recipe_for(folder, "run", "data.max_tokens=200", "model.max_positions=201", "tokenizer.vocab_size=300"))
    shown = capsys.readouterr().err
    assert warning in shown and shown.count("warning") == bool(warning), shown


def test_warning_for_a_language_of_unknown_script(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(recipe_for(folder, "run", "src_lang=sr"))
    assert (
        "warning: src_lang is 'sr', which has no known script, so data.drop_wrong_script does not filter that side; "
        "correct the code if it is wrong"
    ) in capsys.readouterr().err.splitlines()
    prepare(recipe_for(folder, "run", "src_lang=sr", "data.drop_wrong_script=false"))
    prepare(recipe_for(folder))
    assert "known script" not in capsys.readouterr().err
