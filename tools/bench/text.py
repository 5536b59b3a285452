"""The text that all systems work on: cleaned, segmented and numbered once, by `nmt prepare`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import tomli_w

from nmt.data.prepare import load_prepared, prepare
from nmt.data.store import PairStore, SideStore
from nmt.recipe import Recipe, UserError, parse_recipe
from nmt.text.lines import read_lines
from nmt.text.tokenizer import Tokenizer

# Names under which a corpus may keep its splits.
_SPLITS = {"train": ("train",), "valid": ("val", "valid", "dev"), "test": ("test_2016_flickr", "test")}


def text_recipe(data: Path, folder: Path, *, src_lang: str, tgt_lang: str, vocab_size: int) -> Recipe:
    """The recipe that prepares a folder of parallel text such as raw Multi30k; no pair is dropped but for length."""
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
    """Write every split as token ids, pieces and text beside the prepared corpus of `text_recipe`'s recipe."""
    prepared = prepare(recipe)
    folder = recipe.directory.parent
    tokenizer = prepared.tokenizers.src
    for split in ("train", "valid"):
        store = PairStore(prepared.directory, "train" if split == "train" else "valid")
        for side, sentences in (("src", store.src), ("tgt", store.tgt)):
            _write(folder / f"{split}.{side}", _sentences(sentences), tokenizer)
    test = recipe.data.test["test"]
    for split, corpus in (("train", recipe.data.train[0]), ("test", test)):
        assert corpus.kind == "text", "the recipe is that of `text_recipe`"
        for side, path in (("src", corpus.src), ("tgt", corpus.tgt)):
            assert isinstance(path, Path), "the recipe is that of `text_recipe`"
            lines = list(read_lines(recipe.data.root / path))
            _write_lines(folder / f"{split}.{side}.txt", lines)
            if split == "test":
                _write(folder / f"test.{side}", tokenizer.encode_batch(lines), tokenizer)
    (folder / "tokenizer.model").write_bytes(tokenizer.model)
    _write_lines(folder / "vocab.txt", tokenizer.pieces(range(tokenizer.vocab_size)))


def vocabulary_of(folder: Path) -> int:
    """Pieces of a folder that `prepare_text` filled; UserError where it did not."""
    if not (folder / "vocab.txt").exists():
        raise UserError(f"{folder} holds no prepared text; make it first: tools/bench/run data --data FOLDER")
    return load_prepared(folder / "nmt" / "data").tokenizers.src.vocab_size


def _find(data: Path, split: str, lang: str) -> str:
    for name in _SPLITS[split]:
        if (data / f"{name}.{lang}").exists():
            return name
    expected = ", ".join(f"{name}.{lang}" for name in _SPLITS[split])
    raise UserError(f"{data} has no text for {split}; it must hold one of {expected}; give another folder by --data")


def _sentences(store: SideStore) -> Iterable[list[int]]:
    return (store.tokens[store.offsets[i] : store.offsets[i + 1]].tolist() for i in range(len(store)))


def _write(path: Path, sentences: Iterable[Sequence[int]], tokenizer: Tokenizer) -> None:
    """Ids and pieces of some sentences, in two files."""
    ids = list(sentences)
    _write_lines(path.with_name(f"{path.name}.ids"), (" ".join(map(str, sentence)) for sentence in ids))
    _write_lines(path.with_name(f"{path.name}.pieces"), (" ".join(tokenizer.pieces(sentence)) for sentence in ids))


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
