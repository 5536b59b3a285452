"""Which arithmetic the matrix products use."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

from nmt.recipe import UserError

Precision = Literal["auto", "fp32", "bf16", "fp16"]
Arithmetic = Literal["fp32", "bf16", "fp16"]
SearchPrecision = Literal["auto", "fp32", "bf16", "int8"]

_REDUCED = {"bf16": torch.bfloat16, "fp16": torch.float16}


def choose_precision(name: Precision, device: torch.device) -> Arithmetic:
    """bf16 for `auto` where the device multiplies it natively (Ampere and newer, AVX-512-BF16, AMX), else fp32."""
    if name != "auto":
        if name == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
            raise UserError("this GPU has no bf16; precision must be fp32 on it; choose fp32")
        return name
    return "bf16" if _has_native_bf16(device) else "fp32"


def autocast(precision: Arithmetic, device: torch.device) -> AbstractContextManager[object]:
    """A context in which matrix products use `precision`; weights, sums and norms stay in float32."""
    return nullcontext() if precision == "fp32" else torch.autocast(device.type, _REDUCED[precision])


def row_multiple(precision: torch.dtype, device: torch.device) -> int:
    """The number of rows of a matrix product should be a multiple of this.

    In bf16 on a CPU, oneDNN compiles a kernel for every shape it meets, which takes longer than using it: 4.7 against
    0.6 ms for 2,000 rows of 256 on a Xeon with AMX. So there shapes must be few.
    """
    return 64 if precision == torch.bfloat16 and device.type == "cpu" else 1


def torch_dtype(arithmetic: Arithmetic) -> torch.dtype:
    """The type of the numbers that matrix products multiply."""
    return _REDUCED.get(arithmetic, torch.float32)


def _has_native_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
