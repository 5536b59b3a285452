"""Prefixes that end within a word: constrained search for tokens that spell given bytes.

The complete words of a prefix such as "Wie geh" are forced tokens (`nmt.search.constraints`). The last word is not,
because the tokens of "geht" need not begin with those of "geh". A token is possible if it is a prefix of the
remaining bytes, or the remaining bytes are a prefix of it. All possible tokens keep their log-probability.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from nmt.packing.packed import PackedSequences
from nmt.search.beam_search import StepModel, StepState
from nmt.text.spelling import Spelling


@dataclass
class PartialWordState:
    """State of the wrapped model, and progress through the partial words.

    starts:    (batch,) number of forced tokens before the partial word
    remaining: (batch, beam) remaining bytes that each hypothesis must spell
    steps:     number of steps taken
    """

    inner: StepState
    starts: list[int]
    remaining: list[list[bytes]]
    steps: int = 0

    def reorder(self, beam_index: Tensor) -> None:
        """See `StepState.reorder`."""
        self.inner.reorder(beam_index)
        if self.is_open:
            rows = zip(self.remaining, beam_index.tolist(), strict=True)
            self.remaining = [[row[j] for j in index] for row, index in rows]

    def select(self, sentence_index: Tensor) -> None:
        """See `StepState.select`."""
        self.inner.select(sentence_index)
        rows = sentence_index.tolist()
        self.starts = [self.starts[row] for row in rows]
        self.remaining = [self.remaining[row] for row in rows]

    @property
    def is_open(self) -> bool:
        """Whether a hypothesis has bytes left to spell."""
        return any(map(any, self.remaining))


class PartialWordModel:
    """Wraps a model for the search of one batch; outputs spell given bytes after their prefix."""

    def __init__(
        self, model: StepModel[Any], spelling: Spelling, prefixes: Sequence[Sequence[int]], texts: Sequence[bytes]
    ) -> None:
        """prefixes, texts: the forced tokens of each sentence, and the bytes after them; empty for no constraint."""
        self._model, self._spelling = model, spelling
        self._starts, self._texts = [len(prefix) for prefix in prefixes], texts

    def start(self, src: PackedSequences, beam_size: int) -> PartialWordState:
        """See `StepModel.start`."""
        remaining = [[text] * beam_size for text in self._texts]
        return PartialWordState(self._model.start(src, beam_size), self._starts, remaining)

    def step(self, tokens: Tensor, state: PartialWordState) -> Tensor:
        """See `StepModel.step`."""
        log_probs = self._model.step(tokens, state.inner)
        if state.is_open:
            for row, (start, last) in enumerate(zip(state.starts, tokens.tolist(), strict=True)):
                if state.steps > start:
                    state.remaining[row] = list(map(self._spelling.rest, state.remaining[row], last))
                if state.steps >= start:
                    for hypothesis, rest in enumerate(state.remaining[row]):
                        self._constrain(log_probs[row, hypothesis], rest)
        state.steps += 1
        return log_probs

    def _constrain(self, log_probs: Tensor, rest: bytes) -> None:
        """Make tokens that do not agree with `rest` impossible, in place. log_probs: (vocab,)"""
        if rest:
            possible = self._spelling.agreeing(rest)
            possible_log_probs = log_probs[possible]
            log_probs.fill_(-math.inf)
            log_probs[possible] = possible_log_probs
