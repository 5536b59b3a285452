"""Keys and values of one self-attention layer."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.kv_cache.slots import Slots
from nmt.packing.padding import padded_width


class Cache(Protocol):
    """KV cache of one self-attention layer."""

    def append(self, keys_values: Tensor) -> Tensor:
        """Append keys and values of a step, (batch, hypotheses, 2, num_heads, d_head).

        Returns all keys and values, (2, batch, num_heads, slots, d_head). Empty slots have finite values, hidden by the
        mask.
        """

    def distances(self) -> Tensor:
        """Return the position of each slot relative to the newest, (slots,) int64, at most 0."""


class KeyValueCache:
    """Keys and values of every hypothesis, including pruned ones until `DecoderState._compact`.

    Reordering hypotheses does not move keys and values. It reorders the small `DecoderState.mask`, which selects the
    slots of each hypothesis.

    stored: (2, batch, num_heads, padded_width(slots.width), d_head), finite in unused slots
    """

    def __init__(self, like: Tensor, slots: Slots) -> None:
        """Create an empty cache with the sizes of `like`, (2, batch, num_heads, any, d_head)."""
        self.stored = like[:, :, :, :0]
        self._slots = slots

    def append(self, keys_values: Tensor) -> Tensor:
        """See `Cache.append`."""
        missing = padded_width(self._slots.width) - self.stored.shape[3]
        if missing:
            # No spare capacity: matmuls of `attend_cached` need contiguous memory.
            self.stored = F.pad(self.stored, (0, 0, 0, missing))
        self._slots.write(self.stored, keys_values)
        return self.stored

    def distances(self) -> Tensor:
        """See `Cache.distances`."""
        steps = self._slots.steps
        unused = [0] * (self.stored.shape[3] - len(steps))
        return torch.tensor([step - steps[-1] for step in steps] + unused, device=self.stored.device)

    def select(self, sentences: Tensor) -> None:
        """Select sentences (n,), in this order."""
        self.stored = self.stored.index_select(1, sentences)

    def select_slots(self, index: Tensor) -> None:
        """Select slots of each sentence, in this order. index: (batch, slots)."""
        parts, batch, num_heads, capacity, d_head = self.stored.shape
        heads = torch.arange(parts * batch * num_heads, device=index.device).view(parts, batch, num_heads, 1)
        rows = (heads * capacity + index[:, None]).flatten()
        self.stored = self.stored.view(-1, d_head).index_select(0, rows).view(parts, batch, num_heads, -1, d_head)
