"""Weights packed once in the layout that matmuls need, for search, which reads each of them at every step."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.model.layers import Output
from nmt.model.multi_head import CrossAttention
from nmt.model.transformer import Transformer

# oneDNN packs weights for matmuls of about this many rows: a batch of sentences with its beams.
ROWS = 128


class PrepackedLinear(nn.Module):
    """x W^T + b without gradients.

    On a CPU the weights lie in the blocks that oneDNN multiplies. It would otherwise make these for every matmul: 128
    rows of 512 by 2,048 in bf16 take 580 microseconds instead of 300 on one core of a Xeon with AMX.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight: (out, in), bias: (out,)."""
        super().__init__()
        self.bias = None if bias is None else bias.detach()
        self._pack(weight.detach())

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        if not self.is_blocked:
            return F.linear(x, self.weight, self.bias)
        return cast(Tensor, torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], ""))

    @staticmethod
    def cache_dtype(device: torch.device) -> torch.dtype | None:
        """The dtype in which search stores the keys and values of the encoder's output; None: that of the output."""
        return None

    def _pack(self, weight: Tensor) -> None:
        self.is_blocked = _multiplies_blocks(weight)
        self.weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS) if self.is_blocked else weight


class PrepackedOutput(nn.Module):
    """The projection to the vocabulary, prepacked; a part of the vocabulary is projected to by the plain weights."""

    def __init__(self, plain: Output, kind: type[PrepackedLinear]) -> None:
        super().__init__()
        self.restricted = plain.restricted
        self.whole = kind(plain.weight, plain.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_model) -> (..., vocab)."""
        return cast(Tensor, self.whole(x))


def prepack(model: Transformer, kind: type[PrepackedLinear] = PrepackedLinear) -> Transformer:
    """Replace every linear layer of `model` by its prepacked kind, after which it can be neither trained nor saved.

    The same translations; scores may differ by the rounding of a sum taken in another order. With `QuantizedLinear`
    some translations change.
    """
    parents = [(parent, name) for parent in model.modules() for name, _ in parent.named_children()]
    for parent, name in parents:
        layer = getattr(parent, name)
        assert not isinstance(layer, PrepackedLinear), "a model is prepacked once"
        if isinstance(layer, nn.Linear):
            setattr(parent, name, kind(layer.weight, layer.bias))
        elif isinstance(layer, Output):
            setattr(parent, name, PrepackedOutput(layer, kind))
    for module in model.modules():
        if isinstance(module, CrossAttention):
            module.cache_dtype = kind.cache_dtype(model.tgt_embedding.weight.device)
    return model


def _multiplies_blocks(weight: Tensor) -> bool:
    """Whether oneDNN multiplies such weights on this machine; torch's own compiler uses the same operators."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32
