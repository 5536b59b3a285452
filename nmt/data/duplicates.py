"""Which of many pairs were there before, found with hashes on disk and one bit for each pair in memory."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Equal hashes meet in the same bucket, so that one bucket at a time has to be in memory: 1/64 of 16 bytes a pair.
_NUM_BUCKETS = 64
_ENTRY = np.dtype([("hash", np.uint64), ("pair", np.uint64)])

# Counting needs a byte of memory for each of so many pairs.
_PAIRS_PER_STEP = 1 << 20


class Bitmap:
    """One bit for each pair: whether it is kept; all are at first. `num_kept` counts them."""

    def __init__(self, length: int) -> None:
        self.num_kept = length
        self._bits = np.full(-(-length // 8), 255, dtype=np.uint8)
        self._length = length

    def __getitem__(self, places: slice) -> NDArray[np.bool_]:
        """The bits from `start` to `stop`, `(stop - start,)`."""
        start, stop, _ = places.indices(self._length)
        bits = np.unpackbits(self._bits[start // 8 : -(-stop // 8)], bitorder="little")
        return bits[start % 8 :][: stop - start].astype(np.bool_)

    def count(self, start: int, stop: int) -> int:
        """How many pairs from `start` to `stop` are kept."""
        steps = range(start, stop, _PAIRS_PER_STEP)
        return sum(int(self[step : min(step + _PAIRS_PER_STEP, stop)].sum()) for step in steps)

    def clear(self, pairs: NDArray[np.integer[Any]]) -> None:
        """Mark pairs `(n,)`, all different and kept until now, as not kept."""
        self.num_kept -= len(pairs)
        np.bitwise_and.at(self._bits, pairs >> 3, ~(np.uint8(1) << (pairs & 7).astype(np.uint8)))


class DuplicateFinder:
    """Takes the 64-bit hash of each pair in turn, then tells the first of equal ones from the others.

    Among n distinct pairs the chance that any two have the same hash is about n^2 / 2^65: 4e-5 for 36 million. Used as
    a context manager, it removes its files at the end.
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
        cuts = np.searchsorted(buckets[order], np.arange(1, _NUM_BUCKETS))
        for file, part in zip(self._files, np.split(entries[order], cuts), strict=True):
            file.write(part.tobytes())
        self._count += len(hashes)

    def first_occurrences(self) -> Bitmap:
        """Which pairs have no equal before them; nothing can be added afterwards."""
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for file, path in zip(self._files, self._paths, strict=True):
            file.close()
            path.unlink(missing_ok=True)
