"""Device memory and matmul rates."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nmt.bench import device
from nmt.bench.flops import Matmul

CPU = torch.device("cpu")
ROOT = Path(__file__).resolve().parents[2]


# In a process of its own: a test before this one may have told malloc to keep what is freed.
MEMORY = """
import sys, torch
from nmt.bench import device
cpu = torch.device("cpu")
before = device.peak_memory(cpu)
filled = torch.ones(64 << 20)  # 256 MiB
most = device.peak_memory(cpu)
assert most >= max(before, filled.numel() * 4)
del filled
assert device.peak_memory(cpu) > most - 8e6  # Linux counts by and by
if sys.platform == "linux":
    device.reset_peak_memory(cpu)
    assert device.peak_memory(cpu) < most - 200e6
"""


def test_memory_that_was_once_in_use_counts() -> None:
    subprocess.run([sys.executable, "-c", MEMORY], check=True, cwd=ROOT, timeout=120)


def test_the_mean_rate_weighs_each_product_by_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    fast, slow = Matmul(count=3, rows=2, inner=5, outer=50), Matmul(count=1, rows=2, inner=5, outer=20)
    monkeypatch.setattr(device, "_seconds", lambda matmul, *_: 0.1 if matmul is fast else 0.8)
    rate = device.measure_linear([fast, slow, Matmul(0, 9, 9, 9)], "fp32", CPU)
    assert rate.mean == pytest.approx((3 * 1000 + 400) / (3 * 0.1 + 0.8))
    assert rate.best == pytest.approx(1000 / 0.1)


def test_a_product_is_timed() -> None:
    small, large = (Matmul(1, 8, 64, outer) for outer in (64, 64 * 64))
    assert 0 < device._seconds(small, "fp32", CPU) < device._seconds(large, "fp32", CPU)


def test_what_is_too_large_is_measured_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    monkeypatch.setattr(device, "_MOST_OUTPUTS", 40)

    def time_rows(x: Tensor, weight: Tensor, repeats: int) -> float:
        rows.append(len(x))
        return 0.5 * repeats

    monkeypatch.setattr(device, "_time", time_rows)
    assert device._seconds(Matmul(1, 100, 3, 10), "fp32", CPU) == pytest.approx(0.5 * 100 / 4)
    assert set(rows) == {4}
