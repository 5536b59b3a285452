"""Read stored pairs in chunks that bound the memory of the statistical aligner."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.data.store import PairStore, SideStore

# Approximate number of (source token, target token) cells in a chunk.
CHUNK_CELLS = 4_000_000

Ids = NDArray[np.integer[Any]]


def in_chunks(store: PairStore, ids: Ids) -> list[Ids]:
    """Split pairs into nonempty chunks of about `CHUNK_CELLS` cells."""
    cells = (store.src.lengths[ids].astype(np.int64) + 1) * store.tgt.lengths[ids]
    numbers = np.cumsum(cells) // CHUNK_CELLS
    return np.split(ids, np.flatnonzero(np.diff(numbers)) + 1) if len(ids) else []


def read_pairs(store: PairStore, ids: Ids, *, reverse_target: bool = False) -> list[tuple[list[int], list[int]]]:
    """Read source and target token ids; `reverse_target` restores the reading order of targets stored in reverse."""
    src, tgt = (_read_side(side, ids) for side in (store.src, store.tgt))
    step = -1 if reverse_target else 1
    return [(source, target[::step]) for source, target in zip(src, tgt, strict=True)]


def _read_side(side: SideStore, ids: Ids) -> list[list[int]]:
    tokens, lengths = side.gather(ids)
    flat = tokens.tolist()
    return [flat[start:end] for start, end in pairwise([0, *np.cumsum(lengths).tolist()])]
