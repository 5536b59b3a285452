"""Preparation of training and validation text."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nmt.data import prepare as preparation
from nmt.data.prepare import prepare
from nmt.data.store import PairStore
from nmt.text.clean import normalize
from nmt.text.tokenizer import train_tokenizers
from tests.data.directories import contents
from tests.data.dirty_corpus import EXPECTED_DROPS, HOSTILE, TOO_LONG, recipe_for, sentence_pairs, write_corpus


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


def test_brackets_of_trees_that_an_epoch_skips_are_tokens(tmp_path: Path) -> None:
    """With weights of 8 and 1, an epoch and the sample for the tokenizer have a tenth of the second corpus."""
    (tmp_path / "text").mkdir()
    for name, labels in (("common", ["VP"] * 90), ("rare", [f"L{chr(ord('A') + n)}" for n in range(20)])):
        lines = [f"(S (NP (NN w{n % 9}) (NN v{n // 9})) ({label} (VB x)))\n" for n, label in enumerate(labels)]
        (tmp_path / "text" / name).write_text("".join(lines))
    corpora = (
        "data.train=[{kind='trees',path='common',weight=8.0},{kind='trees',path='rare'}]",
        "data.valid=[{kind='trees',path='rare'}]",
    )
    options = ("tgt_lang='zxx'", "tokenizer.joint=false", "tokenizer.vocab_size=276", "model.tied_embeddings='decoder'")
    symbols = prepare(recipe_for(tmp_path, "run", *corpora, *options)).tokenizers.tgt.user_symbols()
    assert len([symbol for symbol in symbols if symbol.startswith("▁(L")]) == 20


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
