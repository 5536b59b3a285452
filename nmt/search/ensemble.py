"""Ensembles of models that share a vocabulary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, assert_never

import torch
from torch import Tensor

from nmt.packing.packed import PackedSequences
from nmt.search.beam_search import RefillableModel, StepModel, StepState

EnsembleMean = Literal["linear", "log"]


@dataclass
class EnsembleState:
    """The state of each member."""

    members: list[StepState]

    def reorder(self, beam_index: Tensor) -> None:
        """See `StepState.reorder`."""
        for member in self.members:
            member.reorder(beam_index)

    def select(self, sentence_index: Tensor) -> None:
        """See `StepState.select`."""
        for member in self.members:
            member.select(sentence_index)


def is_refillable(model: StepModel[Any]) -> bool:
    """Return whether a model, or every member of an ensemble, supports continuous batching."""
    if isinstance(model, Ensemble):
        return all(map(is_refillable, model.models))
    return isinstance(model, RefillableModel)


class Ensemble:
    """A model that averages the distributions of its members.

    linear  the mean of the probabilities, as in fairseq
    log     the renormalized geometric mean: a token that one member considers impossible is impossible
    """

    def __init__(self, models: Sequence[StepModel[Any]], mean: EnsembleMean = "linear") -> None:
        assert models, "an ensemble has at least one member"
        self.models = list(models)
        self.mean = mean

    def start(self, src: PackedSequences, beam_size: int) -> EnsembleState:
        """See `StepModel.start`."""
        return EnsembleState([model.start(src, beam_size) for model in self.models])

    def refill(self, src: PackedSequences, state: EnsembleState, steps: int) -> None:
        """See `RefillableModel.refill`; all members must be refillable."""
        for model, member in zip(self.models, state.members, strict=True):
            assert isinstance(model, RefillableModel)
            model.refill(src, member, steps)

    def step(self, tokens: Tensor, state: EnsembleState) -> Tensor:
        """See `StepModel.step`."""
        members = zip(self.models, state.members, strict=True)
        log_probs = torch.stack([model.step(tokens, member) for model, member in members])
        match self.mean:
            case "linear":
                return log_probs.logsumexp(dim=0) - math.log(len(self.models))
            case "log":
                return log_probs.mean(dim=0).log_softmax(dim=-1)
            case _:
                assert_never(self.mean)
