"""Keys and values of self-attention layers, and the slots that store them."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

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


class Slots:
    """Slots of the KV caches that each sentence uses, the same in all layers.

    width: at least the number of slots of each sentence
    steps: decoder step that filled each slot; invalid after the first compaction
    """

    def __init__(self) -> None:
        self.width = 0
        self.steps: list[int] = []
        self._ends: Tensor | None = None  # (batch,) slots of each sentence; None if all of them use `width`
        self._new = (torch.empty(0), torch.empty(0))  # sentences (batch, 1) and slots (batch, hypotheses) of this step

    def extend(self, hypotheses: int, mask: Tensor) -> None:
        """Add a slot per hypothesis, and unmask it for the hypothesis. mask: as in `DecoderState`, wide enough."""
        first = self.width
        self.width += hypotheses
        if self._ends is None:
            step = self.steps[-1] + 1 if self.steps else 0
            self.steps += [step] * hypotheses
            new = mask[:, 0, :, first : self.width]  # (batch, beam, hypotheses)
            if hypotheses == 1:  # all hypotheses share the slot
                new.zero_()
            else:
                new.diagonal(dim1=1, dim2=2).zero_()
            return
        index = self._ends[:, None] + torch.arange(hypotheses, device=mask.device)
        mask.scatter_(3, index[:, None, :, None], 0.0)
        self._new = (torch.arange(len(index), device=mask.device)[:, None], index)
        self._ends = self._ends + hypotheses

    def write(self, stored: Tensor, keys_values: Tensor) -> None:
        """Write the keys and values of this step. For the shapes, see `KeyValueCache`."""
        if self._ends is None:
            stored[:, :, :, self.width - keys_values.shape[1] : self.width] = heads_first(keys_values)
        else:
            sentences, slots = self._new
            stored[:, sentences, :, slots] = keys_values.to(stored.dtype)

    def select(self, sentences: Tensor) -> None:
        """Select sentences (n,), in this order."""
        if self._ends is not None:
            self._ends = self._ends.index_select(0, sentences)

    def compact(self, is_used: Tensor) -> Tensor:
        """Keep the used slots of each sentence, in order. is_used: (batch, slots) bool.

        Returns the former index of each slot, (batch, padded_width(width)) int64; a sentence may use fewer.
        """
        self._ends = is_used.sum(dim=1)
        self.width = int(self._ends.max())
        return (~is_used).int().argsort(dim=1, stable=True)[:, : padded_width(self.width)]


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


def heads_first(keys_values: Tensor) -> Tensor:
    """(batch, slots, 2, num_heads, d_head) -> (2, batch, num_heads, slots, d_head)."""
    return keys_values.permute(2, 0, 3, 1, 4)
