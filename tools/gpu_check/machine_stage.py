"""The machine and its F.linear rates at the shapes of the model."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gpu_check.outcome import Results
from gpu_check.settings import NO_GPU, Settings
from nmt.bench.device import LinearRate, measure_linear
from nmt.bench.flops import ModelFlops
from nmt.bench.model_specs import find_model_spec
from nmt.devices.precision import ComputeType
from nmt.evaluate.report import describe_machine
from nmt.processes.distributed import choose_device

# 16-bit matmuls on tensor cores are many times as fast as float32 without them: 15 times on an H100.
_MIN_SPEEDUP = 2.0


def run(settings: Settings, results: Results, _part: str) -> None:
    """Describe the machine and measure its rates."""
    machine = describe_machine()
    results.note(f"{machine.cpu}, {machine.cores} cores; Python {sys.version.split()[0]}; torch {torch.__version__}\n")
    if settings.on_gpu:
        _describe_gpu(results)
    device = choose_device(settings.device)
    precision = torch.get_float32_matmul_precision()
    results.check("float32 matmul precision by default (no TF32)", "highest", precision, precision == "highest")
    rows = []
    for name in settings.pick(("base", "big"), ("tiny",)):
        rates = _rates(name, settings, device)
        rows += [[name, kind, _tera(rate.mean), _tera(rate.best)] for kind, rate in rates.items()]
        for kind in ("bf16", "fp16"):
            row = (f"F.linear of {name} in {kind}", f"at least {_MIN_SPEEDUP:g} times float32")
            if not settings.on_gpu:
                results.not_measured(*row, NO_GPU)
                continue
            speedup = rates[kind].mean / rates["fp32"].mean
            actual = f"{speedup:.1f} times, {_tera(rates[kind].mean)} and {_tera(rates['fp32'].mean)}"
            results.check(*row, actual, speedup >= _MIN_SPEEDUP)
    results.table("Rates of F.linear", ["model", "precision", "mean over its shapes", "best shape"], rows)


def _describe_gpu(results: Results) -> None:
    gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
    capability = (gpu.major, gpu.minor)
    results.note(
        f"{gpu.name}, compute capability {gpu.major}.{gpu.minor}, {gpu.total_memory / 2**30:.1f} GiB, "
        f"driver {_driver()}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}\n"
    )
    results.check(
        "compute capability", "at least 8.0, for bf16 and varlen attention", str(capability), capability >= (8, 0)
    )


def _rates(name: str, settings: Settings, device: torch.device) -> dict[str, LinearRate]:
    """FLOP/s by precision at the shapes of a micro-batch of 4,096 tokens."""
    spec = find_model_spec(name, (), settings.pick(None, 200))
    rows = settings.pick(4_096, 64)
    matmuls = ModelFlops(spec.recipe.model, spec.tgt_vocab_size).matmuls(rows, rows)[: settings.pick(None, 1)]
    kinds: tuple[ComputeType, ...] = ("fp32", "bf16", "fp16") if settings.on_gpu else ("fp32", "bf16")
    rates = {str(kind): measure_linear(matmuls, kind, device) for kind in kinds}
    if settings.on_gpu:
        with _tf32():
            rates["tf32"] = measure_linear(matmuls, "fp32", device)
    return rates


@contextmanager
def _tf32() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _tera(rate: float) -> str:
    return f"{rate / 1e12:.3g} TFLOP/s"


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.split("\n")[0]
    except (OSError, subprocess.SubprocessError):
        return "unknown"
