"""The plan of an epoch: the pairs of each update, and their split into micro-batches.

All functions are pure. The pairs of an update depend only on the lengths, the budgets, the mixture, the seed and the
epoch, so a recipe gives the same updates on every machine, and a run can resume on another one.
`micro_batch_tokens`, `shape` and `multiple` only determine how an update is split.

Lengths are those of the token store; token counts add one per sentence, for the EOS of sources and labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.data.mixture import Mixture, pair_id_dtype
from nmt.packing.packed import BatchShape
from nmt.packing.shapes import balance, pack_pairs

Lengths = NDArray[np.integer[Any]]
Ids = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class EpochPlan:
    """The updates of one epoch, split into micro-batches on demand.

    order:    (num_pairs,) pair ids in the order of this epoch; a mixture may repeat or skip pairs
    starts:   (num_updates + 1,) start of each update in `order`; the last entry is num_pairs
    shape:    fixed shape of all micro-batches; None if they are not padded
    multiple: the number of micro-batches of an update is a multiple of this, to divide evenly among ranks
    """

    order: Ids
    starts: NDArray[np.int64]
    src_lengths: Lengths
    tgt_lengths: Lengths
    micro_batch_tokens: int
    shape: BatchShape | None = None
    multiple: int = 1

    def __len__(self) -> int:
        """Return the number of updates."""
        return len(self.starts) - 1

    def sentences(self, update: int) -> Ids:
        """Return the pair ids of an update, `(num_sentences,)`."""
        return self.order[self.starts[update] : self.starts[update + 1]]

    def tgt_tokens(self, update: int) -> int:
        """Return the number of target tokens of an update, including EOS."""
        ids = self.sentences(update)
        return int(self.tgt_lengths[ids].sum()) + len(ids)

    def micro_batches(self, update: int) -> list[Ids]:
        """Split the pair ids of an update into micro-batches; their number is a multiple of `multiple`.

        Each has at most `micro_batch_tokens` tokens on either side, unless it is a single pair. The total tokens of
        micro-batches r, r + multiple, r + 2 * multiple, ... are nearly equal for all r. Some are empty if the update
        has too few pairs. For a fixed `shape`, see `pack_pairs`.
        """
        if self.shape is not None:
            return pack_pairs(self.sentences(update), self.src_lengths, self.tgt_lengths, self.shape, self.multiple)
        return [part for band in self.bands(update) for part in band]

    def bands(self, update: int) -> list[list[Ids]]:
        """Split an update without a shape into bands of `multiple` balanced micro-batches.

        The pairs of a band have similar lengths, which reduces the padding in attention.
        """
        ids = _by_length(self.sentences(update), self.src_lengths, self.tgt_lengths)
        src, tgt = _ends(self.src_lengths[ids]), _ends(self.tgt_lengths[ids])
        budget = self.micro_batch_tokens * self.multiple
        num_bands = len(_split_greedily(src, tgt, budget, budget))
        while True:
            ends = _split_evenly(src, tgt, num_bands)
            bands = [self._balance(band) for band in np.split(ids, ends[:-1])]
            if all(self._fits(part) for band in bands for part in band):
                return bands
            num_bands += 1

    def _balance(self, band: Ids) -> list[Ids]:
        if self.multiple == 1:
            return [band]
        part_of = balance(self.src_lengths[band] + 1, self.tgt_lengths[band] + 1, self.multiple)
        return [band[part_of == part] for part in range(self.multiple)]

    def _fits(self, ids: Ids) -> bool:
        longer = max(int(self.src_lengths[ids].sum()), int(self.tgt_lengths[ids].sum()))
        return len(ids) <= 1 or longer + len(ids) <= self.micro_batch_tokens


def plan_epoch(
    src_lengths: Lengths,
    tgt_lengths: Lengths,
    *,
    batch_tokens: int,
    src_batch_tokens: int | None = None,
    micro_batch_tokens: int,
    seed: int,
    epoch: int,
    mixture: Mixture | None = None,
    shape: BatchShape | None = None,
    multiple: int = 1,
    first_pair: int = 0,
) -> EpochPlan:
    """Shuffle the pairs of an epoch and split them into updates of at most `batch_tokens` target tokens.

    src_lengths, tgt_lengths: (num_pairs,) tokens of each sentence, without BOS and EOS
    src_batch_tokens: maximum source tokens of an update; None for no limit
    first_pair: skip this many pairs of the epoch; if an update starts there, it and all later ones are unchanged

    A pair that exceeds a budget is an update by itself. The last update has the remaining pairs. Without a `mixture`,
    every pair is in exactly one update.
    """
    random = np.random.Generator(np.random.PCG64([seed % (1 << 64), epoch]))
    num_pairs = len(tgt_lengths)
    if mixture is None or mixture.contains_each_pair_once:
        order: Ids = np.arange(num_pairs, dtype=pair_id_dtype(num_pairs))
    else:
        assert sum(mixture.sizes) == num_pairs, "the mixture must match the store"
        order = mixture.sample_epoch(seed, epoch)
    random.shuffle(order)  # in place: a copy of millions of pairs costs memory in every process
    src_ends, tgt_ends = _ends(src_lengths[order]), _ends(tgt_lengths[order])
    src_budget = int(src_ends[-1:].sum()) if src_batch_tokens is None else src_batch_tokens
    ends = _split_greedily(src_ends, tgt_ends, src_budget, batch_tokens, first_pair)
    starts = np.array([first_pair, *ends], dtype=np.int64)
    return EpochPlan(order, starts, src_lengths, tgt_lengths, micro_batch_tokens, shape, multiple)


def plan_by_length(src_lengths: Lengths, tgt_lengths: Lengths, *, micro_batch_tokens: int) -> list[Ids]:
    """Sort all pairs by length and split them into micro-batches of at most `micro_batch_tokens` on either side.

    For uses in which the order does not matter. A pair that exceeds the budget is a micro-batch by itself.

    src_lengths, tgt_lengths: (num_pairs,) tokens of each sentence, without BOS and EOS
    """
    ids = _by_length(np.arange(len(tgt_lengths)), src_lengths, tgt_lengths)
    ends = _split_greedily(_ends(src_lengths[ids]), _ends(tgt_lengths[ids]), micro_batch_tokens, micro_batch_tokens)
    return np.split(ids, ends[:-1]) if ends else []


def _by_length(ids: Ids, src_lengths: Lengths, tgt_lengths: Lengths) -> Ids:
    """Sort stably by target length, then by source length."""
    sorted_ids: Ids = ids[np.lexsort((src_lengths[ids], tgt_lengths[ids]))]
    return sorted_ids


def _ends(lengths: Lengths) -> NDArray[np.int64]:
    """Return the end of each sentence in the concatenation, with one special token per sentence."""
    ends = lengths.astype(np.int64)
    ends += 1
    return np.cumsum(ends, out=ends)


def _split_greedily(
    src_ends: NDArray[np.int64], tgt_ends: NDArray[np.int64], src_budget: int, tgt_budget: int, start: int = 0
) -> list[int]:
    """Split greedily from sentence `start`; each part has as many sentences as both budgets allow, at least one.

    Returns the end of each part.
    """
    ends: list[int] = []
    while start < len(tgt_ends):
        src_before = int(src_ends[start - 1]) if start else 0
        tgt_before = int(tgt_ends[start - 1]) if start else 0
        src_fit = src_ends.searchsorted(src_before + src_budget, "right")
        tgt_fit = tgt_ends.searchsorted(tgt_before + tgt_budget, "right")
        start = max(int(min(src_fit, tgt_fit)), start + 1)
        ends.append(start)
    return ends


def _split_evenly(src_ends: NDArray[np.int64], tgt_ends: NDArray[np.int64], max_parts: int) -> list[int]:
    """Split into at most `max_parts` parts and minimize the largest; return the end of each part."""
    longer = max(int(src_ends[-1]), int(tgt_ends[-1]))
    low, high = -(-longer // max_parts), longer
    while low < high:
        middle = (low + high) // 2
        if len(_split_greedily(src_ends, tgt_ends, middle, middle)) <= max_parts:
            high = middle
        else:
            low = middle + 1
    return _split_greedily(src_ends, tgt_ends, high, high)
