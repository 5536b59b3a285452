"""Restriction of a model to a vocabulary shortlist for each sentence.

Tokens outside the shortlist have log-probability -inf, and the probabilities of a sentence's candidates sum to 1. The
output projection is computed for the candidates of the whole batch, but the result of a sentence does not depend on
other sentences. Ensemble members are restricted before averaging.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

from torch import Tensor

from nmt.packing.packed import PackedSequences
from nmt.search.beam_search import State, StepModel, StepState
from nmt.search.ensemble import Ensemble


class ProjectingModel(Protocol[State]):
    """A model with an output projection to part of the vocabulary, such as the Transformer."""

    def start(self, src: PackedSequences, beam_size: int) -> State:
        """See `StepModel.start`."""

    def advance(self, tokens: Tensor, state: State) -> Tensor:
        """See `Transformer.advance`."""

    def logits_of(self, tokens: Tensor) -> Callable[[Tensor], Tensor]:
        """See `Transformer.logits_of`."""


def restrict(model: StepModel[Any], candidates: Tensor) -> StepModel[Any]:
    """Restrict a model, or each member of an ensemble, for the search of one batch.

    candidates: (batch, vocab) bool, on the model's device; each sentence has at least one
    """
    if isinstance(model, Ensemble):
        return Ensemble([restrict(member, candidates) for member in model.models], model.mean)
    return RestrictedModel(cast(ProjectingModel[Any], model), candidates)


@dataclass
class _Union:
    """The candidates of all sentences in a batch.

    tokens:      (union,) int64, ascending; may include candidates of sentences that are done
    is_excluded: (batch, 1, union) bool, True for tokens that are not candidates of the sentence
    logits:      projection to these tokens, (..., d_model) -> (..., union)
    batch_size:  number of sentences when the union was computed
    """

    tokens: Tensor
    is_excluded: Tensor
    logits: Callable[[Tensor], Tensor]
    batch_size: int


@dataclass
class RestrictedState:
    """State of the wrapped model, and the candidates of the sentences in the batch, (batch, vocab) bool."""

    inner: StepState
    candidates: Tensor
    union: _Union | None = None

    def reorder(self, beam_index: Tensor) -> None:
        """See `StepState.reorder`."""
        self.inner.reorder(beam_index)

    def select(self, sentence_index: Tensor) -> None:
        """See `StepState.select`."""
        self.inner.select(sentence_index)
        self.candidates = self.candidates.index_select(0, sentence_index)
        if self.union is None:
            return
        if 2 * len(sentence_index) <= self.union.batch_size:  # gathering the weights of a smaller union pays off
            self.union = None
        else:
            self.union.is_excluded = self.union.is_excluded.index_select(0, sentence_index)


class RestrictedModel:
    """Wraps a model for the search of one batch; outputs are restricted to the candidates of each sentence."""

    def __init__(self, model: ProjectingModel[Any], candidates: Tensor) -> None:
        self._model, self._candidates = model, candidates

    def start(self, src: PackedSequences, beam_size: int) -> RestrictedState:
        """See `StepModel.start`."""
        assert len(self._candidates) == src.num_sentences, "one row of candidates per sentence"
        return RestrictedState(self._model.start(src, beam_size), self._candidates)

    def step(self, tokens: Tensor, state: RestrictedState) -> Tensor:
        """See `StepModel.step`."""
        hidden = self._model.advance(tokens, state.inner)  # (batch, beam, d_model)
        if state.union is None:
            state.union = self._unite(state.candidates)
        logits = state.union.logits(hidden).float()  # (batch, beam, union)
        log_probs = logits.masked_fill_(state.union.is_excluded, -math.inf).log_softmax(dim=-1)
        all_log_probs = log_probs.new_full((*tokens.shape, state.candidates.shape[1]), -math.inf)
        return all_log_probs.index_copy_(2, state.union.tokens, log_probs)

    def _unite(self, candidates: Tensor) -> _Union:
        tokens = candidates.any(dim=0).nonzero().squeeze(1)
        is_excluded = ~candidates.index_select(1, tokens)[:, None]
        return _Union(tokens, is_excluded, self._model.logits_of(tokens), len(candidates))
