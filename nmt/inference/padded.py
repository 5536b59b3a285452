"""Search on a CPU with few distinct batch sizes.

oneDNN compiles a kernel for every shape of a matmul, which takes 0.3 to 3 ms on a Xeon with AMX, and up to 1 MB;
`nmt.inference.prepare` limits how many are kept. As a batch shrinks sentence by sentence, a search encounters hundreds
of shapes. Rows of finished sentences therefore stay in the batch until the others fit the next smaller of a few sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nmt.inference.wrapped import WrappedModel
from nmt.models import TranslationModel
from nmt.packing.packed import PackedSequences

# Batch sizes between a power of two and the next.
_SIZES_PER_DOUBLING = 4


def padded_size(count: int) -> int:
    """Round up to one of `_SIZES_PER_DOUBLING` sizes between powers of two."""
    step = max(1, (1 << (count.bit_length() - 1)) // _SIZES_PER_DOUBLING)
    return -(-count // step) * step


@dataclass
class PaddedState:
    """State of one search.

    inner: a `StepState` of the model, for all rows
    order: (rows,) int64, the rows of sentences in the batch, in their order, then idle rows
    count: number of sentences in the batch
    """

    inner: Any
    order: Tensor
    count: int

    @property
    def active(self) -> Tensor:
        """Rows of the sentences, (count,)."""
        return self.order[: self.count]

    def expand(self, values: Tensor) -> Tensor:
        """Values of the sentences (count, ...) -> values of all rows, zeros in idle rows."""
        return values.new_zeros(len(self.order), *values.shape[1:]).index_copy_(0, self.active, values)

    def reorder(self, beam_index: Tensor) -> None:
        """See `StepState.reorder`. In idle rows, all hypotheses continue the first one, so their caches stay small."""
        self.inner.reorder(self.expand(beam_index))

    def select(self, sentence_index: Tensor) -> None:
        """See `StepState.select`."""
        is_idle = torch.ones_like(self.order, dtype=torch.bool)
        active = self.order.index_select(0, sentence_index)
        is_idle[active] = False
        self.order = torch.cat([active, is_idle.nonzero().squeeze(1)])
        self.count = len(active)
        size = padded_size(self.count)
        if size < len(self.order):
            self.inner.select(self.order[:size])
            self.order = torch.arange(size, device=self.order.device)


class PaddedModel(WrappedModel[TranslationModel]):
    """Wraps a model for search and pads its batches; the results stay the same. See the module docstring."""

    def start(self, src: PackedSequences, beam_size: int) -> PaddedState:
        """See `StepModel.start`."""
        rows = torch.arange(src.num_sentences, device=src.tokens.device)
        return PaddedState(self._model.start(src, beam_size), rows, len(rows))

    def step(self, tokens: Tensor, state: PaddedState) -> Tensor:
        """See `StepModel.step`."""
        return self._model.log_probs(self._advance(tokens, state))[: state.count]

    def advance(self, tokens: Tensor, state: PaddedState) -> Tensor:
        """See `Transformer.advance`."""
        return self._advance(tokens, state)[: state.count]

    def _advance(self, tokens: Tensor, state: PaddedState) -> Tensor:
        """Last tokens (batch, beam) -> decoder output of all rows, those of the sentences first."""
        return self._model.advance(state.expand(tokens), state.inner).index_select(0, state.order)
