"""Shallow fusion: search with a translation model and a language model (Gulcehre et al. 2015).

The score of a token is log p(token | source, prefix) + weight * log p_lm(token | prefix), which is not normalized.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from nmt.packing.packed import PackedSequences
from nmt.search.beam_search import RefillableModel, StepModel
from nmt.search.ensemble import EnsembleState


class Fusion:
    """Wraps a model and adds the weighted log-probabilities of a language model with the same target vocabulary."""

    def __init__(
        self, model: StepModel[Any], language_model: StepModel[Any], weight: float, lm_source: Sequence[int]
    ) -> None:
        """weight: at least 0; lm_source: source token ids of the language model for every sentence."""
        self._model, self._language_model, self._weight, self._lm_source = model, language_model, weight, lm_source

    def start(self, src: PackedSequences, beam_size: int) -> EnsembleState:
        """See `StepModel.start`."""
        model_state = self._model.start(src, beam_size)
        return EnsembleState([model_state, self._language_model.start(self._lm_sources(src), beam_size)])

    def refill(self, src: PackedSequences, state: EnsembleState, steps: int) -> None:
        """See `RefillableModel.refill`; both models must be refillable."""
        model_state, lm_state = state.members
        assert isinstance(self._model, RefillableModel) and isinstance(self._language_model, RefillableModel)
        self._model.refill(src, model_state, steps)
        self._language_model.refill(self._lm_sources(src), lm_state, steps)

    def step(self, tokens: Tensor, state: EnsembleState) -> Tensor:
        """See `StepModel.step`."""
        model_state, lm_state = state.members
        log_probs = self._model.step(tokens, model_state)
        return log_probs.add_(self._language_model.step(tokens, lm_state), alpha=self._weight)

    def _lm_sources(self, src: PackedSequences) -> PackedSequences:
        return PackedSequences.from_lists([list(self._lm_source)] * src.num_sentences).to(src.tokens.device)
