"""The token store: sentences as flat, memory-mapped `.npy` arrays of token ids.

Each side of a split has two files: `tokens` contains all sentences, concatenated, and `offsets` the start of each
sentence and the end of the last one. BOS and EOS are not stored; `nmt.data.loader` adds them.

Opening a store only checks that its files are consistent. `Prepared.verify` compares their checksums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from nmt.errors import UserError
from nmt.text.segmentation import Tokens, gather, reverse_each

Split = Literal["train", "valid"]
Side = Literal["src", "tgt"]
REPORT_FILE = "prepare.json"
"""Report of the preparation, which is written last."""
# Arrays of a split: the tokens of each side, and the links of each pair (`nmt.alignment.training`).
Part = Literal["src", "tgt", "links"]


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the smallest unsigned type that holds every id of a vocabulary: uint16 or uint32."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


@dataclass(frozen=True)
class Sentences:
    """Encoded sentences.

    tokens:  (total,) uint16 or uint32, concatenated
    lengths: (num_sentences,) int32, tokens per sentence
    words:   (num_sentences,) int32, words per sentence; after tokens are dropped, an estimate
    """

    tokens: Tokens
    lengths: NDArray[np.int32]
    words: NDArray[np.int32]

    def select(self, mask: NDArray[np.bool_]) -> Sentences:
        """Select the sentences where `mask` `(num_sentences,)` is True."""
        if mask.all():
            return self
        return Sentences(self.tokens[np.repeat(mask, self.lengths)], self.lengths[mask], self.words[mask])

    def truncate(self, length: int) -> Sentences:
        """Keep the first `length` tokens of every sentence."""
        if not (self.lengths > length).any():
            return self
        is_kept = self._indices() < length
        return self._shortened(is_kept, np.minimum(self.lengths, np.int32(length)))

    def prepend(self, token: int) -> Sentences:
        """Prepend a token to every sentence."""
        return Sentences(np.insert(self.tokens, self._starts(), token), self.lengths + np.int32(1), self.words)

    def drop_first(self, counts: NDArray[np.integer[Any]]) -> Sentences:
        """Drop the first tokens of every sentence; counts: `(num_sentences,)`."""
        is_kept = self._indices() >= np.repeat(counts, self.lengths)
        return self._shortened(is_kept, self.lengths - counts.astype(np.int32))

    def reverse(self) -> Sentences:
        """Reverse the tokens of every sentence."""
        return Sentences(reverse_each(self.tokens, self.lengths), self.lengths, self.words)

    def _shortened(self, is_kept: NDArray[np.bool_], lengths: NDArray[np.int32]) -> Sentences:
        """Keep the tokens where `is_kept` `(total,)` is True, and words in proportion; lengths: the new ones."""
        words = self.words * (lengths / np.maximum(self.lengths, 1))
        return Sentences(self.tokens[is_kept], lengths, words.round().astype(np.int32))

    def _starts(self) -> NDArray[np.integer[Any]]:
        return np.cumsum(self.lengths) - self.lengths

    def _indices(self) -> NDArray[np.integer[Any]]:
        """Return the index of each token in its sentence."""
        return np.arange(len(self.tokens)) - np.repeat(self._starts(), self.lengths)


class SideStore:
    """One side of a split, or its links.

    tokens:  (total,) uint16 or uint32, memory-mapped
    offsets: (num_sentences + 1,) int64, memory-mapped
    """

    def __init__(self, directory: Path, split: Split, side: Part) -> None:
        """Map the two files into memory; raise UserError if they are missing or damaged."""
        self.tokens = _open_array(_file(directory, split, side, "tokens"))
        self.offsets = _open_array(_file(directory, split, side, "offsets"))
        if len(self.offsets) == 0 or self.offsets[-1] != len(self.tokens):
            raise UserError(
                f"{directory} is damaged: {split}.{side} is truncated; delete {directory} and prepare the data again"
            )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        """Tokens of each sentence, `(num_sentences,)`, in memory."""
        return np.diff(self.offsets).astype(np.int32)

    def gather(self, ids: NDArray[np.integer[Any]]) -> tuple[Tokens, NDArray[np.int64]]:
        """Return the concatenated tokens `(total,)` of the sentences `ids` `(n,)`, and their lengths `(n,)`."""
        starts = self.offsets[ids]
        lengths = self.offsets[np.asarray(ids) + 1] - starts
        return gather(self.tokens, starts, lengths), lengths


class PairStore:
    """A split of the prepared corpus; sentence i of `tgt` is the translation of sentence i of `src`."""

    def __init__(self, directory: Path, split: Split) -> None:
        """Open both sides; raise UserError if files are missing, damaged or inconsistent."""
        self.src = SideStore(directory, split, "src")
        self.tgt = SideStore(directory, split, "tgt")
        if len(self.src) != len(self.tgt):
            raise UserError(
                f"{directory} is damaged: {split} has {len(self.src)} source and {len(self.tgt)} target sentences; "
                f"delete {directory} and prepare the data again"
            )

    def __len__(self) -> int:
        return len(self.src)

    def side(self, side: Side) -> SideStore:
        """Return one side."""
        return self.src if side == "src" else self.tgt


class PairWriter:
    """Context manager that writes a split incrementally, in constant memory."""

    def __init__(self, directory: Path, split: Split, dtypes: Mapping[Part, np.dtype[Any]]) -> None:
        self._tokens = {side: _ArrayWriter(_file(directory, split, side, "tokens"), dtypes[side]) for side in dtypes}
        self._offsets = {
            side: _ArrayWriter(_file(directory, split, side, "offsets"), np.dtype(np.int64)) for side in dtypes
        }
        for offsets in self._offsets.values():
            offsets.append(np.zeros(1, np.int64))

    def append(self, side: Part, tokens: NDArray[np.integer[Any]], lengths: NDArray[np.integer[Any]]) -> None:
        """Append sentences to one side: their concatenated tokens `(total,)` and their lengths `(n,)`."""
        start = self._tokens[side].length
        self._tokens[side].append(tokens)
        self._offsets[side].append(start + np.cumsum(lengths, dtype=np.int64))

    def __enter__(self) -> PairWriter:
        return self

    def __exit__(self, *error: object) -> None:
        for array in (*self._tokens.values(), *self._offsets.values()):
            array.close()


class _ArrayWriter:
    """Appends to a one-dimensional `.npy` file; closing it rewrites the header with the final length."""

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self.length = 0
        self._dtype = dtype
        self._file: BinaryIO = path.open("wb")
        self._write_header()
        self._header_size = self._file.tell()

    def append(self, values: NDArray[np.integer[Any]]) -> None:
        self._file.write(np.ascontiguousarray(values, dtype=self._dtype).data)
        self.length += len(values)

    def close(self) -> None:
        with self._file:
            self._file.seek(0)
            self._write_header()
            assert self._file.tell() == self._header_size, "NumPy pads the header to allow a larger length"

    def _write_header(self) -> None:
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": (self.length,)}
        np.lib.format.write_array_header_1_0(self._file, header)


def _file(directory: Path, split: Split, side: Part, content: Literal["tokens", "offsets"]) -> Path:
    return directory / f"{split}.{side}.{content}.npy"


def _open_array(path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing; it is part of the prepared corpus; prepare the data first") from error
    except (OSError, EOFError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}); delete its directory and prepare the data again") from error
    return array
