"""An exponential moving average of the weights (Polyak averaging with forgetting)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from nmt.checkpoint import Tensors


class ExponentialMovingAverage:
    """average += (1 - d) (weights - average) after every update, with d = min(decay, (1 + t) / (10 + t)) at update t.

    The smaller decay of the first updates forgets the random start. Kept in float32 beside the weights; frozen weights
    are part of it, so that it is a whole model.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._model = model
        self._decay = decay
        self._average = {name: weight.detach().clone() for name, weight in model.named_parameters()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take the weights after update number `step`, from 1, into the average."""
        decay = min(self._decay, (1 + step) / (10 + step))
        weights = [weight.detach() for weight in self._model.parameters()]
        torch._foreach_lerp_(list(self._average.values()), weights, weight=1.0 - decay)

    def tensors(self) -> dict[str, Tensor]:
        """A copy of the average on the host."""
        return {name: average.to("cpu", copy=True) for name, average in self._average.items()}

    def load(self, tensors: Tensors) -> None:
        """Go on from what `tensors` gave."""
        for name, average in self._average.items():
            average.copy_(tensors[name])

    @contextmanager
    def in_place_of_weights(self) -> Iterator[None]:
        """For the length of a `with` block the model has the average as its weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        """Exchange the values in place, since the optimiser and DDP hold on to the tensors."""
        for name, weight in self._model.named_parameters():
            own = weight.detach().clone()
            weight.copy_(self._average[name])
            self._average[name].copy_(own)
