import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nmt.data import prepare as preparation
from nmt.data.fingerprint import describe_change, outdated_splits, text_identity, unpinned_datasets
from nmt.data.frames import Frame
from nmt.data.prepare import load_prepared, prepare
from nmt.data.store import PairStore
from nmt.errors import UserError
from nmt.processes.run_lock import LOCK_FILE, run_lock
from nmt.recipe import Recipe, dump_recipe, parse_recipe
from nmt.text.clean import normalize
from nmt.text.tokenizer import train_tokenizers
from tests.data.directories import contents, modification_times, one_line_error
from tests.processes.sessions import assert_session_ends

ROOT = Path(__file__).parents[2]
RECIPE = """
name = "test"
src_lang = "en"
tgt_lang = "de"
[data]
train = [{ kind = "text", src = "train.en", tgt = "train.de" }]
valid = [{ kind = "text", src = "valid.en", tgt = "valid.de" }]
max_tokens = 40
workers = 1
[tokenizer]
vocab_size = 340
[model]
max_positions = 41
"""
DIRTY = [
    ("", "leer"),
    ("damaged \x00 text", "kaputter Text"),
    ("x" * 641, "zu lang"),
    (" ".join("abcdefghijkl"), "a"),
    ("this stayed as it was", "this stayed as it was"),
    ("хорошо", "gut"),
    ("twice", "doppelt"),
    ("twice\r", "doppelt\u200b"),
    ("twice", "zweimal"),
    ("\u2581", "nur ein Leerzeichen"),
    ("ab " * 60, "cd " * 60),
]
EXPECTED_DROPS = {
    "empty": 2,
    "control characters": 1,
    "too long": 1,
    "length ratio": 1,
    "identical sides": 1,
    "wrong script": 1,
    "duplicate": 1,
    "too many tokens": 1,
}
# 13 characters of 3 bytes and a space: 40 tokens, the limit without EOS. Then 41.
LONGEST, TOO_LONG = "漢" * 13, "漢" * 13 + "Q"
HOSTILE = [("a\u2028b", "c\u0085d"), ("\ufeffe\r", "f\x1cg"), ("", ""), (TOO_LONG, "x"), ("h\x00", ""), (LONGEST, "y")]


def sentence_pairs(count: int) -> list[tuple[str, str]]:
    numbers = random.Random(1).sample(range(10 * count), count)
    return [(f"the cat sees {n} mice", f"die Katze sieht {n} Mäuse") for n in numbers]


def write_corpus(folder: Path, train: list[tuple[str, str]], valid: list[tuple[str, str]]) -> None:
    folder.mkdir(exist_ok=True)
    for split, pairs in (("train", train), ("valid", valid)):
        for side, language in enumerate(("en", "de")):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"{split}.{language}").write_bytes(text.encode())


