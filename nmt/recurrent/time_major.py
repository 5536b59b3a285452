"""Packed sentences in the order of a recurrent layer: all first tokens, then all second tokens, and so on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nmt.devices.transfer import to_device
from nmt.packing.packed import PackedSequences
from nmt.packing.padding import permute


@dataclass(frozen=True)
class TimeMajor:
    """The order of the tokens of packed sentences, the longest sentence first at each position, without padding.

    order, inverse: (total,) int64, index of the packed token of each row, and row of each packed token
    sentences:      (rows of the first position,) int64, sentence of each row; empty sentences have none
    batch_sizes:    (max_length,) int64, number of rows of each position, on the host; they never increase
    """

    order: Tensor
    inverse: Tensor
    sentences: Tensor
    batch_sizes: Tensor

    @classmethod
    def of(cls, packed: PackedSequences) -> TimeMajor:
        """Compute the order from the lengths on the host."""
        sizes, device = packed.sizes, packed.tokens.device
        longest_first = np.argsort(-sizes, kind="stable")
        longest_first = longest_first[: np.count_nonzero(sizes)]
        starts = np.cumsum(sizes) - sizes
        batch_sizes = [int(np.count_nonzero(sizes > position)) for position in range(int(sizes.max(initial=0)))]
        rows = [starts[longest_first[:size]] + position for position, size in enumerate(batch_sizes)]
        order = np.concatenate(rows or [np.empty(0, np.int64)])
        return cls(
            order=to_device(order, device),
            inverse=to_device(np.argsort(order), device),
            sentences=to_device(longest_first, device),
            batch_sizes=torch.tensor(batch_sizes, dtype=torch.int64),
        )

    def from_packed(self, packed: Tensor) -> Tensor:
        """(total, width), packed sentences -> (total, width) in this order."""
        return permute(packed, self.order, self.inverse)

    def to_packed(self, rows: Tensor) -> Tensor:
        """Invert `from_packed`."""
        return permute(rows, self.inverse, self.order)
