"""Callback with the partial output after each step of a greedy search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from nmt.packing.packed import PackedSequences
from nmt.search.beam_search import StepModel, StepState


class CallbackModel:
    """Wraps a model for the greedy search of one sentence; calls back with the tokens so far before each step."""

    def __init__(self, model: StepModel[Any], on_tokens: Callable[[list[int]], None]) -> None:
        """on_tokens: receives the token ids of the output so far"""
        self._model, self._on_tokens = model, on_tokens
        self._tokens: list[int] = []

    def start(self, src: PackedSequences, beam_size: int) -> StepState:
        """See `StepModel.start`."""
        assert src.num_sentences == beam_size == 1, "only a greedy search of one sentence has one output"
        self._tokens.clear()
        state: StepState = self._model.start(src, beam_size)
        return state

    def step(self, tokens: Tensor, state: StepState) -> Tensor:
        """See `StepModel.step`."""
        self._tokens.append(int(tokens))
        if len(self._tokens) > 1:  # the first one is BOS
            self._on_tokens(self._tokens[1:])
        return self._model.step(tokens, state)
