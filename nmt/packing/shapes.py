"""Fixed-shape micro-batches: select the shape, and balance the pairs of an update over micro-batches.

A training step that is compiled as one graph (`nmt.train.compilation`) needs the same shapes every time. Each
micro-batch is padded to the same number of source tokens, target tokens and sentences. Padding is small: an update ends
when either side is full, and its pairs are balanced on both sides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.packing.packed import BatchShape, max_padding_length

# Tokens per side of a micro-batch reserved for imbalance: one per micro-batch of the update, within these limits,
# because many micro-batches have few sentences each.
_MIN_SLACK, _MAX_SLACK = 8, 24
# Capacity for source tokens above the mean, in standard deviations. With 0, half of the updates end early, and their
# target side needs padding; the mean excess over all updates is 0.4 deviations. With 0.5, it is 0.2 deviations, with
# hardly more padding in total.
_SRC_DEVIATIONS = 0.5
# Capacity for sentences, in standard deviations above the mean; spare capacity costs nothing. One update in a thousand
# has more sentences and gets another micro-batch.
_MAX_DEVIATIONS = 3.0
# Tensor cores are efficient for multiples of 8.
_TOKENS_MULTIPLE = 8
# Weights of the target side in `balance`, in the order in which they are tried until one fits.
_TGT_WEIGHTS = (1.0, 1.25, 0.8, 1.5, 0.67)


@dataclass(frozen=True)
class UpdateStatistics:
    """Size of a full update.

    mean_src_tokens: mean number of source tokens
    src_deviation:   standard deviation of the number of source tokens
    tgt_tokens:      maximum number of target tokens
    num_sentences:   number of pairs that few updates exceed
    longest:         tokens of the longest sentence of either side, including its special token
    """

    mean_src_tokens: float
    src_deviation: float
    tgt_tokens: int
    num_sentences: float
    longest: int

    @classmethod
    def from_lengths(
        cls, src_lengths: NDArray[np.integer[Any]], tgt_lengths: NDArray[np.integer[Any]], *, batch_tokens: int
    ) -> UpdateStatistics:
        """Estimate the size of updates of `batch_tokens` target tokens from the lengths `(num_pairs,)` of all pairs.

        An update is a random sample of pairs, so its other counts are nearly normally distributed.
        """
        num_pairs, src_total, tgt_total = len(tgt_lengths), int(src_lengths.sum()), int(tgt_lengths.sum())
        tgt_tokens = min(batch_tokens, tgt_total + num_pairs)
        mean_tgt = tgt_total / num_pairs + 1
        pairs = tgt_tokens / mean_tgt
        mean_src_tokens = pairs * (src_total / num_pairs + 1)
        # Deviations given the number of target tokens.
        ratio = mean_src_tokens / tgt_tokens
        src_residual = float(np.std(src_lengths - ratio * tgt_lengths))
        pairs_residual = float(np.std(tgt_lengths)) / mean_tgt
        return cls(
            mean_src_tokens=mean_src_tokens,
            src_deviation=math.sqrt(pairs) * src_residual,
            tgt_tokens=tgt_tokens,
            num_sentences=pairs + _MAX_DEVIATIONS * math.sqrt(pairs) * pairs_residual,
            longest=1 + int(max(src_lengths.max(), tgt_lengths.max())),
        )

    @property
    def src_tokens(self) -> int:
        """Maximum source tokens of an update."""
        return math.ceil(self.mean_src_tokens + _SRC_DEVIATIONS * self.src_deviation)

    def shape(self, micro_batch_tokens: int, multiple: int = 1) -> BatchShape:
        """Return the shape for the fewest micro-batches with at most `micro_batch_tokens` per side, on average.

        The number of micro-batches is a multiple of `multiple`. Padding, and capacity for the longest sentence, come
        on top of `micro_batch_tokens`.
        """
        parts = _round_up(max(self.mean_src_tokens, self.tgt_tokens) / micro_batch_tokens, multiple)
        slack = max(_MIN_SLACK, min(parts, _MAX_SLACK)) if parts > 1 else 0
        # Padding fills the target side of updates that end early, and the source side of those with short sources.
        padding_length = max_padding_length(self.longest)
        missing = (_MAX_DEVIATIONS + _SRC_DEVIATIONS) * self.src_deviation
        missing *= max(1.0, self.tgt_tokens / self.mean_src_tokens)
        padding_sentences = math.ceil(missing / parts / padding_length) + 2
        src = _round_up(self.src_tokens / parts + slack + padding_sentences)  # each has at least one source token
        tgt = _round_up(self.tgt_tokens / parts + slack)
        # Capacity for the longest sentences, and on the source side for a token of each sentence that pads the targets.
        tgt = max(tgt, _round_up(self.longest))
        src = max(src, _round_up(self.longest + math.ceil(tgt / padding_length) + 1))
        num_sentences = math.ceil(1.02 * self.num_sentences / parts) + padding_sentences
        # An empty micro-batch has only padding.
        return BatchShape(src, tgt, max(num_sentences, math.ceil(max(src, tgt) / padding_length) + 1), self.longest)


def pack_pairs(
    ids: NDArray[np.integer[Any]],
    src_lengths: NDArray[np.integer[Any]],
    tgt_lengths: NDArray[np.integer[Any]],
    shape: BatchShape,
    multiple: int = 1,
) -> list[NDArray[np.integer[Any]]]:
    """Distribute the pairs `ids` over the fewest micro-batches of `shape` into which they can be balanced.

    src_lengths, tgt_lengths: (num_pairs,) tokens of each sentence of the store, without special tokens
    multiple: the number of micro-batches is a multiple of this; some are empty if there are too few pairs

    Deterministic.
    """
    src, tgt = src_lengths[ids].astype(np.int64) + 1, tgt_lengths[ids].astype(np.int64) + 1
    order = np.argsort(-(src + tgt), kind="stable")
    totals = int(src.sum()), int(tgt.sum()), len(ids)
    capacities = shape.src_tokens, shape.tgt_tokens, shape.num_sentences
    fewest = max(math.ceil(total / capacity) for total, capacity in zip(totals, capacities, strict=True))
    parts = _round_up(fewest, multiple)
    while True:
        for weight in _TGT_WEIGHTS if parts > 1 else (1.0,):  # one part needs no balance
            part_of = balance(src, tgt, parts, weight)[order]
            members = [order[part_of == part] for part in range(parts)]
            if all(shape.holds(int(src[part].sum()), int(tgt[part].sum()), len(part)) for part in members):
                return [ids[part] for part in members]
        assert parts < len(ids) + multiple, "every single pair must fit"
        parts += multiple


def balance(
    src: NDArray[np.integer[Any]], tgt: NDArray[np.integer[Any]], parts: int, tgt_weight: float = 1.0
) -> NDArray[np.int64]:
    """Assign pairs to parts with similar numbers of source and of target tokens, `(num_pairs,)`.

    Greedy, longest pairs first: each pair goes to the part where the sum of squared loads grows least, so a pair with a
    long source goes to a part with few source tokens. The short pairs at the end balance the rest.

    src, tgt: (num_pairs,) tokens of each side
    """
    part_of = np.zeros(len(src), dtype=np.int64)
    if parts == 1:
        return part_of
    src_loads, tgt_loads = [0.0] * parts, [0.0] * parts
    order = np.argsort(-(src + tgt), kind="stable")
    src_fractions, tgt_fractions = ((side[order] / side.sum()).tolist() for side in (src, tgt))
    for pair, x, y in zip(order.tolist(), src_fractions, tgt_fractions, strict=True):
        weighted = tgt_weight * y
        growths = [x * a + weighted * b for a, b in zip(src_loads, tgt_loads, strict=True)]
        best = growths.index(min(growths))
        src_loads[best] += x
        tgt_loads[best] += y
        part_of[pair] = best
    return part_of


def _round_up(number: float, multiple: int = _TOKENS_MULTIPLE) -> int:
    return math.ceil(number / multiple) * multiple
