"""The plan of an epoch: which pairs make which update, and which of them share a micro-batch.

Everything here is a pure function of its arguments. What makes an update depends on the lengths, `batch_tokens`, the
seed and the epoch alone; `micro_batch_tokens` and the number of processes only decide how an update is cut up, so a
recipe means the same on every machine and a run can be resumed on another.

Lengths are as in the token store. Each sentence counts one token more: the end token of a source, and of the labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Lengths = NDArray[np.integer[Any]]
Ids = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class EpochPlan:
    """The updates of one epoch, each cut into micro-batches when it is asked for.

    order:  (num_pairs,) all pair ids in the order of this epoch
    starts: (num_updates+1,) where each update starts in `order`; the last entry is num_pairs
    """

    order: Ids
    starts: NDArray[np.int64]
    src_lengths: Lengths
    tgt_lengths: Lengths
    micro_batch_tokens: int

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
        """The pair ids of an update, sorted by length and cut into micro-batches of nearly the same size.

        There are as few as fit `micro_batch_tokens` on both sides, whatever the number of processes, so that dropout,
        which is drawn per micro-batch, does not depend on it either.
        """
        ids = _by_length(self.sentences(update), self.src_lengths, self.tgt_lengths)
        src_ends, tgt_ends = _ends(self.src_lengths[ids]), _ends(self.tgt_lengths[ids])
        fewest = len(_cut(src_ends, tgt_ends, self.micro_batch_tokens))
        # The smallest budget that needs no more than that is the one that shares out most evenly.
        high = self.micro_batch_tokens
        low = min(high, -(-int(max(src_ends[-1], tgt_ends[-1])) // fewest))
        while low < high:
            middle = (low + high) // 2
            if len(_cut(src_ends, tgt_ends, middle)) <= fewest:
                high = middle
            else:
                low = middle + 1
        return np.split(ids, _cut(src_ends, tgt_ends, high)[:-1])


def plan_epoch(
    src_lengths: Lengths, tgt_lengths: Lengths, *, batch_tokens: int, micro_batch_tokens: int, seed: int, epoch: int
) -> EpochPlan:
    """Shuffle all pairs and cut them into updates of at most `batch_tokens` target tokens.

    src_lengths, tgt_lengths: (num_pairs,) tokens of each sentence, without begin and end token
    An update ends before it would exceed its budget; a sentence that exceeds it alone is an update by itself. The last
    update of an epoch is what remains. Every pair is in exactly one update.
    """
    random = np.random.Generator(np.random.PCG64([seed % (1 << 64), epoch]))
    num_pairs = len(tgt_lengths)
    order = random.permutation(np.arange(num_pairs, dtype=np.int32 if num_pairs < 1 << 31 else np.int64))
    tgt_ends = _ends(tgt_lengths[order])
    starts = np.array([0, *_cut(tgt_ends, tgt_ends, batch_tokens)], dtype=np.int64)
    return EpochPlan(order, starts, src_lengths, tgt_lengths, micro_batch_tokens)


def plan_in_order(src_lengths: Lengths, tgt_lengths: Lengths, *, micro_batch_tokens: int) -> list[Ids]:
    """All pairs sorted by length and cut into micro-batches of at most `micro_batch_tokens` on either side.

    src_lengths, tgt_lengths: (num_pairs,) tokens of each sentence, without begin and end token
    A pair that exceeds the budget alone is a micro-batch by itself. For validation, where order does not matter.
    """
    ids = _by_length(np.arange(len(tgt_lengths)), src_lengths, tgt_lengths)
    cuts = _cut(_ends(src_lengths[ids]), _ends(tgt_lengths[ids]), micro_batch_tokens)
    return np.split(ids, cuts[:-1]) if cuts else []


def _by_length(ids: Ids, src_lengths: Lengths, tgt_lengths: Lengths) -> Ids:
    """Sorted by target, then source length; equal pairs keep their order."""
    sorted_ids: Ids = ids[np.lexsort((src_lengths[ids], tgt_lengths[ids]))]
    return sorted_ids


def _ends(lengths: Lengths) -> NDArray[np.int64]:
    """Where each sentence ends when they lie end to end, with one special token each."""
    return np.cumsum(lengths, dtype=np.int64) + np.arange(1, len(lengths) + 1)


def _cut(src_ends: NDArray[np.int64], tgt_ends: NDArray[np.int64], budget: int) -> list[int]:
    """Where each part ends when every part takes what fits the budget on both sides, but at least one sentence."""
    cuts: list[int] = []
    start = src_base = tgt_base = 0
    while start < len(tgt_ends):
        fit = min(src_ends.searchsorted(src_base + budget, "right"), tgt_ends.searchsorted(tgt_base + budget, "right"))
        start = max(int(fit), start + 1)
        src_base, tgt_base = int(src_ends[start - 1]), int(tgt_ends[start - 1])
        cuts.append(start)
    return cuts
