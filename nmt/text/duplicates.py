"""Duplicate detection with hashes on disk; memory holds one bit per pair and 1/64 of the hashes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Equal hashes are in the same bucket, and memory holds one bucket at a time: 1/64 of 16 bytes per pair.
_NUM_BUCKETS = 64
_ENTRY = np.dtype([("hash", np.uint64), ("pair", np.uint64)])

# Counting needs one byte of memory per pair of a step.
_PAIRS_PER_STEP = 1 << 20


class Bitmap:
    """One bit per pair, initially True: whether the pair is kept. `num_kept` counts the kept pairs."""

    def __init__(self, length: int) -> None:
        self.num_kept = length
        self._bits = np.full(-(-length // 8), 255, dtype=np.uint8)
        self._length = length

    def __getitem__(self, indices: slice) -> NDArray[np.bool_]:
        """Return the bits from `start` to `stop`, `(stop - start,)`."""
        start, stop, _ = indices.indices(self._length)
        bits = np.unpackbits(self._bits[start // 8 : -(-stop // 8)], bitorder="little")
        return bits[start % 8 :][: stop - start].astype(np.bool_)

    def count(self, start: int, stop: int) -> int:
        """Count the kept pairs from `start` to `stop`."""
        steps = range(start, stop, _PAIRS_PER_STEP)
        return sum(int(self[step : min(step + _PAIRS_PER_STEP, stop)].sum()) for step in steps)

    def clear(self, pairs: NDArray[np.integer[Any]]) -> None:
        """Clear the bits of pairs `(n,)`, which must be distinct and kept."""
        self.num_kept -= len(pairs)
        np.bitwise_and.at(self._bits, pairs >> 3, ~(np.uint8(1) << (pairs & 7).astype(np.uint8)))


class DuplicateFinder:
    """Finds duplicates by 64-bit hashes. A context manager that removes its files on exit.

    The probability of a collision among n distinct pairs is about n^2 / 2^65: 4e-5 for 36 million.
    """

    def __init__(self, directory: Path) -> None:
        self._paths = [directory / f"hashes.{bucket:02d}.bin" for bucket in range(_NUM_BUCKETS)]
        self._files = [path.open("wb") for path in self._paths]
        self._count = 0

    def add(self, hashes: NDArray[np.uint64]) -> None:
        """Add the hashes `(n,)` of the next n pairs."""
        entries = np.empty(len(hashes), dtype=_ENTRY)
        entries["hash"] = hashes
        entries["pair"] = np.arange(self._count, self._count + len(hashes))
        buckets = hashes % _NUM_BUCKETS
        order = np.argsort(buckets, kind="stable")
        splits = np.searchsorted(buckets[order], np.arange(1, _NUM_BUCKETS))
        for file, part in zip(self._files, np.split(entries[order], splits), strict=True):
            file.write(part.tobytes())
        self._count += len(hashes)

    def first_occurrences(self) -> Bitmap:
        """Return a bitmap of the first occurrence of each pair; call it once, after the last `add`."""
        first = Bitmap(self._count)
        for file, path in zip(self._files, self._paths, strict=True):
            file.close()
            entries = np.fromfile(path, dtype=_ENTRY)
            entries = entries[np.argsort(entries["hash"], kind="stable")]
            repeats = np.flatnonzero(entries["hash"][1:] == entries["hash"][:-1]) + 1
            first.clear(entries["pair"][repeats].astype(np.int64))
        return first

    def __enter__(self) -> DuplicateFinder:
        return self

    def __exit__(self, *error: object) -> None:
        for file, path in zip(self._files, self._paths, strict=True):
            file.close()
            path.unlink(missing_ok=True)
