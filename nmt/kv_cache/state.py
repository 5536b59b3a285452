"""State of the decoder between two steps of search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from torch import Tensor
from torch.nn import functional as F

from nmt.kv_cache.cache import Cache, KeyValueCache, Slots
from nmt.packing.padding import padded_width

# Steps between compactions. A compaction copies the used part of the caches once.
_COMPACTION_INTERVAL = 16

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

    memory_mask:    (batch, 1, 1, padded src_len), -inf at source padding
    mask:           (batch, 1, beam, capacity), 0 at the slots of a hypothesis and its ancestors, -inf elsewhere
    slots:          used slots of the caches; the first step adds one, later steps one per hypothesis
    can_compact:    whether slots of pruned hypotheses may be removed: not if `Cache.distances` are needed
    length:         number of steps taken
    """

    layers: list[LayerState[KeyValueCache]]
    memory_mask: Tensor
    mask: Tensor
    slots: Slots
    can_compact: bool
    length: int = 0

    def extend(self, hypotheses: int) -> Tensor:
        """See `DecoderStepState.extend`. In the first step, all hypotheses of a sentence may share one slot."""
        if self.can_compact and self.length and self.length % _COMPACTION_INTERVAL == 0:
            self._compact()
        width = padded_width(self.slots.width + hypotheses)
        if width > self.mask.shape[3]:  # extra capacity, to copy the mask rarely
            self.mask = F.pad(self.mask, (0, 4 * width - self.mask.shape[3]), value=float("-inf"))
        self.slots.extend(hypotheses, self.mask)
        self.length += 1
        return self.mask[:, :, :hypotheses, :width]

    def reorder(self, beam_index: Tensor) -> None:
        """Make hypothesis j of sentence b continue hypothesis `beam_index[b, j]`; beam_index: (batch, beam)."""
        self.mask = self.mask.gather(2, beam_index[:, None, :, None].expand_as(self.mask))

    def select(self, sentence_index: Tensor) -> None:
        """Select sentences (n,), in this order."""
        self.memory_mask = self.memory_mask.index_select(0, sentence_index)
        self.mask = self.mask.index_select(0, sentence_index)
        self.slots.select(sentence_index)
        for layer in self.layers:
            layer.cache.select(sentence_index)
            layer.memory = layer.memory.index_select(1, sentence_index)

    def _compact(self) -> None:
        """Remove the slots that no hypothesis attends to anymore.

        Each sentence is compacted independently, so its rounding errors do not depend on the batch.
        """
        capacity = self.layers[0].cache.stored.shape[3]
        is_used = (self.mask[:, 0, :, :capacity] == 0).any(dim=1)  # (batch, slots)
        index = self.slots.compact(is_used)
        self.mask = self.mask.gather(3, index[:, None, None].expand(-1, -1, self.mask.shape[2], -1))
        for layer in self.layers:
            layer.cache.select_slots(index)
