"""A model with its weights rounded as CTranslate2 stores them.

An export with smaller weights is compared with this model. So the comparison need not allow for the rounding, and finds
a wrong weight however small its effect is.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from nmt.export.ctranslate2 import Quantization
from nmt.model.transformer import Transformer

_HALF: dict[str, torch.dtype] = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8_float16": torch.float16,
    "int8_bfloat16": torch.bfloat16,
}


@torch.no_grad()
def round_weights(model: Transformer, quantization: Quantization) -> Transformer:
    """A float32 copy of a model that computes with the rounded weights; the model itself for float32.

    int8 is for matrices, with a scale for each row; all else is then stored in the type that the name ends in.
    """
    if quantization == "float32":
        return model
    rounded = copy.deepcopy(model)
    half = _HALF.get(quantization)
    for tensor in (*rounded.parameters(), *rounded.buffers()):
        is_matrix = isinstance(tensor, nn.Parameter) and tensor.dim() == 2
        if is_matrix and quantization.startswith("int8"):
            tensor.copy_(_to_int8_and_back(tensor))
        elif half is not None and tensor.is_floating_point():
            tensor.copy_(tensor.to(half))
    return rounded


def _to_int8_and_back(weight: Tensor) -> Tensor:
    """(rows, columns) -> the same shape; the largest number of each row is 127 steps."""
    steps = weight.new_tensor(
        127.0
    )  # a tensor, since `127.0 / tensor` rounds twice and now and then takes another step
    largest = weight.abs().amax(dim=1, keepdim=True)
    scale = steps / largest.where(largest > 0, steps)
    return (weight * scale).round() / scale