def recipe_for(folder: Path, name: str = "run", *overrides: str) -> Recipe:
    paths = (f"run_dir='{folder / name}'", f"data.root='{folder / 'text'}'")
    by_option = {override.partition("=")[0]: override for override in (*paths, *overrides)}  # the last one counts
    return parse_recipe(RECIPE, list(by_option.values()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_corpus(tmp_path / "text", [*sentence_pairs(200), *DIRTY], [*sentence_pairs(20), *HOSTILE])
    return tmp_path


@pytest.mark.parametrize(("language", "forms"), [("de", 1), ("ja", 2)])
def test_phrases_are_those_of_the_target_language(folder: Path, language: str, forms: int) -> None:
    """In languages without spaces, a phrase may also occur within a word; validation BLEU needs both forms."""
    options = (f"tgt_lang='{language}'", "data.drop_wrong_script=false")
    prepared = prepare(recipe_for(folder, "run", *options))
    assert len(prepared.tokenizers.tgt.encode_phrase("Katze")) == forms


def test_each_bracket_of_a_tree_is_one_token(tmp_path: Path) -> None:
    trees = "(ROOT (S (NP (DT The) (NN dog)) (VP (VBZ sleeps)) (. .)))\n(ROOT (NN dog))\n"
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "trees").write_text(trees * 5)
    corpora = (f"data.{split}=[{{kind='trees',path='trees'}}]" for split in ("train", "valid"))
    options = ("tgt_lang='zxx'", "data.drop_duplicates=false", "tokenizer.joint=false", "tokenizer.vocab_size=290")
    prepared = prepare(recipe_for(tmp_path, "run", *corpora, *options, "model.tied_embeddings='decoder'"))
    text, tokenizer = "(S (NP XX XX )NP (VP XX )VP . )S", prepared.tokenizers.tgt
    tokens = tokenizer.encode(text)
    assert tokenizer.pieces(tokens) == [f"▁{token}" for token in text.split()]
    assert tokenizer.decode(tokens) == text and tokenizer.vocab_size == 261 + len(set(tokens))
    assert tokenizer.decode(tokenizer.encode("(SQ XX )SQ")) == "(SQ XX )SQ"  # a label that no training tree has


def test_store_has_the_clean_pairs_in_order(folder: Path) -> None:
    prepared = prepare(recipe_for(folder))
    store = PairStore(prepared.directory, "train")
    expected = [*sentence_pairs(200), ("twice", "doppelt"), ("twice", "zweimal")]
    assert len(store) == len(expected)
    for side, tokenizer, number in (
        (store.src, prepared.tokenizers.src, 0),
        (store.tgt, prepared.tokenizers.tgt, 1),
    ):
        for i, pair in enumerate(expected):
            ids = side.gather(np.array([i]))[0]
            assert tokenizer.decode(ids.tolist()) == pair[number]
            assert ids.tolist() == tokenizer.encode(pair[number])


def test_report_has_counts_and_names_of_inputs(folder: Path) -> None:
    report = prepare(recipe_for(folder)).report
    assert report["train"]["pairs_read"] == 211
    assert report["train"]["drops"] == EXPECTED_DROPS
    assert report["train"]["pairs"] == 202 == 211 - sum(EXPECTED_DROPS.values())
    store = PairStore(folder / "run" / "data", "train")
    source = report["train"]["src"]
    assert source["tokens"] == store.src.lengths.sum()
    assert source["words"] == 5 * 200 + 2
    assert source["average_length"] == pytest.approx(store.src.lengths.mean(), abs=1e-4)
    assert source["pieces_per_word"] == pytest.approx(source["tokens"] / source["words"], abs=1e-4)
    text = (folder / "run" / "data" / "prepare.json").read_text()
    assert str(folder) not in text
    assert [entry["name"] for entry in report["inputs"]] == ["train.en", "train.de", "valid.en", "valid.de"]
    assert report["inputs"][0]["bytes"] == (folder / "text" / "train.en").stat().st_size


def test_report_has_all_drop_reasons(folder: Path) -> None:
    write_corpus(folder / "text", sentence_pairs(50), sentence_pairs(5))
    report = prepare(recipe_for(folder)).report
    assert report["train"]["drops"] == dict.fromkeys(EXPECTED_DROPS, 0)


def test_validation_text_is_unmodified(folder: Path) -> None:
    prepared = prepare(recipe_for(folder))
    expected = [*sentence_pairs(20), *HOSTILE]
    valid = prepared.valid_set()
    # A byte order mark is text, except at the start of a file.
    assert list(zip(valid.src, valid.ref, strict=True)) == expected
    assert prepared.report["valid"]["pairs_read"] == 26
    assert prepared.report["valid"]["too_long_for_model"] == 1
    store = PairStore(prepared.directory, "valid")
    assert len(store) == prepared.report["valid"]["pairs"] == 25
    tokenizer = prepared.tokenizers.src
    held = [normalize(src, "NFC") for src, _ in expected if src != TOO_LONG]
    assert [tokenizer.decode(store.src.gather(np.array([i]))[0].tolist()) for i in range(25)] == held
    assert store.src.lengths.max() == 40


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
        ("no test set", (tagged,), "data.valid.0 has none"),
        ("tag", (tagged, test, "decode.tag=<a>"), "data.valid.0 has none"),
        ("tags", (tagged, valid, test, "decode.tag=<a>"), ""),
        ("no test tag", (tagged, valid, test), "data.test.t has none"),
        ("no tag", (tagged, test), "data.valid.0, data.test.t have none"),
    ):
        prepare(recipe_for(folder, name, *options))
        warning = f"warning: all corpora of data.train have a tag, but {sets}; set it\n"
        assert capsys.readouterr().err.count("have a tag") == bool(sets), name
        if sets:
            prepare(recipe_for(folder, name, *options))
            assert warning in capsys.readouterr().err


