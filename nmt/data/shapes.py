"""Micro-batches that all have one size: which size that is, and which pairs of an update share one.

A GPU trains fastest when every step repeats the last one with other numbers. So each micro-batch is padded to the same
number of source tokens, target tokens and sentences, and hardly padded at all, because an update ends where either
side is full, and its pairs are shared out such that its micro-batches are level on both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.packing.packed import BatchShape, max_padding_length

# Tokens of either side of a micro-batch that are left for what cannot be balanced: one for each micro-batch of the
# update, since many have few sentences each, but at least and at most so many.
_LEAST_SLACK, _MOST_SLACK = 8, 24
# Room for source tokens beyond those that come with the target tokens of an update on average, in standard deviations.
# With none, half of the updates would end early, by 0.4 deviations on average, and leave room on the side of targets;
# with half a deviation it is 0.2, and the padding of both sides together is hardly more.
_SRC_DEVIATIONS = 0.5
# Sentences, of padding too, cost nothing: there is room for so many deviations. An update in a thousand has more and
# gets one more micro-batch.
_MOST_DEVIATIONS = 3.0
# Numbers of tokens are multiples of this, as tensor cores like them.
_STEP = 8
# How much more it may count that targets come out level than that sources do, in the order in which that is tried:
# each shares the pairs out in another way, of which one will do.
_WEIGHTS_OF_TARGETS = (1.0, 1.25, 0.8, 1.5, 0.67)


@dataclass(frozen=True)
class UpdateNeeds:
    """What a full update of some text needs.

    mean_src_tokens: how many source tokens come with its target tokens, on average
    src_deviation:   the standard deviation of that, from update to update
    tgt_tokens:      the most target tokens
    num_sentences:   pairs of nearly every update
    longest:         tokens of the longest sentence of either side, its special token included
    """

    mean_src_tokens: float
    src_deviation: float
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
        return cls(
            mean_src_tokens=mean_src_tokens,
            src_deviation=math.sqrt(pairs) * beyond_src,
            tgt_tokens=tgt_tokens,
            num_sentences=pairs + _MOST_DEVIATIONS * math.sqrt(pairs) * beyond_pairs,
            longest=1 + int(max(src_lengths.max(), tgt_lengths.max())),
        )

    @property
    def src_tokens(self) -> int:
        """The most source tokens that an update may have."""
        return math.ceil(self.mean_src_tokens + _SRC_DEVIATIONS * self.src_deviation)

    def shape(self, micro_batch_tokens: int, multiple: int = 1) -> BatchShape:
        """The shape of which an update fills the fewest that have `micro_batch_tokens` on either side, on average.

        Their number is a multiple of `multiple`. Padding comes on top of these tokens, and so does what a sentence
        needs that is as long as this alone.
        """
        parts = _round_up(max(self.mean_src_tokens, self.tgt_tokens) / micro_batch_tokens, multiple)
        slack = max(_LEAST_SLACK, min(parts, _MOST_SLACK)) if parts > 1 else 0
        # An update that ends early lacks target tokens, one with few sources source tokens: padding stands in for them.
        filler = max_padding_length(self.longest)
        lacking = (_MOST_DEVIATIONS + _SRC_DEVIATIONS) * self.src_deviation
        lacking *= max(1.0, self.tgt_tokens / self.mean_src_tokens)
        fillers = math.ceil(lacking / parts / filler) + 2
        src = _round_up(self.src_tokens / parts + slack + fillers)  # each sentence of padding takes a source token
        tgt = _round_up(self.tgt_tokens / parts + slack)
        # The longest sentence fits, and beside it as many of padding as then there are.
        least = _round_up(self.longest + math.ceil(max(src, tgt) / filler) + 1)
        src, tgt = max(src, least), max(tgt, least)
        num_sentences = math.ceil(1.02 * self.num_sentences / parts) + fillers
        # An empty micro-batch is all padding.
        return BatchShape(src, tgt, max(num_sentences, math.ceil(max(src, tgt) / filler) + 1), self.longest)


def fill(
    ids: NDArray[np.integer[Any]],
    src_lengths: NDArray[np.integer[Any]],
    tgt_lengths: NDArray[np.integer[Any]],
    shape: BatchShape,
    multiple: int = 1,
) -> list[NDArray[np.integer[Any]]]:
    """Distribute the pairs `ids` over as few micro-batches of `shape` as they can be balanced in, longest first.

    src_lengths, tgt_lengths: (num_pairs,) tokens of each sentence of the store, special tokens excluded; none may be
    longer than the shape allows. The number of micro-batches is a multiple of `multiple`; some are empty where there
    are too few pairs. Equal arguments give equal results.
    """
    src, tgt = src_lengths[ids].astype(np.int64) + 1, tgt_lengths[ids].astype(np.int64) + 1
    order = np.argsort(-(src + tgt), kind="stable")
    totals = int(src.sum()), int(tgt.sum()), len(ids)
    capacities = shape.src_tokens, shape.tgt_tokens, shape.num_sentences
    fewest = max(math.ceil(total / capacity) for total, capacity in zip(totals, capacities, strict=True))
    parts = _round_up(fewest, multiple)
    while True:
        for weight in _WEIGHTS_OF_TARGETS[: None if parts > 1 else 1]:
            part_of = balance(src, tgt, parts, weight)[order]
            shares = [order[part_of == part] for part in range(parts)]
            if all(shape.holds(int(src[share].sum()), int(tgt[share].sum()), len(share)) for share in shares):
                return [ids[share] for share in shares]
        assert parts < len(ids) + multiple, "each pair by itself must fit"
        parts += multiple


def balance(
    src: NDArray[np.integer[Any]], tgt: NDArray[np.integer[Any]], parts: int, weight_of_tgt: float = 1.0
) -> NDArray[np.int64]:
    """The part of each pair `(num_pairs,)`, chosen to give all parts about as many source and as many target tokens.

    src, tgt: (num_pairs,) tokens of each side. The longest pairs come first; each joins the part in which the sum of
    the squared loads grows least. A pair whose source is long for its target thus joins a part with few source tokens.
    The short pairs, which come last, even out what is left.
    """
    part_of = np.zeros(len(src), dtype=np.int64)
    if parts == 1:
        return part_of
    src_loads, tgt_loads = [0.0] * parts, [0.0] * parts
    order = np.argsort(-(src + tgt), kind="stable")
    src_shares, tgt_shares = ((side[order] / side.sum()).tolist() for side in (src, tgt))
    for pair, x, y in zip(order.tolist(), src_shares, tgt_shares, strict=True):
        weighted = weight_of_tgt * y
        growths = [x * a + weighted * b for a, b in zip(src_loads, tgt_loads, strict=True)]
        best = growths.index(min(growths))
        src_loads[best] += x
        tgt_loads[best] += y
        part_of[pair] = best
    return part_of


def _round_up(number: float, multiple: int = _STEP) -> int:
    return math.ceil(number / multiple) * multiple
