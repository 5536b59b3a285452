"""Precision of matmuls, and the features of a device that determine it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch

from nmt.errors import UserError
from nmt.logs import warn

Precision = Literal["auto", "fp32", "bf16", "fp16"]
ComputeType = Literal["fp32", "bf16", "fp16"]

_REDUCED = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class DeviceFeatures:
    """Features of a device.

    kind:       `cpu` or `cuda`
    capability: compute capability of a GPU, such as (7, 5); (0, 0) on a CPU
    """

    kind: str
    capability: tuple[int, int] = (0, 0)

    @property
    def has_native_bf16(self) -> bool:
        """Return whether bf16 matmuls are native rather than emulated."""
        if self.kind == "cuda":
            return self.capability >= (8, 0)
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def device_features(device: torch.device) -> DeviceFeatures:
    """Return the features of a device, cached; a CUDA device must have an index."""
    return _query_features(device)


# A constant for torch.compile. `torch.compiler.assume_constant_result` does the same, but imports the compiler, which
# takes a second.
device_features._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache
def _query_features(device: torch.device) -> DeviceFeatures:
    if device.type != "cuda":
        return DeviceFeatures(device.type)
    return DeviceFeatures("cuda", torch.cuda.get_device_capability(device))


def choose_precision(name: Precision, device: torch.device) -> ComputeType:
    """Resolve `auto` to bf16 if it is native (Ampere and newer, AVX-512-BF16, AMX), else to fp32.

    Warns of fp16 on a CPU that emulates it: on an AMD EPYC, matmuls take 40 times as long as in fp32.

    Raises UserError for bf16 on a GPU that emulates it.
    """
    features = device_features(device)
    if name == "auto":
        return "bf16" if features.has_native_bf16 else "fp32"
    if name == "bf16" and features.kind == "cuda" and not features.has_native_bf16:
        raise UserError(
            f"precision is bf16, but this GPU has compute capability {'.'.join(map(str, features.capability))} and "
            "only emulates it; bf16 needs 8.0 or higher; choose fp16 or fp32"
        )
    if name == "fp16" and device.type == "cpu" and _emulates_fp16():
        _warn_of_slow_fp16()
    return name


def _emulates_fp16() -> bool:
    """Return whether the CPU is an x86 without fp16 instructions; False on other architectures."""
    return torch.cpu._is_avx2_supported() and not torch.ops.mkldnn._is_mkldnn_fp16_supported()


@cache
def _warn_of_slow_fp16() -> None:
    """Warn once per process."""
    warn("precision is fp16, which this CPU has no instructions for, so it is slower than fp32; use auto, bf16 or fp32")


def autocast(precision: ComputeType, device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which matmuls use `precision`; parameters, sums and norms stay in float32."""
    return nullcontext() if precision == "fp32" else torch.autocast(device.type, _REDUCED[precision])


def row_multiple(precision: torch.dtype, device: torch.device) -> int:
    """Return the recommended divisor of the number of rows of a matmul.

    In bf16 on a CPU, oneDNN compiles a kernel for every shape, which takes longer than running it: 4.7 and 0.6 ms for
    2,000 rows of 256 on a Xeon with AMX.
    """
    return 64 if precision == torch.bfloat16 and device.type == "cpu" else 1


def torch_dtype(compute_type: ComputeType) -> torch.dtype:
    """Return the dtype of matmul inputs."""
    return _REDUCED.get(compute_type, torch.float32)