@pytest.mark.parametrize("options", [(), ("data.train=[{kind='text',src='train.en',tgt='train.de',tag='<to-de>'}]",)])
def test_warning_for_validation_text_with_swapped_sides(
    options: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_corpus(folder / "text", sentence_pairs(200), sentence_pairs(80))
    prepare(recipe_for(folder, "right", *options))
    assert "swapped" not in capsys.readouterr().err
    prepare(recipe_for(folder, "swapped", "data.valid=[{kind='text',src='valid.de',tgt='valid.en'}]", *options))
    warning = "the source of data.valid resembles the target of data.train, and its target resembles the source;"
    assert (warning in capsys.readouterr().err) == (not options)  # tagged corpora may have several directions


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


def test_output_is_independent_of_the_directory(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other_folder = tmp_path_factory.mktemp("other_folder")
    shutil.copytree(folder / "text", other_folder / "text")  # keeps modification times
    first, second = (contents(prepare(recipe_for(root)).directory) for root in (folder, other_folder))
    assert {name for name in first if first[name] != second[name]} == {"stamps.json"}  # which holds paths


@pytest.mark.slow
def test_output_is_independent_of_workers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.data.corpus.PAIRS_PER_CHUNK", 50)
    alone = prepare(recipe_for(folder, "alone"))
    together = prepare(recipe_for(folder, "together", "data.workers=2"))
    assert contents(alone.directory) == contents(together.directory)
    assert alone.report["train"]["pairs"] == 202


def test_up_to_date_text_is_reused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = prepare(recipe_for(folder)).directory
    before = modification_times(directory)
    monkeypatch.setattr("nmt.data.fingerprint.read_blocks", None)  # the input is not read
    again = prepare(recipe_for(folder, "run", "train.max_steps=7", "data.workers=2"))
    assert modification_times(directory) == before
    assert again.tokenizers.src.vocab_size == 340
    assert "up to date" in capsys.readouterr().err


def test_touched_input_is_up_to_date(folder: Path) -> None:
    directory = prepare(recipe_for(folder)).directory
    before = modification_times(directory)
    os.utime(folder / "text" / "train.en", (1, 1))
    prepare(recipe_for(folder))
    after = modification_times(directory)
    assert {name for name in after if after[name] != before[name]} <= {"stamps.json", directory.name}


@pytest.mark.slow
@pytest.mark.parametrize("option", ["data.max_tokens=30", "tokenizer.vocab_size=330", "data.drop_duplicates=false"])
def test_changed_options_invalidate_the_text(option: str, folder: Path) -> None:
    before = contents(prepare(recipe_for(folder)).directory)
    assert contents(prepare(recipe_for(folder, "run", option)).directory) != before
    assert contents(prepare(recipe_for(folder)).directory) == before


def test_changed_input_invalidates_the_text(folder: Path) -> None:
    prepare(recipe_for(folder))
    write_corpus(folder / "text", sentence_pairs(150), sentence_pairs(5))
    assert prepare(recipe_for(folder)).report["train"]["pairs"] == 150


@pytest.mark.slow
def test_changed_grammar_invalidates_the_text(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_for(folder, "run", "data.train=[{kind='toy',pairs=300}]")
    prepare(recipe)
    before = modification_times(recipe.data_directory)
    prepare(recipe)
    assert modification_times(recipe.data_directory) == before
    (folder / "nouns.py").write_text("another grammar", encoding="utf-8")
    monkeypatch.setattr("nmt.data.corpus.source_files", lambda: [folder / "nouns.py"])
    prepare(recipe)
    assert modification_times(recipe.data_directory) != before


def test_deleted_input_is_up_to_date(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = prepare(recipe_for(folder)).directory
    before = modification_times(directory)
    shutil.rmtree(folder / "text")
    prepare(recipe_for(folder))
    assert modification_times(directory) == before
    assert capsys.readouterr().err.count("no longer exists; using the text prepared from it") == 1


def test_text_that_is_outdated_is_not_said_to_be_used(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(recipe_for(folder))
    (folder / "text" / "train.de").unlink()
    (folder / "text" / "train.en").write_text("another text\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"train\.de: No such file"):
        prepare(recipe_for(folder))
    assert "no longer exists" not in capsys.readouterr().err


@pytest.mark.parametrize("change", ["text", "option"])
def test_new_validation_text_does_not_need_the_training_text(folder: Path, change: str) -> None:
    before = prepare(recipe_for(folder)).report
    (folder / "text" / "train.en").unlink()
    options = []
    if change == "text":
        (folder / "text" / "valid.de").write_text("anders\n" * 26, encoding="utf-8")
    else:
        options.append("model.max_positions=60")
    recipe = recipe_for(folder, "run", *options)
    assert outdated_splits(recipe, recipe.data_directory) == {"valid"}
    after = prepare(recipe).report
    assert outdated_splits(recipe, recipe.data_directory) == set()
    assert after["train"] == before["train"]
    assert after["inputs"][:2] == before["inputs"][:2]
    assert (after["inputs"] == before["inputs"]) == (change == "option")


def test_a_mistyped_path_is_detected_despite_a_deleted_input(folder: Path) -> None:
    prepare(recipe_for(folder))
    (folder / "text" / "train.en").unlink()
    recipe = recipe_for(folder, "run", "data.valid=[{kind='text',src='mistyped.en',tgt='mistyped.de'}]")
    assert outdated_splits(recipe, recipe.data_directory) == {"train", "valid"}
    with pytest.raises(UserError, match=r"train\.en: No such file"):
        prepare(recipe)


def test_wrong_path_keeps_the_prepared_text(folder: Path) -> None:
    directory = prepare(recipe_for(folder)).directory
    wrong = recipe_for(folder, "run", f"data.root='{folder / 'mistyped'}'")
    before = contents(directory)
    with pytest.raises(UserError, match=r"mistyped/train\.en"):
        prepare(wrong)
    assert contents(directory) == before
    for damaged in ("[]", ""):  # the path cannot be compared
        (directory / "stamps.json").write_text(damaged)
        with pytest.raises(UserError, match=r"mistyped/train\.en"):
            prepare(wrong)
    (directory / "stamps.json").unlink()
    with pytest.raises(UserError, match=r"mistyped/train\.en"):
        prepare(wrong)
    assert contents(directory) == {name: content for name, content in before.items() if name != "stamps.json"}
    prepare(recipe_for(folder))
    assert contents(directory) == before


def test_a_full_disk_leaves_the_stamps_complete(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = prepare(recipe_for(folder)).directory
    before = contents(directory)
    os.utime(folder / "text" / "train.en", (1, 1))
    replacements: list[str] = []

    def full(path: Path, data: bytes, replaces: Path | None = None) -> None:
        replacements.append(path.name)
        path.write_bytes(data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("nmt.storage.sealed.write_synced", full)
    prepare(recipe_for(folder))
    assert [name for name in replacements if "stamps.json" in name]
    assert contents(directory) == before


def test_stamps_of_early_versions_match_any_path(folder: Path) -> None:
    directory = prepare(recipe_for(folder)).directory
    (directory / "stamps.json").write_text("[[1, 2], [1, 2], [1, 2], [1, 2]]")  # without paths
    before = contents(directory)
    prepare(recipe_for(folder, "run", f"data.root='{folder / 'mistyped'}'"))
    assert contents(directory) == before


@pytest.mark.parametrize("what", ["text", "option"])
def test_changed_validation_text_keeps_the_training_text(
    folder: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = prepare(recipe_for(folder)).directory
    before, identity = contents(directory), text_identity(load_prepared(directory).report, recipe_for(folder))
    recipe = recipe_for(folder, "run", *(["model.max_positions=60"] if what == "option" else []))
    if what == "text":
        write_corpus(folder / "text", [*sentence_pairs(200), *DIRTY], sentence_pairs(7))
    monkeypatch.setattr(preparation, "clean_corpora", None)  # the training text is not read
    report = prepare(recipe).report
    after = contents(directory)
    changed = {name for name in before if after.get(name) != before[name]}
    assert {name.partition(".")[0] for name in changed} - {"stamps"} == {"valid", "prepare"}
    assert report["valid"]["pairs_read"] == (7 if what == "text" else 26)
    assert report["train"] == json.loads(before["prepare.json"])["train"]
    assert text_identity(report, recipe) == identity
    monkeypatch.undo()
    shutil.rmtree(directory)
    assert contents(prepare(recipe).directory) == after


def test_validation_identity_depends_on_the_text_but_not_on_its_path(folder: Path) -> None:
    identity = prepare(recipe_for(folder)).valid_identity()
    moved = "data.valid=[{kind='text', src='other.en', tgt='other.de'}]"
    for side in ("en", "de"):
        shutil.copy(folder / "text" / f"valid.{side}", folder / "text" / f"other.{side}")
    assert prepare(recipe_for(folder, "run", moved)).valid_identity() == identity
    (folder / "text" / "other.de").write_text((folder / "text" / "other.de").read_text().replace("a", "o", 1))
    assert prepare(recipe_for(folder, "run", moved)).valid_identity() != identity


def test_text_identity_depends_on_options_and_input(folder: Path) -> None:
    first = recipe_for(folder)
    identity = text_identity(prepare(first).report, first)
    other = recipe_for(folder, "other", "data.max_tokens=30")
    assert text_identity(prepare(other).report, other) != identity
    write_corpus(folder / "text", sentence_pairs(200), sentence_pairs(5))
    assert text_identity(prepare(first).report, first) != identity


def test_damaged_text_is_prepared_again(folder: Path) -> None:
    directory = prepare(recipe_for(folder)).directory
    before = contents(directory)
    (directory / "train.src.tokens.npy").write_bytes(b"short")
    with pytest.raises(UserError, match="damaged"):
        load_prepared(directory)
    prepare(recipe_for(folder))
    assert contents(directory) == before


def test_separate_tokenizers(folder: Path) -> None:
    options = ["tokenizer.joint=false", "model.tied_embeddings='none'", "tokenizer.vocab_size=320"]
    prepared = prepare(recipe_for(folder, "run", *options))
    assert not prepared.tokenizers.joint
    assert set(prepared.report["tokenizers"]) == {"tokenizer.src.model", "tokenizer.tgt.model"}


def test_tokenizer_sample_is_even(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples: list[list[tuple[str, str]]] = []
    train = train_tokenizers

    def spy(sample: Any, *arguments: Any) -> Any:
        samples.append(list(sample()))
        return train(sample, *arguments)

    monkeypatch.setattr(preparation, "train_tokenizers", spy)
    write_corpus(folder / "text", sentence_pairs(200), sentence_pairs(5))
    prepare(recipe_for(folder, "run", "tokenizer.training_pairs=50"))
    positions = [sentence_pairs(200).index(pair) for pair in samples[0]]
    assert len(positions) == 50
    assert set(np.diff(positions)) == {4}


# --- Errors ---


DYING_PROGRAM = """
import os, signal, sys
from pathlib import Path
from nmt.data import corpus
from nmt.data.frames import Frame
from nmt.data.prepare import prepare
from nmt.recipe import load_recipe

write = Frame.write

def write_and_die(*arguments):
    write(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    Frame.write = write_and_die
    corpus.PAIRS_PER_CHUNK = 50
    prepare(load_recipe(Path(sys.argv[1])))
"""


@pytest.mark.slow
def test_killed_preparation_is_not_reused(folder: Path) -> None:
    recipe = recipe_for(folder, "killed", "data.workers=2")
    (folder / "recipe.toml").write_text(dump_recipe(recipe))
    (folder / "program.py").write_text(DYING_PROGRAM)
    command = [sys.executable, str(folder / "program.py"), str(folder / "recipe.toml")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    assert process.wait() == -signal.SIGKILL
    assert [path.name for path in (folder / "killed").iterdir()] == [f".data.part-{process.pid}"]
    assert_session_ends(process.pid)
    prepare(recipe_for(folder, "killed"))
    prepare(recipe_for(folder, "whole"))
    assert contents(folder / "killed" / "data") == contents(folder / "whole" / "data")
    assert [path.name for path in (folder / "killed").iterdir()] == ["data"]


def test_text_is_kept_if_a_preparation_is_killed_while_it_replaces_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = recipe_for(folder)
    prepared = prepare(recipe)
    before = contents(prepared.directory)
    prepared.directory.rename(prepared.directory.with_name(".data.replaced"))  # the first of two renames
    (folder / "text" / "train.de").unlink()
    with pytest.raises(UserError, match=r"train\.de: No such file"):
        prepare(recipe)
    assert contents(prepared.directory) == before
    capsys.readouterr()
    prepare(recipe)
    assert "no longer exists; using the text prepared from it" in capsys.readouterr().err


def test_input_errors_leave_no_files(folder: Path) -> None:
    (folder / "text" / "train.de").write_text("one line\n")
    one_line_error(recipe_for(folder), r"train\.en has 211 sentences and .*train\.de has 1")
    (folder / "text" / "train.de").unlink()
    one_line_error(recipe_for(folder), "cannot read .*No such file")
    (folder / "text" / "train.de").write_bytes(b"\xff\n" * 211)
    one_line_error(recipe_for(folder), r"train\.de, line 1: byte 0xff is not UTF-8")
    recipe = recipe_for(folder, "run", "data.train=[{kind='sgm', src='no.sgm', tgt='no.sgm'}]")
    one_line_error(recipe, r"no\.sgm: No such file; no\.sgm is relative to data\.root")


@pytest.mark.skipif(sys.platform == "win32", reason="needs FIFOs")
def test_a_corpus_file_that_became_a_pipe_is_an_error(folder: Path) -> None:
    prepare(recipe_for(folder))
    (folder / "text" / "train.de").unlink()
    os.mkfifo(folder / "text" / "train.de")
    with pytest.raises(UserError, match=r"train\.de is a pipe, but is read more than once"):
        prepare(recipe_for(folder))


def test_a_corpus_without_usable_pairs_is_an_error(folder: Path) -> None:
    write_corpus(folder / "text", [("кошка", "Katze"), ("собака", "Hund"), ("", "")], sentence_pairs(5))
    one_line_error(recipe_for(folder), "all 3 training pairs were dropped, 2 of them as 'wrong script'")
    (folder / "text" / "train.tsv").write_text("the old dog sees a cat\tder alte Hund\n")
    tsv = recipe_for(folder, "run", "data.train=[{kind='tsv', path='train.tsv', src_column=0, tgt_column=0}]")
    one_line_error(tsv, "as 'identical sides'; at least one must remain; check data.drop_identical, the languages")
    write_corpus(folder / "text", [], sentence_pairs(5))
    one_line_error(recipe_for(folder), r"data\.train has no sentences")
    write_corpus(folder / "text", sentence_pairs(100), [])
    one_line_error(recipe_for(folder, "run"), r"data\.valid\.0 has no sentence")
    write_corpus(folder / "text", sentence_pairs(100), sentence_pairs(5))
    one_line_error(recipe_for(folder, "run", "data.max_tokens=2"), "100 of them as 'too many tokens'")


def test_an_empty_validation_corpus_beside_others_is_an_error(folder: Path) -> None:
    (folder / "text" / "empty").write_text("")
    corpora = "{kind='text',src='valid.en',tgt='valid.de'},{kind='text',src='empty',tgt='empty'}"
    recipe = recipe_for(folder, "run", f"data.valid=[{corpora}]")
    message = r"data\.valid\.1 has no sentences; it must have at least one; correct or remove it"
    with pytest.raises(UserError, match=message):
        prepare(recipe)
    prepare(recipe_for(folder))  # then only the validation set is outdated
    with pytest.raises(UserError, match=message):
        prepare(recipe)


def test_an_unsuitable_vocabulary_size_is_an_error(folder: Path) -> None:
    one_line_error(recipe_for(folder, "run", "tokenizer.vocab_size=30000"), r"allows at most \d+ pieces")


def test_a_full_disk_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Frame, "write", fail)
    one_line_error(recipe_for(folder), "the disk is full while writing .*; .*; free some space, or set run_dir")


def test_an_unwritable_directory_is_an_error(folder: Path) -> None:
    (folder / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*Not a directory"):
        prepare(recipe_for(folder, "file"))
    assert (folder / "file").read_text() == ""


def test_other_directories_are_not_overwritten(folder: Path) -> None:
    directory = recipe_for(folder).data_directory
    directory.mkdir(parents=True)
    (directory / "thesis.txt").write_text("irreplaceable")
    with pytest.raises(UserError, match="not a prepared corpus"):
        prepare(recipe_for(folder))
    assert (directory / "thesis.txt").read_text() == "irreplaceable"


@pytest.mark.parametrize("name", ["notes.txt", "train.en", "valid.de.txt", "tokenizer.old.model"])
def test_other_files_in_a_prepared_corpus_are_not_lost(name: str, folder: Path) -> None:
    directory = prepare(recipe_for(folder)).directory
    (directory / name).write_text("irreplaceable")
    assert not outdated_splits(recipe_for(folder), directory)
    with pytest.raises(UserError, match=rf"{re.escape(name)} is not part of the prepared corpus .*move it away"):
        prepare(recipe_for(folder, "run", "data.max_tokens=30"))
    assert (directory / name).read_text() == "irreplaceable"


LOCK = """
import sys
from pathlib import Path
from nmt.processes.run_lock import run_lock
with run_lock(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_two_runs_cannot_prepare_a_shared_folder_at_the_same_time(folder: Path) -> None:
    shared = folder / "shared" / "data"
    shared.mkdir(parents=True)
    recipes = recipe_for(folder, "one"), recipe_for(folder, "other", "data.max_tokens=30")
    for recipe in recipes:
        recipe.directory.mkdir()
        recipe.data_directory.symlink_to(shared)
    holder = subprocess.Popen(
        [sys.executable, "-c", LOCK, str(shared.parent)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdin and holder.stdout and holder.stdout.readline()
        with pytest.raises(UserError, match=rf"is in use by process {holder.pid}"):
            prepare(recipes[0])
        holder.stdin.close()
    assert prepare(recipes[0]).directory.is_symlink() and shared.is_dir()
    assert prepare(recipes[1]).report["recipe"]["data"]["max_tokens"] == 30


def test_a_run_that_holds_its_lock_can_prepare_a_folder_inside_it(folder: Path) -> None:
    recipe = recipe_for(folder)
    with run_lock(recipe.directory):
        recipe.data_directory.symlink_to("elsewhere")
        prepare(recipe)
        assert (recipe.directory / LOCK_FILE).exists()
    assert (recipe.directory / "elsewhere").is_dir()


def test_text_of_another_trained_run_is_not_replaced_through_a_link(folder: Path) -> None:
    trained = prepare(recipe_for(folder, "trained")).directory
    other = recipe_for(folder, "other", "data.max_tokens=30")
    other.directory.mkdir()
    other.data_directory.symlink_to(trained)
    (trained.parent / "checkpoints" / "step-00000005").mkdir(parents=True)
    before = contents(trained)
    with pytest.raises(UserError, match=r"other/data is a link to the text of another run, .*trained, .*remove"):
        prepare(other)
    assert contents(trained) == before
    same = recipe_for(folder, "same")
    same.directory.mkdir()
    same.data_directory.symlink_to(trained)
    assert prepare(same).directory.is_symlink()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stamps.json", "prepare.json"])
def test_damaged_reports_are_replaced(folder: Path, name: str) -> None:
    directory = prepare(recipe_for(folder)).directory
    before = contents(directory)
    for damaged in ("", "5", "[1]", "[[1]]", "{}", "\ufffd", '{"format": 2}'):
        (directory / name).write_text(damaged, encoding="utf-8")
        prepare(recipe_for(folder))
        assert contents(directory) == before, damaged


@pytest.mark.slow
def test_a_changed_digit_in_the_report_is_an_error(folder: Path) -> None:
    path = prepare(recipe_for(folder)).directory / "prepare.json"
    before = path.read_text(encoding="utf-8")
    for found in list(re.finditer("[0-9]", before))[::7]:
        changed = str((int(found[0]) + 1) % 10)
        path.write_text(before[: found.start()] + changed + before[found.end() :], encoding="utf-8")
        with pytest.raises(UserError, match=r"prepare\.json is damaged: its content does not match its checksum"):
            prepare(recipe_for(folder))
        with pytest.raises(UserError, match=r"prepare\.json is damaged"):
            load_prepared(path.parent)
    path.write_text(before, encoding="utf-8")
    prepare(recipe_for(folder))
    assert path.read_text(encoding="utf-8") == before


def test_a_wrong_number_of_pairs_in_the_report_is_an_error(folder: Path) -> None:
    recipe = recipe_for(folder)
    prepared = prepare(recipe)
    prepared.mixture(recipe)
    prepared.report["train"]["corpora"][0]["pairs"] -= 1
    with pytest.raises(UserError, match=r"prepare\.json is damaged: it has [0-9]+ training pairs"):
        prepared.mixture(recipe)


def test_a_change_with_the_same_size_and_modification_time_is_detected(folder: Path) -> None:
    directory = prepare(recipe_for(folder)).directory
    before, path = contents(directory), folder / "text" / "train.en"
    modified = path.stat().st_mtime_ns
    path.write_bytes(path.read_bytes().replace(b"cat", b"dog"))
    os.utime(path, ns=(modified, modified))
    assert contents(prepare(recipe_for(folder)).directory) != before


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="run `nmt prepare`"):
        load_prepared(tmp_path)


def test_a_local_dataset_that_loses_files_is_outdated(folder: Path) -> None:
    dataset = folder / "text" / "dataset"
    dataset.mkdir()
    for number, pairs in enumerate((sentence_pairs(200)[:150], sentence_pairs(200)[150:])):
        records = [json.dumps({"translation": {"en": src, "de": tgt}}) for src, tgt in pairs]
        (dataset / f"train-{number}.jsonl").write_text("\n".join(records), encoding="utf-8")
    recipe = recipe_for(folder, "run", "data.train=[{kind='huggingface', dataset='dataset'}]")
    identity = text_identity(prepare(recipe).report, recipe)
    assert outdated_splits(recipe, recipe.data_directory) == set()
    note = " (all files of a local dataset count as input)"
    (dataset / "test.jsonl").touch()
    assert outdated_splits(recipe, recipe.data_directory) == {"train", "valid"}
    assert describe_change(recipe, recipe.data_directory) == f"{dataset / 'test.jsonl'}{note}"
    (dataset / "test.jsonl").unlink()
    (dataset / "train-1.jsonl").unlink()
    assert outdated_splits(recipe, recipe.data_directory) == {"train", "valid"}
    change, root = "the list of input files, which no longer has", f"(data.root is {folder / 'text'})"
    assert describe_change(recipe, recipe.data_directory) == f"{change} train-1.jsonl {root}{note},"
    shutil.rmtree(dataset)
    assert describe_change(recipe, recipe.data_directory) == f"{change} train-0.jsonl {root}{note},"
    assert outdated_splits(recipe, recipe.data_directory, asks_hub=False) == {"train", "valid"}
    report = load_prepared(recipe.data_directory).report
    assert text_identity(report, recipe) == identity, "the identity depends only on the report"


def test_a_dataset_in_the_home_directory_is_not_on_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    (folder / "mine").mkdir()
    recipe = recipe_for(folder, "run", "data.train=[{kind='huggingface', dataset='~/mine'}]")
    assert not unpinned_datasets(recipe, recipe.data.train)


@pytest.mark.slow
def test_a_changed_dataset_of_the_hub_is_prepared_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs, commits = sentence_pairs(200), {"a/train": "1" * 40, "a/valid": "2" * 40}

    def dataset_info(self: object, name: str, **options: object) -> SimpleNamespace:
        if not commits:
            raise OSError("no network")
        return SimpleNamespace(sha=commits[name])

    def load_dataset(name: str, *args: object, **options: object) -> list[object]:
        return [{"translation": {"en": src, "de": tgt}} for src, tgt in pairs]

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", dataset_info)
    monkeypatch.setattr("datasets.load.load_dataset", load_dataset)
    corpora = (f"data.{split}=[{{kind='huggingface', dataset='a/{split}'}}]" for split in ("train", "valid"))
    recipe = recipe_for(folder, "run", *corpora)
    assert prepare(recipe).report["commits"] == {
        name: {f"a/{name}": commits[f"a/{name}"]} for name in ("train", "valid")
    }
    identity = text_identity(load_prepared(recipe.data_directory).report, recipe)
    assert outdated_splits(recipe, recipe.data_directory) == set()
    commits["a/valid"] = "3" * 40
    assert outdated_splits(recipe, recipe.data_directory) == {"valid"}
    assert prepare(recipe).report["commits"]["valid"] == {"a/valid": "3" * 40}
    commits["a/train"] = "4" * 40
    assert outdated_splits(recipe, recipe.data_directory) == {"train", "valid"}
    assert text_identity(prepare(recipe).report, recipe) == identity, "the commit changed another file"
    pairs, commits["a/train"] = pairs[1:], "5" * 40
    assert text_identity(prepare(recipe).report, recipe) != identity
    commits.clear()
    capsys.readouterr()
    assert prepare(recipe).report["commits"]["train"] == {"a/train": "5" * 40}
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert [line.partition(" (")[0].rpartition(" ")[0] for line in warnings] == [
        "warning: cannot check whether dataset a/train has",
        "warning: cannot check whether dataset a/valid has",
    ]
    assert all("set its `revision` to a commit" in line for line in warnings)
