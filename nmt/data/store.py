"""The token store: sentences as flat arrays of token ids in plain `.npy` files, read through memory maps.

A side of a split is two files. `tokens` holds all sentences end to end, `offsets` says where each one starts and, as
its last entry, where the last one ends. Begin and end tokens are not stored; `nmt.data.loader` adds them.

To open a store verifies only that its files fit together; `Prepared.verify` compares them with their checksums.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from nmt.recipe import UserError

Split = Literal["train", "valid"]
Side = Literal["src", "tgt"]


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The smallest unsigned type that holds every id of a vocabulary: 16 bits where they suffice, else 32."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


class SideStore:
    """One language of a split.

    tokens:  (total,) uint16 or uint32, memory-mapped
    offsets: (num_sentences+1,) int64, memory-mapped
    """

    def __init__(self, directory: Path, split: Split, side: Side) -> None:
        """Map the two files into memory; raises UserError when they are missing or damaged."""
        self.tokens = _open_array(_file(directory, split, side, "tokens"))
        self.offsets = _open_array(_file(directory, split, side, "offsets"))
        if len(self.offsets) == 0 or self.offsets[-1] != len(self.tokens):
            raise UserError(
                f"{directory} is damaged: {split}.{side} is cut short; delete it and prepare the data again"
            )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        """Tokens of each sentence, `(num_sentences,)`, in memory."""
        return np.diff(self.offsets).astype(np.int32)

    def gather(self, ids: NDArray[np.integer[Any]]) -> tuple[NDArray[np.unsignedinteger[Any]], NDArray[np.int64]]:
        """The sentences `ids` `(n,)` end to end in that order: their tokens `(total,)` and lengths `(n,)`."""
        starts = self.offsets[ids]
        lengths = self.offsets[np.asarray(ids) + 1] - starts
        ends = np.cumsum(lengths)
        total = int(ends[-1]) if len(ends) else 0
        # The place of a token in the store is its place in the result, shifted by the same amount for a whole sentence.
        places = np.arange(total) + np.repeat(starts - (ends - lengths), lengths)
        return np.asarray(self.tokens[places]), np.asarray(lengths)


class PairStore:
    """A split of the prepared corpus: `src` and `tgt` sentence by sentence each other's translation."""

    def __init__(self, directory: Path, split: Split) -> None:
        """Open both sides; raises UserError when files are missing, damaged or do not belong together."""
        self.src = SideStore(directory, split, "src")
        self.tgt = SideStore(directory, split, "tgt")
        if len(self.src) != len(self.tgt):
            raise UserError(
                f"{directory} is damaged: {split} has {len(self.src)} source and {len(self.tgt)} target sentences; "
                "delete it and prepare the data again"
            )

    def __len__(self) -> int:
        return len(self.src)


class PairWriter:
    """Writes a split piece by piece, in memory that does not grow; used as a context manager."""

    def __init__(self, directory: Path, split: Split, dtypes: Mapping[Side, np.dtype[Any]]) -> None:
        self._tokens = {
            side: _GrowingArray(_file(directory, split, side, "tokens"), dtype) for side, dtype in dtypes.items()
        }
        self._offsets = {
            side: _GrowingArray(_file(directory, split, side, "offsets"), np.dtype(np.int64)) for side in dtypes
        }
        for offsets in self._offsets.values():
            offsets.append(np.zeros(1, np.int64))

    def append(self, side: Side, tokens: NDArray[np.integer[Any]], lengths: NDArray[np.integer[Any]]) -> None:
        """Add sentences to one side: their tokens end to end `(total,)` and their lengths `(n,)`."""
        start = self._tokens[side].length
        self._tokens[side].append(tokens)
        self._offsets[side].append(start + np.cumsum(lengths, dtype=np.int64))

    def __enter__(self) -> PairWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for array in (*self._tokens.values(), *self._offsets.values()):
            array.close()


class _GrowingArray:
    """A one-dimensional `.npy` file that is appended to; its header is written again, with the length, at the end."""

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
            assert self._file.tell() == self._header_size, "NumPy leaves room in the header for the length to grow"

    def _write_header(self) -> None:
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": (self.length,)}
        np.lib.format.write_array_header_1_0(self._file, header)


def _file(directory: Path, split: Split, side: Side, content: Literal["tokens", "offsets"]) -> Path:
    return directory / f"{split}.{side}.{content}.npy"


def _open_array(path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing; it is part of the prepared corpus; prepare the data first") from error
    except (OSError, EOFError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}); delete its folder and prepare the data again") from error
    return array
