"""Several models that decide together on every token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, assert_never

import torch
from torch import Tensor

from nmt.packing.packed import PackedSequences
from nmt.search.beam_search import OpenModel, StepModel, StepState

EnsembleMean = Literal["linear", "log"]


@dataclass
class EnsembleState:
    """What each model remembers."""

    members: list[StepState]

    def reorder(self, beam_index: Tensor) -> None:
        """See `StepState.reorder`."""
        for member in self.members:
            member.reorder(beam_index)

    def keep(self, sentence_index: Tensor) -> None:
        """See `StepState.keep`."""
        for member in self.members:
            member.keep(sentence_index)


def is_open(model: StepModel[Any] | None) -> bool:
    """Whether sentences may join those that are searched: see `OpenModel`. They may an ensemble if all members."""
    return all(map(is_open, model.models)) if isinstance(model, Ensemble) else isinstance(model, OpenModel)


class Ensemble:
    """A model for search whose distribution is a mean of those of several models with one vocabulary.

    linear  the mean of the probabilities, as in fairseq
    log     the geometric mean, made to sum to one again: a token that one model thinks impossible is
    """

    def __init__(self, models: Sequence[StepModel[Any]], mean: EnsembleMean = "linear") -> None:
        assert models, "an ensemble has at least one member"
        self.models = list(models)
        self.mean = mean

    def start(self, src: PackedSequences, beam_size: int) -> EnsembleState:
        """See `StepModel.start`."""
        return EnsembleState([model.start(src, beam_size) for model in self.models])

    def join(self, src: PackedSequences, state: EnsembleState, steps: int) -> None:
        """See `OpenModel.join`; only where every member is an `OpenModel`."""
        for model, member in zip(self.models, state.members, strict=True):
            assert isinstance(model, OpenModel)
            model.join(src, member, steps)

    def step(self, tokens: Tensor, state: EnsembleState) -> Tensor:
        """See `StepModel.step`."""
        members = zip(self.models, state.members, strict=True)
        log_probs = torch.stack(
            [model.step(tokens, member) for model, member in members]
        )  # (models, batch, beam, vocab)
        match self.mean:
            case "linear":
                return log_probs.logsumexp(dim=0) - math.log(len(self.models))
            case "log":
                return log_probs.mean(dim=0).log_softmax(dim=-1)
            case _:
                assert_never(self.mean)
