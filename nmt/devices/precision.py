"""Which arithmetic the matrix products use, and what the device offers for it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch

from nmt.recipe import UserError

Precision = Literal["auto", "fp32", "bf16", "fp16"]
Arithmetic = Literal["fp32", "bf16", "fp16"]
SearchPrecision = Literal["auto", "fp32", "bf16", "fp16", "int8"]

_REDUCED = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class DeviceFeatures:
    """What a device can do.

    kind:       `cpu` or `cuda`
    capability: compute capability of a GPU, such as (7, 5); (0, 0) for a CPU
    """

    kind: str
    capability: tuple[int, int] = (0, 0)

    @property
    def has_native_bf16(self) -> bool:
        """Whether it multiplies bf16 itself, where torch would else emulate it."""
        if self.kind == "cuda":
            return self.capability >= (8, 0)
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def device_features(device: torch.device) -> DeviceFeatures:
    """The features of a device, which is asked once; a CUDA device must have an index."""
    return _query_features(device)


# torch.compile takes the result as a constant. This is all that `torch.compiler.assume_constant_result` does besides
# importing the compiler, which takes a second.
device_features._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache
def _query_features(device: torch.device) -> DeviceFeatures:
    if device.type != "cuda":
        return DeviceFeatures(device.type)
    return DeviceFeatures("cuda", torch.cuda.get_device_capability(device))


def choose_precision(name: Precision, device: torch.device) -> Arithmetic:
    """bf16 for `auto` where the device multiplies it natively (Ampere and newer, AVX-512-BF16, AMX), else fp32."""
    if name != "auto":
        features = device_features(device)
        if name == "bf16" and features.kind == "cuda" and not features.has_native_bf16:
            raise UserError(
                f"precision is bf16, but this GPU has compute capability {'.'.join(map(str, features.capability))} and "
                "only emulates it; it must be 8.0 or higher; choose fp16 or fp32"
            )
        return name
    return "bf16" if device_features(device).has_native_bf16 else "fp32"


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
