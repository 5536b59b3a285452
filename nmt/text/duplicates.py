"""Duplicate detection with hashes on disk; memory holds one byte per pair and 1/64 of the hashes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

# Equal hashes are in the same bucket, and memory holds one bucket at a time: 1/64 of 16 bytes per pair.
_NUM_BUCKETS = 64
_ENTRY = np.dtype([("hash", np.uint64), ("pair", np.uint64)])


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

    def first_occurrences(self) -> NDArray[np.bool_]:
        """Return whether each pair is its first occurrence, `(num_pairs,)`; call it once, after the last `add`."""
        is_first = np.ones(self._count, dtype=np.bool_)
        for file, path in zip(self._files, self._paths, strict=True):
            file.close()
            entries = np.fromfile(path, dtype=_ENTRY)
            entries = entries[np.argsort(entries["hash"], kind="stable")]
            repeats = np.flatnonzero(entries["hash"][1:] == entries["hash"][:-1]) + 1
            is_first[entries["pair"][repeats]] = False
        return is_first

    def __enter__(self) -> DuplicateFinder:
        return self

    def __exit__(self, *error: object) -> None:
        for file, path in zip(self._files, self._paths, strict=True):
            file.close()
            path.unlink(missing_ok=True)
