"""Text shared by all systems: cleaned, tokenized and encoded once, by `nmt prepare`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import tomli_w

from nmt.data.prepare import load_prepared, prepare
from nmt.data.store import PairStore
from nmt.errors import UserError
from nmt.recipe import Recipe, parse_recipe
from nmt.text.lines import read_lines
from nmt.text.tokenizer import Tokenizer

# Accepted file names of each split.
_SPLITS = {"train": ("train",), "valid": ("val", "valid", "dev"), "test": ("test_2016_flickr", "test")}


def text_recipe(data: Path, folder: Path, *, src_lang: str, tgt_lang: str, vocab_size: int) -> Recipe:
    """Recipe that prepares parallel text, such as raw Multi30k; keeps duplicates, identical sides and other scripts."""
    names = {split: _find(data, split, src_lang) for split in _SPLITS}
    corpora = {
        split: {"kind": "text", "src": f"{name}.{src_lang}", "tgt": f"{name}.{tgt_lang}"}
        for split, name in names.items()
    }
    tree = {
        "name": "bench",
        "src_lang": src_lang,
        "tgt_lang": tgt_lang,
        "run_dir": str(folder.absolute() / "nmt"),
        "data": {
            "root": str(data.absolute()),
            "drop_duplicates": False,
            "drop_identical": False,
            "drop_wrong_script": False,
            "train": [corpora["train"]],
            "valid": [corpora["valid"]],
            "test": {"test": corpora["test"]},
        },
        "tokenizer": {"vocab_size": vocab_size},
    }
    return parse_recipe(tomli_w.dumps(tree))


def prepare_text(recipe: Recipe) -> None:
    """Prepare a `text_recipe`, and write its splits as token ids and pieces next to the prepared corpus.

    The training and test sets are also written as text.
    """
    prepared = prepare(recipe)
    folder = recipe.directory.parent
    tokenizer = prepared.tokenizers.src
    splits: tuple[Literal["train", "valid"], ...] = ("train", "valid")
    for split in splits:
        store = PairStore(prepared.directory, split)
        for side, sentences in (("src", store.src), ("tgt", store.tgt)):
            offsets = sentences.offsets
            ids = [sentences.tokens[offsets[i] : offsets[i + 1]].tolist() for i in range(len(sentences))]
            _write_tokens(folder / f"{split}.{side}", ids, tokenizer)
    for name, corpus in (("train", recipe.data.train[0]), ("test", recipe.data.test["test"])):
        assert corpus.kind == "text"
        for side, path in (("src", corpus.src), ("tgt", corpus.tgt)):
            assert isinstance(path, Path)
            lines = list(read_lines(recipe.data.root / path))
            _write_lines(folder / f"{name}.{side}.txt", lines)
            if name == "test":
                _write_tokens(folder / f"test.{side}", tokenizer.encode_batch(lines), tokenizer)
    (folder / "tokenizer.model").write_bytes(tokenizer.model)
    _write_lines(folder / "vocab.txt", tokenizer.pieces(range(tokenizer.vocab_size)))


def vocabulary_size(folder: Path) -> int:
    """Vocabulary size of a folder written by `prepare_text`; raises UserError if there is none."""
    if not (folder / "vocab.txt").exists():
        raise UserError(f"{folder} has no prepared text; prepare it first: tools/bench/run data --data FOLDER")
    return load_prepared(folder / "nmt" / "data").tokenizers.src.vocab_size


def _find(data: Path, split: str, lang: str) -> str:
    for name in _SPLITS[split]:
        if (data / f"{name}.{lang}").exists():
            return name
    expected = ", ".join(f"{name}.{lang}" for name in _SPLITS[split])
    raise UserError(f"{data} has no text for {split}; it must contain one of {expected}; check --data")


def _write_tokens(path: Path, ids: Sequence[Sequence[int]], tokenizer: Tokenizer) -> None:
    _write_lines(path.with_name(f"{path.name}.ids"), (" ".join(map(str, sentence)) for sentence in ids))
    _write_lines(path.with_name(f"{path.name}.pieces"), (" ".join(tokenizer.pieces(sentence)) for sentence in ids))


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
