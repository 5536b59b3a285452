"""A model that chooses among some target pieces only, other ones for each sentence, and computes the others never.

All that is not among the candidates of a sentence has log-probability -inf, and the probabilities of its candidates sum
to 1. So what a sentence gets does not depend on its neighbours, though the projection to the vocabulary is computed for
the candidates of all sentences of the batch together. Each model of an ensemble is restricted by itself, and then they
decide together as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

from torch import Tensor

from nmt.packing.packed import PackedSequences
from nmt.search.beam_search import State, StepModel, StepState
from nmt.search.ensemble import Ensemble


class ProjectingModel(Protocol[State]):
    """A model that can be asked for the scores of some target pieces alone, such as the Transformer."""

    def start(self, src: PackedSequences, beam_size: int) -> State:
        """See `StepModel.start`."""

    def advance(self, tokens: Tensor, state: State) -> Tensor:
        """See `Transformer.advance`."""

    def logits_of(self, pieces: Tensor) -> Callable[[Tensor], Tensor]:
        """See `Transformer.logits_of`."""


def restrict(model: StepModel[Any], candidates: Tensor) -> StepModel[Any]:
    """The model, or ensemble of models, for the search of one batch whose sentences have these candidates.

    candidates: (batch, vocab) bool, on the model's device; each sentence has at least one
    """
    if isinstance(model, Ensemble):
        return Ensemble([restrict(member, candidates) for member in model.models], model.mean)
    return Restricted(cast(ProjectingModel[Any], model), candidates)


@dataclass
class _Union:
    """What the sentences of a batch have in common.

    pieces:  (union,) int64, ascending, the candidates of all of them, or a few more
    foreign: (batch, 1, union) bool, which of these a sentence does not have
    logits:  the scores of these pieces, (..., d_model) -> (..., union)
    size:    number of sentences when they were gathered
    """

    pieces: Tensor
    foreign: Tensor
    logits: Callable[[Tensor], Tensor]
    size: int


@dataclass
class RestrictedState:
    """What the model remembers, with the candidates (batch, vocab) of the sentences that are left."""

    inner: StepState
    candidates: Tensor
    union: _Union | None = None

    def reorder(self, beam_index: Tensor) -> None:
        """See `StepState.reorder`."""
        self.inner.reorder(beam_index)

    def keep(self, sentence_index: Tensor) -> None:
        """See `StepState.keep`."""
        self.inner.keep(sentence_index)
        self.candidates = self.candidates.index_select(0, sentence_index)
        if self.union is None:
            return
        if 2 * len(sentence_index) <= self.union.size:  # fewer candidates are worth gathering their weights anew
            self.union = None
        else:
            self.union.foreign = self.union.foreign.index_select(0, sentence_index)


class Restricted:
    """A model for the search of one batch, the sentences of which have candidates of their own."""

    def __init__(self, model: ProjectingModel[Any], candidates: Tensor) -> None:
        self._model, self._candidates = model, candidates

    def start(self, src: PackedSequences, beam_size: int) -> RestrictedState:
        """See `StepModel.start`."""
        assert len(self._candidates) == src.num_sentences, "each sentence has its candidates"
        return RestrictedState(self._model.start(src, beam_size), self._candidates)

    def step(self, tokens: Tensor, state: RestrictedState) -> Tensor:
        """See `StepModel.step`."""
        hidden = self._model.advance(tokens, state.inner)  # (batch, beam, d_model)
        if state.union is None:
            state.union = self._gather(state.candidates)
        scores = state.union.logits(hidden).float()  # (batch, beam, union)
        log_probs = scores.masked_fill_(state.union.foreign, float("-inf")).log_softmax(dim=-1)
        all_log_probs = log_probs.new_full((*tokens.shape, state.candidates.shape[1]), float("-inf"))
        return all_log_probs.index_copy_(2, state.union.pieces, log_probs)

    def _gather(self, candidates: Tensor) -> _Union:
        pieces = candidates.any(dim=0).nonzero().squeeze(1)
        foreign = ~candidates.index_select(1, pieces)[:, None]
        return _Union(pieces, foreign, self._model.logits_of(pieces), len(candidates))
