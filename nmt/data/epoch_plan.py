"""The plan of an epoch: which pairs it shows, which of them make which update, and which share a micro-batch.

Everything here is a pure function of its arguments. Which pairs make an update depends on the lengths, its budgets, the
seed and the epoch alone, so a recipe means the same on every machine and a run can be resumed on another.
`micro_batch_tokens`, a shape and a multiple only decide how an update is split into micro-batches.

Lengths are as in the token store. Each sentence counts one token more: the end token of a source, and of the labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.data.mixture import Mixture, pair_id_dtype
from nmt.data.shapes import balance, fill
from nmt.packing.packed import BatchShape

Lengths = NDArray[np.integer[Any]]
Ids = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class EpochPlan:
    """The updates of one epoch, each split into micro-batches when it is asked for.

    order:    (num_pairs,) pair ids in the order of this epoch: each one once, but for a mixture of corpora, which may
              show a pair several times or not at all
    starts:   (num_updates+1,) where each update starts in `order`; the last entry is num_pairs
    shape:    that of all micro-batches; None where each is as large as its sentences are
    multiple: the number of micro-batches of an update is a multiple of this, so that as many processes, or any number
              that divides it, get equal shares
    """

    order: Ids
    starts: NDArray[np.int64]
    src_lengths: Lengths
    tgt_lengths: Lengths
    micro_batch_tokens: int
    shape: BatchShape | None = None
    multiple: int = 1

    def __len__(self) -> int:
        """Number of updates."""
        return len(self.starts) - 1

    def sentences(self, update: int) -> Ids:
        """The pair ids of an update, `(num_sentences,)`."""
        return self.order[self.starts[update] : self.starts[update + 1]]

    def tgt_tokens(self, update: int) -> int:
        """Number of target tokens of an update, end tokens included."""
        ids = self.sentences(update)
        return int(self.tgt_lengths[ids].sum()) + len(ids)

    def micro_batches(self, update: int) -> list[Ids]:
        """The pair ids of an update, split into the fewest micro-batches that fit and are a multiple of `multiple`.

        Each has at most `micro_batch_tokens` tokens on either side, unless it is a single pair. Micro-batches r,
        r + multiple, r + 2 * multiple, ... hold nearly the same number of tokens for every r. Some are empty where the
        update has too few pairs. With a `shape` they are what `fill` returns.
        """
        if self.shape is not None:
            return fill(self.sentences(update), self.src_lengths, self.tgt_lengths, self.shape, self.multiple)
        return [part for band in self.bands(update) for part in band]

    def bands(self, update: int) -> list[list[Ids]]:
        """The micro-batches of an update without a shape, `multiple` of them in each band.

        A band holds pairs of similar length, which attention over rectangles computes fastest. Its micro-batches are
        balanced.
        """
        ids = _by_length(self.sentences(update), self.src_lengths, self.tgt_lengths)
        src, tgt = _ends(self.src_lengths[ids]), _ends(self.tgt_lengths[ids])
        num_bands = len(_cut(src, tgt, *[self.micro_batch_tokens * self.multiple] * 2))
        while True:
            cuts = _even_cuts(src, tgt, num_bands)
            bands = [self._balanced(band) for band in np.split(ids, cuts[:-1])]
            if all(self._fits(part) for band in bands for part in band):
                return bands
            num_bands += 1

    def _balanced(self, band: Ids) -> list[Ids]:
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
    """Shuffle the pairs of an epoch and cut them into updates of at most `batch_tokens` target tokens.

    src_lengths, tgt_lengths: (num_pairs,) tokens of each sentence, without begin and end token
    src_batch_tokens: the most source tokens of an update; None where there may be any number
    first_pair: plan only what follows this many pairs of the epoch; where an update starts there, the updates are those
                of the whole epoch
    An update ends before it would exceed a budget; a pair that exceeds one alone is an update by itself. The last
    update of an epoch is what remains. Every pair is in exactly one update, unless a `mixture` says otherwise.
    """
    random = np.random.Generator(np.random.PCG64([seed % (1 << 64), epoch]))
    num_pairs = len(tgt_lengths)
    if mixture is None or mixture.shows_each_pair_once:
        ids: Ids = np.arange(num_pairs, dtype=pair_id_dtype(num_pairs))
    else:
        assert sum(mixture.sizes) == num_pairs, "the mixture must be that of the store"
        ids = mixture.sample_epoch(seed, epoch)
    order = random.permutation(ids)
    src_ends, tgt_ends = _ends(src_lengths[order]), _ends(tgt_lengths[order])
    src_budget = int(src_ends[-1:].sum()) if src_batch_tokens is None else src_batch_tokens
    starts = np.array([first_pair, *_cut(src_ends, tgt_ends, src_budget, batch_tokens, first_pair)], dtype=np.int64)
    return EpochPlan(order, starts, src_lengths, tgt_lengths, micro_batch_tokens, shape, multiple)


def plan_in_order(src_lengths: Lengths, tgt_lengths: Lengths, *, micro_batch_tokens: int) -> list[Ids]:
    """All pairs sorted by length and cut into micro-batches of at most `micro_batch_tokens` on either side.

    src_lengths, tgt_lengths: (num_pairs,) tokens of each sentence, without begin and end token
    A pair that exceeds the budget alone is a micro-batch by itself. For validation, where order does not matter.
    """
    ids = _by_length(np.arange(len(tgt_lengths)), src_lengths, tgt_lengths)
    cuts = _cut(_ends(src_lengths[ids]), _ends(tgt_lengths[ids]), micro_batch_tokens, micro_batch_tokens)
    return np.split(ids, cuts[:-1]) if cuts else []


def _by_length(ids: Ids, src_lengths: Lengths, tgt_lengths: Lengths) -> Ids:
    """Sorted by target, then source length; equal pairs keep their order."""
    sorted_ids: Ids = ids[np.lexsort((src_lengths[ids], tgt_lengths[ids]))]
    return sorted_ids


def _ends(lengths: Lengths) -> NDArray[np.int64]:
    """Where each sentence ends when they lie end to end, with one special token each."""
    return np.cumsum(lengths, dtype=np.int64) + np.arange(1, len(lengths) + 1)


def _cut(
    src_ends: NDArray[np.int64], tgt_ends: NDArray[np.int64], src_budget: int, tgt_budget: int, start: int = 0
) -> list[int]:
    """Where each part ends when every part takes what fits both budgets, but at least one sentence.

    The first part begins at sentence `start`.
    """
    cuts: list[int] = []
    src_base, tgt_base = (int(ends[start - 1]) if start else 0 for ends in (src_ends, tgt_ends))
    while start < len(tgt_ends):
        src_fit = src_ends.searchsorted(src_base + src_budget, "right")
        tgt_fit = tgt_ends.searchsorted(tgt_base + tgt_budget, "right")
        start = max(int(min(src_fit, tgt_fit)), start + 1)
        src_base, tgt_base = int(src_ends[start - 1]), int(tgt_ends[start - 1])
        cuts.append(start)
    return cuts


def _even_cuts(src_ends: NDArray[np.int64], tgt_ends: NDArray[np.int64], most: int) -> list[int]:
    """Where each part ends when at most so many parts are as even as they can be, the largest as small as possible."""
    longer = max(int(src_ends[-1]), int(tgt_ends[-1]))
    low, high = -(-longer // most), longer
    while low < high:
        middle = (low + high) // 2
        if len(_cut(src_ends, tgt_ends, middle, middle)) <= most:
            high = middle
        else:
            low = middle + 1
    return _cut(src_ends, tgt_ends, high, high)
