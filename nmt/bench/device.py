"""What the device does and has: waiting for it, its memory, and how fast it multiplies matrices."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch
from torch.nn import functional as F

from nmt.bench.flops import Matmul
from nmt.devices.precision import Arithmetic as Precision

if sys.platform != "win32":
    import resource

# A matmul is timed in runs of so many seconds; the fastest of so many runs counts.
_SECONDS_PER_RUN = 0.05
_RUNS = 6
# A logits matrix of more numbers than this is measured in part; more rows are no faster.
_MOST_OUTPUTS = 1 << 28

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reset_peak_memory(device: torch.device) -> None:
    """Let `peak_memory` begin anew; where the system cannot do that for a process, nothing happens."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif sys.platform == "linux":
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")


def peak_memory(device: torch.device) -> int:
    """Most bytes so far: on CUDA that torch has allocated, on the CPU that lay in memory of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would also count what the parent had when it forked this process
        (line,) = (line for line in status.read_text().split("\n") if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


@dataclass(frozen=True)
class LinearRate:
    """How fast `F.linear` is, in FLOP/s: over all matmuls of a forward pass, and for the shape that it does best."""

    mean: float
    best: float


def measure_linear(matmuls: Sequence[Matmul], precision: Precision, device: torch.device) -> LinearRate:
    """Time each matmul alone, with nothing else running in this process; the fastest of several runs counts."""
    matmuls = [matmul for matmul in matmuls if matmul.count and matmul.rows]
    seconds = [_seconds(matmul, precision, device) for matmul in matmuls]
    flops = sum(matmul.count * matmul.flops for matmul in matmuls)
    total = sum(matmul.count * time for matmul, time in zip(matmuls, seconds, strict=True))
    return LinearRate(flops / total, max(p.flops / time for p, time in zip(matmuls, seconds, strict=True)))


@torch.inference_mode()
def _seconds(matmul: Matmul, precision: Precision, device: torch.device) -> float:
    """How long one matmul takes."""
    rows = min(matmul.rows, max(1, _MOST_OUTPUTS // matmul.outer))
    x = torch.randn(rows, matmul.inner, device=device).to(DTYPES[precision])
    weight = torch.randn(matmul.outer, matmul.inner, device=device).to(DTYPES[precision])
    _time(x, weight, 1)  # libraries choose and prepare their kernel at the first call
    repeats = max(1, round(_SECONDS_PER_RUN / max(_time(x, weight, 1), 1e-6)))
    fastest = min(_time(x, weight, repeats) for _ in range(_RUNS)) / repeats
    return fastest * matmul.rows / rows


def _time(x: torch.Tensor, weight: torch.Tensor, repeats: int) -> float:
    synchronize(x.device)
    started = perf_counter()
    for _ in range(repeats):
        F.linear(x, weight)
    synchronize(x.device)
    return perf_counter() - started
