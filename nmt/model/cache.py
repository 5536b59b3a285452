"""Decoder state during search: KV cache, cross-attention cache and their masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.packing.padding import padded_width


class Cache(Protocol):
    """KV cache of one self-attention."""

    def append(self, keys_values: Tensor) -> Tensor:
        """Append keys and values of a step, (batch, hypotheses, 2, num_heads, d_head).

        Returns all keys and values, (2, batch, num_heads, slots, d_head). Empty slots have finite values, hidden by the
        mask.
        """

    def distances(self) -> Tensor:
        """Return the position of each slot relative to the newest, (slots,) int64, at most 0."""


class KeyValueCache:
    """Keys and values of every hypothesis so far, including pruned ones.

    Reordering hypotheses does not move keys and values. It reorders the small `DecoderState.mask`, which selects the
    slots of each hypothesis.

    stored: (2, batch, num_heads, padded_width(length), d_head), zeros after the first `length` slots
    """

    def __init__(self, like: Tensor) -> None:
        """Create an empty cache with the sizes of `like`, (2, batch, num_heads, any, d_head)."""
        self.stored = like[:, :, :, :0]
        self.length = 0
        self._steps: list[int] = []  # step of each slot

    def append(self, keys_values: Tensor) -> Tensor:
        """See `Cache.append`."""
        first, self.length = self.length, self.length + keys_values.shape[1]
        self._steps += [self._steps[-1] + 1 if self._steps else 0] * keys_values.shape[1]
        missing = padded_width(self.length) - self.stored.shape[3]
        if missing:
            # No spare capacity: matmuls of `attend_cached` need contiguous memory.
            self.stored = F.pad(self.stored, (0, 0, 0, missing))
        self.stored[:, :, :, first : self.length] = heads_first(keys_values)
        return self.stored

    def distances(self) -> Tensor:
        """See `Cache.distances`."""
        unused = [0] * (self.stored.shape[3] - self.length)
        return torch.tensor([step - self._steps[-1] for step in self._steps] + unused, device=self.stored.device)

    def select(self, sentences: Tensor) -> None:
        """Select sentences (n,), in this order."""
        self.stored = self.stored.index_select(1, sentences)


def heads_first(keys_values: Tensor) -> Tensor:
    """(batch, slots, 2, num_heads, d_head) -> (2, batch, num_heads, slots, d_head)."""
    return keys_values.permute(2, 0, 3, 1, 4)


CacheT = TypeVar("CacheT", bound=Cache)


@dataclass
class LayerState(Generic[CacheT]):
    """State of one decoder layer.

    memory: cross-attention keys and values, shared by all hypotheses, (2, batch, num_heads, padded src_len, d_head)
    """

    cache: CacheT
    memory: Tensor


class DecoderStepState(Protocol):
    """State that a decoder step reads and updates: `DecoderState`, or buffers of fixed size."""

    @property
    def layers(self) -> Sequence[LayerState[Any]]:
        """States of the layers."""

    @property
    def memory_mask(self) -> Tensor:
        """See `DecoderState`."""

    def extend(self, hypotheses: int) -> Tensor:
        """Add one slot per hypothesis; return the mask of the cache, (batch, 1, hypotheses, slots)."""


@dataclass
class DecoderState:
    """State of search between steps. Masks are additive, in the dtype of the caches.

    memory_mask: (batch, 1, 1, padded src_len), -inf at source padding
    mask:        (batch, 1, beam, capacity), 0 at the slots of a hypothesis and its ancestors, -inf elsewhere
    slots:       used slots of the cache; the first step adds one, later steps one per hypothesis
    length:      number of steps taken
    """

    layers: list[LayerState[KeyValueCache]]
    memory_mask: Tensor
    mask: Tensor
    slots: int = 0
    length: int = 0

    def extend(self, hypotheses: int) -> Tensor:
        """See `DecoderStepState.extend`. In the first step, all hypotheses of a sentence may share one slot."""
        first, self.slots = self.slots, self.slots + hypotheses
        width = padded_width(self.slots)
        if width > self.mask.shape[3]:
            self.mask = F.pad(self.mask, (0, 4 * width - self.mask.shape[3]), value=float("-inf"))
        new = self.mask[:, 0, :, first : self.slots]  # (batch, beam, hypotheses)
        (new if hypotheses == 1 else new.diagonal(dim1=1, dim2=2)).zero_()
        self.length += 1
        return self.mask[:, :, :hypotheses, :width]

    def reorder(self, beam_index: Tensor) -> None:
        """Make hypothesis j of sentence b continue hypothesis `beam_index[b, j]`; beam_index: (batch, beam)."""
        self.mask = self.mask.gather(2, beam_index[:, None, :, None].expand_as(self.mask))

    def select(self, sentence_index: Tensor) -> None:
        """Select sentences (n,), in this order."""
        self.memory_mask = self.memory_mask.index_select(0, sentence_index)
        self.mask = self.mask.index_select(0, sentence_index)
        for layer in self.layers:
            layer.cache.select(sentence_index)
            layer.memory = layer.memory.index_select(1, sentence_index)
