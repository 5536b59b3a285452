"""Which sentences are searched together: such as are about equally long, the longest first.

If memory is too small, it shows at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from nmt.data.packing import plan_in_order

# A sentence counts as at least this long, since each also costs `beam_size` rows of logits at every step.
_MIN_COST = 16

Group = tuple[list[int], int]  # which sentences, and how many of them at a time


def batches(lengths: Sequence[int], budget: int) -> Iterator[Group]:
    """All of a batch at a time, for a model that begins all of them at once.

    lengths: (num_sentences,) tokens of each source with its end token; budget: of a batch, in tokens
    """
    words = np.array(lengths, dtype=np.int64) - 1  # the plan counts the end token itself
    costs = np.maximum(words, _MIN_COST - 1)
    for ids in reversed(plan_in_order(words, costs, micro_batch_tokens=budget)):
        yield ids.tolist(), len(ids)


def crowds(lengths: Sequence[int], budget: int) -> Iterator[Group]:
    """All that fit into memory of one size, for a model that takes in the next when others are done.

    Lengths are rounded up to powers of two, and so many go at a time, as `nmt.model.buffers.Shape` has them.
    """
    costs = [max(_MIN_COST, 1 << (length - 1).bit_length()) for length in lengths]
    for cost in sorted(set(costs), reverse=True):
        ids = [sentence for sentence, own in enumerate(costs) if own == cost]
        rows = 1 << (max(1, budget // cost).bit_length() - 1)
        yield ids, min(rows, len(ids))
