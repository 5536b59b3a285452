"""Device synchronization, peak memory and matmul speed."""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch
from torch.nn import functional as F

from nmt.bench.flops import Matmul
from nmt.devices.precision import ComputeType, torch_dtype

# A matmul is repeated for about this long per measurement; the fastest measurement counts.
_SECONDS_PER_MEASUREMENT = 0.05
_MEASUREMENTS = 6
# Larger outputs (such as logits) are measured with fewer rows; the time per row is the same.
_MAX_OUTPUT_ELEMENTS = 1 << 28


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reset_peak_memory(device: torch.device) -> None:
    """Reset the value of `peak_memory`; do nothing if the system does not support it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif sys.platform == "linux":
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")


def peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes: allocated by torch on CUDA, resident in this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would include the peak of the parent at the time of the fork
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):  # missing in some sandboxes
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@dataclass(frozen=True)
class LinearRate:
    """Speed of `F.linear` in FLOP/s: over all matmuls of a forward pass, and for its fastest shape."""

    mean: float
    best: float


def measure_linear(matmuls: Sequence[Matmul], precision: ComputeType, device: torch.device) -> LinearRate:
    """Time each matmul alone."""
    matmuls = [matmul for matmul in matmuls if matmul.count and matmul.rows]
    seconds = [_seconds(matmul, precision, device) for matmul in matmuls]
    flops = sum(matmul.count * matmul.flops for matmul in matmuls)
    total = sum(matmul.count * time for matmul, time in zip(matmuls, seconds, strict=True))
    return LinearRate(flops / total, max(m.flops / time for m, time in zip(matmuls, seconds, strict=True)))


@torch.inference_mode()
def _seconds(matmul: Matmul, precision: ComputeType, device: torch.device) -> float:
    rows = min(matmul.rows, max(1, _MAX_OUTPUT_ELEMENTS // matmul.outer))
    x = torch.randn(rows, matmul.inner, device=device).to(torch_dtype(precision))
    weight = torch.randn(matmul.outer, matmul.inner, device=device).to(torch_dtype(precision))
    _time(x, weight, 1)  # libraries select and prepare their kernel in the first call
    repeats = max(1, round(_SECONDS_PER_MEASUREMENT / max(_time(x, weight, 1), 1e-6)))
    fastest = min(_time(x, weight, repeats) for _ in range(_MEASUREMENTS)) / repeats
    return fastest * matmul.rows / rows


def _time(x: torch.Tensor, weight: torch.Tensor, repeats: int) -> float:
    synchronize(x.device)
    started = perf_counter()
    for _ in range(repeats):
        F.linear(x, weight)
    synchronize(x.device)
    return perf_counter() - started
