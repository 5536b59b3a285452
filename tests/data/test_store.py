"""The token store: contents, files and errors."""

from pathlib import Path

import numpy as np
import pytest

from nmt.data.store import PairStore, PairWriter, Sentences, Side, SideStore, token_dtype
from nmt.errors import UserError


def write_store(directory: Path, src: list[list[int]], tgt: list[list[int]], chunk: int = 3, vocab: int = 1000) -> None:
    with PairWriter(directory, "train", {"src": token_dtype(vocab), "tgt": token_dtype(vocab)}) as writer:
        sides: dict[Side, list[list[int]]] = {"src": src, "tgt": tgt}
        for side, sentences in sides.items():
            for start in range(0, len(sentences), chunk):
                part = sentences[start : start + chunk]
                flat = np.array([token for sentence in part for token in sentence], dtype=np.int64)
                writer.append(side, flat, np.array([len(sentence) for sentence in part]))


def sentences(count: int, seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(4, 1000, rng.integers(0, 6)).tolist() for _ in range(count)]


def test_gather_in_any_order(tmp_path: Path) -> None:
    src, tgt = sentences(50, 1), sentences(50, 2)
    write_store(tmp_path, src, tgt)
    store = PairStore(tmp_path, "train")
    assert len(store) == 50
    assert store.src.lengths.tolist() == [len(sentence) for sentence in src]
    for ids in ([], [7], [49, 0, 0, 13], list(range(50))):
        flat, lengths = store.tgt.gather(np.array(ids, dtype=np.int32))
        assert flat.tolist() == [token for i in ids for token in tgt[i]]
        assert lengths.tolist() == [len(tgt[i]) for i in ids]


def test_files_are_plain_numpy_arrays(tmp_path: Path) -> None:
    write_store(tmp_path, [[5, 6], [7]], [[8], []])
    arrays = {path.name: np.load(path, allow_pickle=False) for path in tmp_path.iterdir()}
    assert arrays["train.src.tokens.npy"].tolist() == [5, 6, 7]
    assert arrays["train.src.offsets.npy"].tolist() == [0, 2, 3]
    assert arrays["train.tgt.tokens.npy"].tolist() == [8]
    assert arrays["train.tgt.offsets.npy"].tolist() == [0, 1, 1]
    assert arrays["train.src.tokens.npy"].dtype == np.uint16
    assert arrays["train.src.offsets.npy"].dtype == np.int64


def test_tokens_are_memory_mapped(tmp_path: Path) -> None:
    write_store(tmp_path, [[5]], [[6]])
    assert isinstance(PairStore(tmp_path, "train").src.tokens, np.memmap)


def test_truncated_sentences_have_fewer_words() -> None:
    lengths, words = np.array([4, 2, 0, 10], np.int32), np.array([3, 1, 0, 4], np.int32)
    truncated = Sentences(np.arange(16, dtype=np.uint16), lengths, words).truncate(4)
    assert truncated.tokens.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert truncated.lengths.tolist() == [4, 2, 0, 4]
    assert truncated.words.tolist() == [3, 1, 0, 2]


def test_large_vocabularies_use_32_bits(tmp_path: Path) -> None:
    assert token_dtype(65536) == np.uint16
    assert token_dtype(65537) == np.uint32
    write_store(tmp_path, [[70_000]], [[4]], vocab=70_001)
    assert PairStore(tmp_path, "train").src.gather(np.array([0]))[0].tolist() == [70_000]


def test_empty_store(tmp_path: Path) -> None:
    write_store(tmp_path, [], [])
    store = PairStore(tmp_path, "train")
    assert len(store) == 0
    assert store.src.gather(np.array([], dtype=np.int64))[0].size == 0


def test_missing_and_damaged_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train\.src\.tokens\.npy is missing"):
        PairStore(tmp_path, "train")
    write_store(tmp_path, [[5, 6], [7]], [[8], [9]])
    tokens = tmp_path / "train.tgt.tokens.npy"
    whole = tokens.read_bytes()
    for content in (whole[:-1], b"", b"garbage"):
        tokens.write_bytes(content)
        with pytest.raises(UserError, match="damaged") as caught:
            PairStore(tmp_path, "train")
        assert "\n" not in str(caught.value)
    for number in (1, 3):
        np.save(tokens, np.full(number, 8, dtype=np.uint16))
        with pytest.raises(UserError, match=r"train\.tgt is truncated"):
            SideStore(tmp_path, "train", "tgt")
    np.save(tmp_path / "train.tgt.offsets.npy", np.array([], dtype=np.int64))
    with pytest.raises(UserError, match=r"train\.tgt is truncated"):
        SideStore(tmp_path, "train", "tgt")


def test_pickled_arrays_are_rejected(tmp_path: Path) -> None:
    write_store(tmp_path, [[5]], [[6]])
    np.save(tmp_path / "train.src.tokens.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match="damaged"):
        PairStore(tmp_path, "train")


def test_sides_of_different_length_are_an_error(tmp_path: Path) -> None:
    write_store(tmp_path, [[5], [6]], [[7]])
    with pytest.raises(UserError, match="2 source and 1 target"):
        PairStore(tmp_path, "train")
