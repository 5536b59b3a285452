"""Device memory and matmul rates."""

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nmt.bench import device
from nmt.bench.flops import Matmul
from tests.forked import PROCESSES

CPU = torch.device("cpu")


def measure_freed_memory() -> None:
    before = device.peak_memory(CPU)
    filled = torch.ones(64 << 20)  # 256 MiB
    peak = device.peak_memory(CPU)
    assert peak >= max(before, filled.numel() * 4)
    del filled
    assert device.peak_memory(CPU) > peak - 8e6  # Linux updates its counter in steps
    if sys.platform == "linux":
        device.reset_peak_memory(CPU)
        assert device.peak_memory(CPU) < peak - 200e6


@pytest.mark.slow
def test_peak_memory_includes_freed_memory_until_reset() -> None:
    """In a new process, because an earlier test may have changed malloc settings."""
    process = PROCESSES.Process(target=measure_freed_memory)
    process.start()
    process.join(120)
    assert process.exitcode == 0, "its error is in the captured stderr"


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_peak_memory_without_vmhwm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "status").write_text("Name:\tpython\n")
    monkeypatch.setattr(device, "Path", lambda _: tmp_path / "status")
    assert device.peak_memory(CPU) > 20e6


def test_mean_rate_weights_each_matmul_by_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    fast, slow = Matmul(count=3, rows=2, inner=5, outer=50), Matmul(count=1, rows=2, inner=5, outer=20)
    monkeypatch.setattr(device, "_seconds", lambda matmul, *_: 0.1 if matmul is fast else 0.8)
    rate = device.measure_linear([fast, slow, Matmul(0, 9, 9, 9)], "fp32", CPU)
    assert rate.mean == pytest.approx((3 * 1000 + 400) / (3 * 0.1 + 0.8))
    assert rate.best == pytest.approx(1000 / 0.1)


@pytest.mark.slow
def test_larger_matmul_takes_longer() -> None:
    small, large = (Matmul(1, 8, 64, outer) for outer in (64, 64 * 64))
    assert 0 < device._seconds(small, "fp32", CPU) < device._seconds(large, "fp32", CPU)


def test_large_outputs_are_measured_on_fewer_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    monkeypatch.setattr(device, "_MAX_OUTPUT_ELEMENTS", 40)

    def time_rows(x: Tensor, weight: Tensor, repeats: int) -> float:
        rows.append(len(x))
        return 0.5 * repeats

    monkeypatch.setattr(device, "_time", time_rows)
    assert device._seconds(Matmul(1, 100, 3, 10), "fp32", CPU) == pytest.approx(0.5 * 100 / 4)
    assert set(rows) == {4}
