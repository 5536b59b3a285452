"""Which arithmetic the matrix products use."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

from nmt.recipe import UserError

Precision = Literal["auto", "fp32", "bf16"]


def choose_precision(name: Precision, device: torch.device) -> Literal["fp32", "bf16"]:
    """bf16 for `auto` where the device multiplies it natively (Ampere and newer, AVX-512-BF16, AMX), else fp32."""
    if name != "auto":
        if name == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
            raise UserError("this GPU has no bf16; precision must be fp32 on it; choose fp32")
        return name
    return "bf16" if _has_native_bf16(device) else "fp32"


def autocast(precision: Literal["fp32", "bf16"], device: torch.device) -> AbstractContextManager[object]:
    """A context in which matrix products use `precision`; weights, sums and norms stay in float32."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


def _has_native_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
