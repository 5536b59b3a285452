"""Prepare loaded models for search: precision, prepacked weights, and captured steps on a GPU."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from nmt.devices.precision import choose_precision, torch_dtype
from nmt.inference.captured import CapturedModel, can_capture
from nmt.inference.padded import PaddedModel
from nmt.inference.prepacked import prepack
from nmt.inference.quantized import QuantizedLinear
from nmt.models import TranslationModel
from nmt.recipe import SearchPrecision

SearchModel = TranslationModel | CapturedModel | PaddedModel

# oneDNN and torch's interface to it each cache compiled kernels, one for every shape of a matmul. By default they keep
# 1,024 each, which takes hundreds of megabytes in a server, whose batches have many shapes; 128 are as fast.
_KERNEL_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "128"}


def prepare_for_search(
    models: Sequence[TranslationModel], precision: SearchPrecision, device: torch.device
) -> list[SearchModel]:
    """Convert models in place; on a GPU, capture their steps if all models support it; on a CPU, use few batch sizes.

    Raises UserError if the device does not support the precision.
    """
    if device.type == "cpu":
        for variable, capacity in _KERNEL_CACHES.items():
            os.environ.setdefault(variable, capacity)  # read at the first matmul of the process
    packed = [_prepacked(model, precision, device) for model in models]
    if device.type == "cuda" and all(map(can_capture, packed)):
        return [CapturedModel(model) for model in packed if can_capture(model)]
    return [PaddedModel(model) for model in packed] if device.type == "cpu" else list(packed)


def _prepacked(model: TranslationModel, precision: SearchPrecision, device: torch.device) -> TranslationModel:
    if precision == "int8":
        return prepack(model, QuantizedLinear)
    return prepack(model.to(torch_dtype(choose_precision(precision, device))))
