"""Exponential moving average (EMA) of the parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from nmt.checkpoint import Tensors


class ExponentialMovingAverage:
    """average += (1 - d) (parameters - average), with d = min(decay, (1 + t) / (10 + t)) at update t.

    The decay is smaller in the first updates, to forget the random initialization. The average is kept in float32 on
    the device. It includes frozen parameters, because it is saved as a complete model.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._model = model
        self._decay = decay
        self._average = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the average with the parameters after update `step`, counted from 1."""
        decay = min(self._decay, (1 + step) / (10 + step))
        parameters = [parameter.detach() for parameter in self._model.parameters()]
        torch._foreach_lerp_(list(self._average.values()), parameters, weight=1.0 - decay)

    def tensors(self) -> dict[str, Tensor]:
        """Return a copy of the average on the host."""
        return {name: average.to("cpu", copy=True) for name, average in self._average.items()}

    def load(self, tensors: Tensors) -> None:
        """Load the tensors of a checkpoint."""
        for name, average in self._average.items():
            average.copy_(tensors[name])

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Use the average as the parameters of the model in a `with` block."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        """Swap values in place: the optimizer and DDP hold references to the parameters."""
        for name, parameter in self._model.named_parameters():
            value = parameter.detach().clone()
            parameter.copy_(self._average[name])
            self._average[name].copy_(value)
