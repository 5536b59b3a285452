"""What the decoder keeps from one step of search to the next: keys, values, and who may attend to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.packing.rectangle import padded_width


class Cache(Protocol):
    """Where one self-attention finds the keys and values of earlier steps, and leaves its own."""

    def append(self, keys_values: Tensor) -> Tensor:
        """Add those of a step, (batch, hypotheses, 2, num_heads, d_head).

        Returns all so far, (2, batch, num_heads, slots, d_head). Slots that nothing has filled hold finite numbers,
        which the mask hides.
        """

    def distances(self) -> Tensor:
        """Steps from the newest one to that of each slot, (slots,) int64, 0 or less; for relative positions."""


class KeyValueCache:
    """Keys and values of one self-attention, of every hypothesis that a sentence has had so far.

    They are never moved when hypotheses end and others take their place. Which slots are a hypothesis's own past is
    said by `DecoderState.mask` alone, whose reordering moves few numbers.

    stored: (2, batch, num_heads, padded_width(length), d_head), keys and values, and zeros behind the first `length`
    """

    def __init__(self, like: Tensor) -> None:
        """Empty, for as many sentences, heads and features as (2, batch, num_heads, any, d_head) has."""
        self.stored = like[:, :, :, :0]
        self.length = 0
        self._steps: list[int] = []  # at which each slot was added

    def append(self, keys_values: Tensor) -> Tensor:
        """See `Cache.append`."""
        first, self.length = self.length, self.length + keys_values.shape[1]
        self._steps += [self._steps[-1] + 1 if self._steps else 0] * keys_values.shape[1]
        more = padded_width(self.length) - self.stored.shape[3]
        if more:
            # No spare capacity: the matmuls of `attend_cached` need all of it contiguous.
            self.stored = F.pad(self.stored, (0, 0, 0, more))
        self.stored[:, :, :, first : self.length] = heads_first(keys_values)
        return self.stored

    def distances(self) -> Tensor:
        """See `Cache.distances`."""
        behind = [0] * (self.stored.shape[3] - self.length)
        return torch.tensor([step - self._steps[-1] for step in self._steps] + behind, device=self.stored.device)

    def keep(self, sentences: Tensor) -> None:
        """Keep only these sentences, in this order; (kept,)."""
        self.stored = self.stored.index_select(1, sentences)


def heads_first(keys_values: Tensor) -> Tensor:
    """(batch, slots, 2, num_heads, d_head) -> (2, batch, num_heads, slots, d_head)."""
    return keys_values.permute(2, 0, 3, 1, 4)


AnyCache = TypeVar("AnyCache", bound=Cache)


@dataclass
class LayerState(Generic[AnyCache]):
    """What one decoder layer keeps during search.

    memory: (2, batch, num_heads, padded src_len, d_head), keys and values, never copied for each hypothesis
    """

    cache: AnyCache
    memory: Tensor


class StepState(Protocol):
    """What a step of the decoder reads and updates: `DecoderState`, or buffers of fixed size."""

    @property
    def layers(self) -> Sequence[LayerState[Any]]:
        """Of each layer in turn."""

    @property
    def memory_mask(self) -> Tensor:
        """See `DecoderState`."""

    def extend(self, hypotheses: int) -> Tensor:
        """Add a slot for each hypothesis of the step; the new mask of the cache, (batch, 1, hypotheses, slots)."""


@dataclass
class DecoderState:
    """Everything that search carries from one step to the next.

    Masks are additive and have the dtype of what is stored, as torch's fused attention requires.

    memory_mask: (batch, 1, 1, padded src_len), -inf behind the end of a source sentence
    mask:        (batch, 1, beam, capacity), 0 at the slots of the cache that are a hypothesis's own past, else -inf
    slots:       of the cache; the first step adds one, each later one as many as there are hypotheses
    length:      steps so far
    """

    layers: list[LayerState[KeyValueCache]]
    memory_mask: Tensor
    mask: Tensor
    slots: int = 0
    length: int = 0

    def extend(self, hypotheses: int) -> Tensor:
        """See `StepState.extend`; (batch, 1, hypotheses, padded slots).

        At the first step the hypotheses of a sentence are equal, and may share one slot.
        """
        first, self.slots = self.slots, self.slots + hypotheses
        width = padded_width(self.slots)
        if width > self.mask.shape[3]:
            self.mask = F.pad(self.mask, (0, 4 * width - self.mask.shape[3]), value=float("-inf"))
        new = self.mask[:, 0, :, first : self.slots]  # (batch, beam, hypotheses)
        (new if hypotheses == 1 else new.diagonal(dim1=1, dim2=2)).zero_()
        self.length += 1
        return self.mask[:, :, :hypotheses, :width]

    def reorder(self, beam_index: Tensor) -> None:
        """Hypothesis j of sentence b continues what hypothesis `beam_index[b, j]` was; beam_index: (batch, beam)."""
        self.mask = self.mask.gather(2, beam_index[:, None, :, None].expand_as(self.mask))

    def keep(self, sentence_index: Tensor) -> None:
        """Keep only these sentences of the batch, in this order; sentence_index: (kept,)."""
        self.memory_mask = self.memory_mask.index_select(0, sentence_index)
        self.mask = self.mask.index_select(0, sentence_index)
        for layer in self.layers:
            layer.cache.keep(sentence_index)
            layer.memory = layer.memory.index_select(1, sentence_index)
