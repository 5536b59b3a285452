"""Weights laid out once as products want them, for search, which reads each of them at every step."""

from __future__ import annotations

from typing import Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# oneDNN lays weights out for products of about this many rows: a batch of sentences with its beams.
ROWS = 128


class FrozenLinear(nn.Module):
    """x W^T + b with the weights of one or more layers, one below the other, of which no gradient can be asked.

    On a CPU they lie in the blocks that oneDNN multiplies. It would otherwise make these anew for every product: 128
    rows of 512 by 2,048 in bf16 take 580 microseconds instead of 300 on one core of a Xeon with AMX.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight: (out, in), bias: (out,)."""
        super().__init__()
        self.bias = None if bias is None else bias.detach()
        self._lay_out(weight.detach())

    @classmethod
    def of(cls, *layers: Linear) -> Self:
        """All layers in one, their outputs beside each other."""
        assert not any(isinstance(layer, FrozenLinear) for layer in layers), "a model is frozen once"
        weights, biases = zip(*((layer.weight, layer.bias) for layer in layers), strict=True)
        return cls(torch.cat(weights), torch.cat(biases))

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out), the sum of the layers' outs."""
        if not self.is_blocked:
            return F.linear(x, self.weight, self.bias)
        return cast(Tensor, torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], ""))

    @staticmethod
    def stored_type(x: Tensor) -> torch.dtype:
        """The type in which search keeps keys and values that come of x by such products."""
        return x.dtype

    def _lay_out(self, weight: Tensor) -> None:
        self.is_blocked = _multiplies_blocks(weight)
        self.weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS) if self.is_blocked else weight


def _multiplies_blocks(weight: Tensor) -> bool:
    """Whether oneDNN multiplies such weights on this machine; torch's own compiler uses the same operators."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


Linear = nn.Linear | FrozenLinear
