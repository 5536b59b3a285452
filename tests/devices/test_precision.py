"""Precision and features of simulated devices, in eager and compiled code."""

from functools import cache

import pytest
import torch

from nmt.devices import precision
from nmt.devices.precision import ComputeType, DeviceFeatures, Precision, choose_precision, device_features
from nmt.errors import UserError

GPU = torch.device("cuda", 0)
Capability = tuple[int, int]
V100, T4, A100, H100 = (7, 0), (7, 5), (8, 0), (9, 0)


@pytest.mark.parametrize(
    ("capability", "name", "chosen"),
    [
        (V100, "auto", "fp32"),
        (T4, "auto", "fp32"),
        (T4, "fp16", "fp16"),
        (T4, "fp32", "fp32"),
        (A100, "auto", "bf16"),
        (H100, "auto", "bf16"),
        (H100, "bf16", "bf16"),
        (H100, "fp16", "fp16"),
    ],
)
def test_auto_is_bf16_if_native_and_other_names_are_unchanged(
    capability: Capability, name: Precision, chosen: ComputeType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "device_features", lambda device: DeviceFeatures("cuda", capability))
    assert choose_precision(name, GPU) == chosen


def test_emulated_bf16_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch reports emulated bf16 on a T4 as supported."""
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda including_emulation=True: including_emulation)
    monkeypatch.setattr(precision, "device_features", lambda device: DeviceFeatures("cuda", T4))
    with pytest.raises(UserError, match=r"^[^\n]*compute capability 7\.5[^\n]*; [^\n]*; choose fp16 or fp32$"):
        choose_precision("bf16", GPU)


@pytest.mark.parametrize("is_native", [False, True])
def test_slow_fp16_on_a_cpu_is_reported_once(
    is_native: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(precision, "_emulates_fp16", lambda: not is_native)
    warn_once = cache(precision._warn_of_slow_fp16.__wrapped__)  # without calls by other tests
    monkeypatch.setattr(precision, "_warn_of_slow_fp16", warn_once)
    for name in ("fp32", "bf16", "fp16", "fp16"):
        assert choose_precision(name, torch.device("cpu")) == name
    assert capsys.readouterr().err.count("warning: precision is fp16") == (not is_native)


def test_device_features_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []

    def capability(device: torch.device) -> Capability:
        asked.append(device)
        return T4

    monkeypatch.setattr("torch.cuda.get_device_capability", capability)
    query_once = cache(precision._query_features.__wrapped__)  # without results of other tests
    monkeypatch.setattr(precision, "_query_features", query_once)
    assert [device_features(GPU) for _ in range(3)] == [DeviceFeatures("cuda", T4)] * 3
    assert asked == [GPU]
    assert device_features(torch.device("cpu")).kind == "cpu"


@pytest.mark.slow
def test_device_features_are_constants_of_a_compiled_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Querying a GPU cannot be traced; the graph must not break."""

    def untraceable(device: torch.device) -> DeviceFeatures:
        torch._dynamo.graph_break()
        return DeviceFeatures("cuda", A100)

    def step(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if device_features(x.device).capability >= (8, 0) else x

    monkeypatch.setattr(precision, "_query_features", untraceable)
    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend="eager")
    assert compiled(torch.ones(3)).tolist() == [2.0] * 3
