"""Micro-batches that all have one size: which size that is, and which pairs of an update share one.

A GPU trains fastest when every step repeats the last one with other numbers. So each micro-batch is padded to the same
number of source tokens, target tokens and sentences, and hardly padded at all, because the pairs of an update are
shared out such that its micro-batches are level on both sides. Targets decide how much an update holds, so it is their
side that is full; sources are as many as come along with them, and their side has room for nearly any update.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.packed import BatchShape, longest_padding

# Tokens of either side of a micro-batch that are left for what does not come out level.
_SLACK = 16
# What varies from update to update has room for so many standard deviations. An update in a thousand needs more and
# gets one more micro-batch; room for that one would cost every update as much.
_DEVIATIONS = 3.0
# Numbers of tokens are multiples of this, as tensor cores like them.
_STEP = 8
# How much more it counts that targets come out level than that sources do, which have more room.
_WEIGHT_OF_TARGETS = 2.0


@dataclass(frozen=True)
class UpdateNeeds:
    """What a full update of some text needs.

    mean_src_tokens:           how many source tokens come with its target tokens, on average
    src_tokens, num_sentences: the same and how many pairs, in nearly every update
    tgt_tokens:                exactly so many or a little less
    longest:                   tokens of the longest sentence of either side, its special token included
    """

    mean_src_tokens: float
    src_tokens: float
    tgt_tokens: int
    num_sentences: float
    longest: int

    @classmethod
    def of(
        cls, src_lengths: NDArray[np.integer[Any]], tgt_lengths: NDArray[np.integer[Any]], *, batch_tokens: int
    ) -> UpdateNeeds:
        """Of updates of `batch_tokens` target tokens; lengths of pairs `(num_pairs,)`, without special tokens.

        An update is a random sample, so what it needs beside its target tokens is nearly normally distributed.
        """
        num_pairs, src_total, tgt_total = len(tgt_lengths), int(src_lengths.sum()), int(tgt_lengths.sum())
        tgt_tokens = min(batch_tokens, tgt_total + num_pairs)
        mean_tgt = tgt_total / num_pairs + 1
        pairs = tgt_tokens / mean_tgt
        mean_src_tokens = pairs * (src_total / num_pairs + 1)
        # What a pair has beyond its share; a pair of average target length has none.
        ratio = mean_src_tokens / tgt_tokens
        beyond_src = float(np.std(src_lengths - ratio * tgt_lengths))
        beyond_pairs = float(np.std(tgt_lengths)) / mean_tgt
        spread = _DEVIATIONS * math.sqrt(pairs)
        return cls(
            mean_src_tokens=mean_src_tokens,
            src_tokens=mean_src_tokens + spread * beyond_src,
            tgt_tokens=tgt_tokens,
            num_sentences=pairs + spread * beyond_pairs,
            longest=1 + int(max(src_lengths.max(), tgt_lengths.max())),
        )

    def shape(self, micro_batch_tokens: int) -> BatchShape:
        """The shape of which an update fills the fewest that have `micro_batch_tokens` on either side, on average.

        Padding comes on top of them, and so does what a sentence needs that is as long as this alone.
        """
        parts = math.ceil(max(self.mean_src_tokens, self.tgt_tokens) / micro_batch_tokens)
        slack = _SLACK if parts > 1 else 0
        src, tgt = (_round_up(tokens / parts + slack) for tokens in (self.src_tokens, self.tgt_tokens))
        # The longest sentence fits, and beside it a source token for each sentence of padding.
        filler = longest_padding(self.longest)
        least = _round_up(self.longest + math.ceil(max(src, tgt) / filler) + 1)
        src, tgt = max(src, least), max(tgt, least)
        # Sources may be as far below their mean as there is room above it; and an empty micro-batch is all padding.
        padding = math.ceil(2 * (src - self.mean_src_tokens / parts) / filler) + 1
        num_sentences = math.ceil(1.02 * self.num_sentences / parts) + padding
        return BatchShape(src, tgt, max(num_sentences, math.ceil(max(src, tgt) / filler) + 1), self.longest)


def fill(
    ids: NDArray[np.integer[Any]],
    src_lengths: NDArray[np.integer[Any]],
    tgt_lengths: NDArray[np.integer[Any]],
    shape: BatchShape,
) -> list[NDArray[np.integer[Any]]]:
    """Share the pairs `ids` out among as few micro-batches of `shape` as they can be levelled in, longest first.

    src_lengths, tgt_lengths: (num_pairs,) tokens of each sentence of the store, special tokens excluded; none may be
    longer than the shape allows. The same for the same arguments, whatever the number of processes.
    """
    src, tgt = src_lengths[ids].astype(np.int64) + 1, tgt_lengths[ids].astype(np.int64) + 1
    order = np.argsort(-(src + tgt), kind="stable")
    totals = int(src.sum()), int(tgt.sum()), len(ids)
    capacities = shape.src_tokens, shape.tgt_tokens, shape.num_sentences
    parts = max(math.ceil(total / capacity) for total, capacity in zip(totals, capacities, strict=True))
    while True:
        part_of = _level(src[order], tgt[order], parts)
        shares = [order[part_of == part] for part in range(parts)]
        if all(shape.holds(int(src[share].sum()), int(tgt[share].sum()), len(share)) for share in shares):
            return [ids[share] for share in shares]
        assert parts < len(ids), "each pair by itself must fit"
        parts += 1


def _level(src: NDArray[np.int64], tgt: NDArray[np.int64], parts: int) -> NDArray[np.int64]:
    """The part of each pair `(num_pairs,)` such that all parts have about as many source and as many target tokens.

    Pair by pair it is the one in which the sum of the squared loads grows least: a pair whose source is long for its
    target goes where sources are few for the targets. The longest should come first, the short ones then level it.
    """
    if parts == 1:
        return np.zeros(len(src), dtype=np.int64)
    src_loads, tgt_loads = [0.0] * parts, [0.0] * parts
    places = range(parts)
    part_of = np.empty(len(src), dtype=np.int64)
    src_shares, tgt_shares = (src / src.sum()).tolist(), (tgt / tgt.sum()).tolist()
    for pair, (x, y) in enumerate(zip(src_shares, tgt_shares, strict=True)):
        weighted = _WEIGHT_OF_TARGETS * y
        growths = [x * src_loads[part] + weighted * tgt_loads[part] for part in places]
        best = growths.index(min(growths))
        src_loads[best] += x
        tgt_loads[best] += y
        part_of[pair] = best
    return part_of


def _round_up(tokens: float) -> int:
    return math.ceil(tokens / _STEP) * _STEP
