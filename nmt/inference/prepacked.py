"""Linear layers with weights prepacked for matmuls, because search reads every weight at every step."""

from __future__ import annotations

from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.model.layers import Output
from nmt.model.multi_head import CrossAttention
from nmt.models import TranslationModel

# Input rows that oneDNN packs weights for: about the number of hypotheses of a batch.
ROWS = 128

AnyModel = TypeVar("AnyModel", bound=TranslationModel)


class PrepackedLinear(nn.Module):
    """x W^T + b without gradients.

    On a CPU, weights have oneDNN's blocked layout. Otherwise oneDNN converts them for every matmul: (128, 512) by
    (512, 2048) in bf16 takes 580 µs instead of 300 µs on one core of a Xeon with AMX.
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
        """Return the dtype of the cross-attention cache; None: the dtype of the encoder's output."""
        return None

    def _pack(self, weight: Tensor) -> None:
        self.is_blocked = _supports_blocked(weight)
        self.weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS) if self.is_blocked else weight


class PrepackedOutput(nn.Module):
    """Prepacked output projection. The projection to part of the vocabulary uses the plain weights."""

    def __init__(self, plain: Output, layer_type: type[PrepackedLinear]) -> None:
        super().__init__()
        self.restricted = plain.restricted
        self.whole = layer_type(plain.weight, plain.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_model) -> (..., vocab)."""
        return cast(Tensor, self.whole(x))


def prepack(model: AnyModel, layer_type: type[PrepackedLinear] = PrepackedLinear) -> AnyModel:
    """Replace every linear layer of `model` in place and return the model, which can no longer be trained or saved.

    GRU layers are not replaced. Scores may differ by rounding; with `QuantizedLinear`, some translations change.
    """
    parents = [(parent, name) for parent in model.modules() for name, _ in parent.named_children()]
    for parent, name in parents:
        layer = getattr(parent, name)
        assert not isinstance(layer, PrepackedLinear), "the model is already prepacked"
        if isinstance(layer, nn.Linear):
            setattr(parent, name, layer_type(layer.weight, layer.bias))
        elif isinstance(layer, Output):
            setattr(parent, name, PrepackedOutput(layer, layer_type))
    for module in model.modules():
        if isinstance(module, CrossAttention):
            module.cache_dtype = layer_type.cache_dtype(model.tgt_embedding.weight.device)
    return model


def _supports_blocked(weight: Tensor) -> bool:
    """Return whether oneDNN supports such weights on this machine. torch.compile uses the same operators."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32
