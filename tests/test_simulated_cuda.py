"""Tests of the simulated CUDA device: it finds synchronizations and mixed devices, and accepts other code."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import pytest
import torch
from torch import Tensor

from nmt.model.attention import Kernel, attend
from nmt.packing.packed import PackedSequences
from tests.simulated_cuda import CUDA, DeviceMixError, SynchronizationError, simulated_cuda


def store(x: Tensor, where: object, value: object) -> None:
    x[where] = value  # type: ignore[index, assignment]


def ones(*size: int) -> Tensor:
    return torch.ones(*size, dtype=torch.int64, device=CUDA)


# x: (3, 4) on the device
SYNCHRONIZATIONS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x.sum()),
    "int": lambda x: int(x.sum()),
    "bool": lambda x: bool(x.any()),
    "if": lambda x: 1 if x.any() else 0,
    "tolist": lambda x: x.tolist(),
    "tolist of a scalar": lambda x: x.sum().tolist(),
    "cpu": lambda x: x.cpu(),
    "to cpu": lambda x: x.to("cpu"),
    "copy_ to the host": lambda x: torch.empty(3, 4).copy_(x),
    "copy_ from the host": lambda x: x.copy_(torch.zeros(4)),
    "to cuda": lambda x: torch.zeros(3).to(CUDA),
    "to cuda by name": lambda x: torch.zeros(3).to("cuda"),
    "to cuda from numpy": lambda x: torch.from_numpy(np.zeros(3)).to(CUDA),
    "non-blocking from pageable memory": lambda x: torch.zeros(3).to(CUDA, non_blocking=True),
    "blocking from pinned memory": lambda x: torch.zeros(3).pin_memory().to(CUDA),
    "tensor of a list": lambda x: torch.tensor([1, 2], device=CUDA),
    "tensor of a scalar": lambda x: torch.tensor(1.0, device=CUDA),
    "as_tensor": lambda x: torch.as_tensor([1, 2], device=CUDA),
    "new_tensor": lambda x: x.new_tensor([1.0]),
    "index by a list": lambda x: x[:, [1, 2]],
    "index by a host tensor": lambda x: x[torch.tensor([0, 1])],
    "index by a device scalar": lambda x: x[ones(3)[0]],
    "store at a list of indices": lambda x: store(x, [1, 2], x[:2]),
    "store a scalar at indices": lambda x: store(x, ones(2), -1.0),
    "store a scalar at one element": lambda x: store(x, (0, 1), -1.0),
    "index by a mask": lambda x: x[x > 0],
    "store a tensor at a mask": lambda x: store(x, x > 0, x[0]),
    "masked_select": lambda x: x.masked_select(x > 0),
    "nonzero": lambda x: x.nonzero(),
    "where with one argument": lambda x: torch.where(x > 0),
    "unique": lambda x: x.unique(),
    "bincount": lambda x: ones(3).bincount(),
    "equal": lambda x: torch.equal(x, x),
    "allclose": lambda x: torch.allclose(x, x),
    "repeat_interleave": lambda x: x.repeat_interleave(ones(3), dim=0),
    "synchronize": lambda x: torch.cuda.synchronize(),
    "synchronize a stream": lambda x: torch.cuda.current_stream().synchronize(),
}

MIXES: dict[str, Callable[[Tensor], object]] = {
    "add": lambda x: x + torch.zeros(4),
    "add_": lambda x: x.add_(torch.zeros(1)),
    "cat": lambda x: torch.cat([x, torch.zeros(1, 4)]),
    "where": lambda x: torch.where(x > 0, x, torch.zeros(4)),
    "gather": lambda x: x.gather(1, torch.zeros(3, 1, dtype=torch.int64)),
    "index_select": lambda x: x.index_select(0, torch.zeros(1, dtype=torch.int64)),
    "host tensor first": lambda x: torch.zeros(3, 4) * x,
    "embedding": lambda x: torch.nn.functional.embedding(torch.zeros(2, dtype=torch.int64), x),
    "linear": lambda x: torch.nn.functional.linear(torch.zeros(2, 4), x),
    "foreach": lambda x: torch._foreach_add_([x], [torch.zeros(3, 4)]),
}

VALID: dict[str, Callable[[Tensor], object]] = {
    "non-blocking from pinned memory": lambda x: torch.zeros(3).pin_memory().to(CUDA, non_blocking=True) + x[:, 0],
    "host scalars": lambda x: (x + torch.tensor(2.0)) * 3.0,
    "slices": lambda x: store(x, (slice(None), slice(1, 3)), -1.0),
    "index by a device tensor": lambda x: x[ones(2)],
    "store at indices": lambda x: store(x, ones(2), x[:2].clone()),
    "store a scalar at a mask": lambda x: store(x, x > 0, -1.0),
    "masked_fill": lambda x: x.masked_fill_(x > 0, float("-inf")),
    "created on the device": lambda x: torch.arange(4, device=CUDA) + torch.full((4,), 2, device=CUDA),
    "repeat_interleave with output_size": lambda x: x.repeat_interleave(ones(3), dim=0, output_size=3),
    "repeat_interleave by a number": lambda x: x.repeat_interleave(2, dim=0),
    "host tensors only": lambda x: torch.tensor(3).item() + len(torch.tensor([1, 2])),
    "sort and topk": lambda x: x.sort(dim=1).values.topk(2).indices,
    "non-blocking to the host, not read": lambda x: x.to("cpu", non_blocking=True),
}

MODES = pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])


@MODES
@pytest.mark.parametrize("name", SYNCHRONIZATIONS)
def test_synchronizations_are_found(name: str, context: Callable[[], AbstractContextManager[object]]) -> None:
    with (
        simulated_cuda(),
        context(),
        pytest.raises(SynchronizationError, match=r"tests/test_simulated_cuda\.py:\d+ \("),
    ):
        SYNCHRONIZATIONS[name](torch.zeros(3, 4, device=CUDA))


@MODES
@pytest.mark.parametrize("name", MIXES)
def test_mixed_devices_are_found(name: str, context: Callable[[], AbstractContextManager[object]]) -> None:
    with simulated_cuda(), context(), pytest.raises(DeviceMixError, match=r"tests/test_simulated_cuda\.py:\d+ \("):
        MIXES[name](torch.zeros(3, 4, device=CUDA))


@MODES
@pytest.mark.parametrize("name", VALID)
def test_code_without_synchronization_is_accepted(
    name: str, context: Callable[[], AbstractContextManager[object]]
) -> None:
    with simulated_cuda() as mode, context():
        VALID[name](torch.zeros(3, 4, device=CUDA))
    assert not mode.synchronizations


def test_the_error_names_the_line_of_nmt() -> None:
    function = r"nmt/packing/packed\.py:\d+ \(packing/packed\.py:PackedSequences\.to_lists\)"
    with simulated_cuda(), pytest.raises(SynchronizationError, match=function):
        tokens = torch.zeros(4, dtype=torch.int64, device=CUDA)
        PackedSequences(tokens, tokens, tokens, np.array([4]), 4).to_lists()


def test_allowed_synchronizations_are_counted() -> None:
    function = "packing/packed.py:PackedSequences.to_lists"
    with simulated_cuda({function}) as mode:
        src = PackedSequences.from_lists([[7, 8], [9]]).to(CUDA)
        assert src.to_lists() == [[7, 8], [9]]
    assert mode.synchronizations == {function: 1}


def test_a_non_blocking_copy_has_contents_after_a_synchronization() -> None:
    here = "test_simulated_cuda.py:test_a_non_blocking_copy_has_contents_after_a_synchronization"
    with simulated_cuda({here}) as mode:
        found = torch.zeros(2, device=CUDA).to("cpu", non_blocking=True)
        assert found.tolist() != [0.0, 0.0]
        torch.cuda.current_stream().synchronize()
        assert found.tolist() == [0.0, 0.0]
    assert mode.synchronizations == {here: 1}


def test_synchronizations_in_the_backward_pass_are_found() -> None:
    class SynchronizingBackward(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: object, grad: Tensor) -> Tensor:
            return grad * float(grad.sum())

    with simulated_cuda():
        x = torch.zeros(3, 4, device=CUDA, requires_grad=True)
        with torch.autocast("cuda", torch.bfloat16):
            y = torch.nn.functional.linear(x, x)
        assert y.dtype == torch.bfloat16
        y.sum().backward()
        assert x.grad is not None and x.grad.device == CUDA
        with pytest.raises(SynchronizationError, match=r"SynchronizingBackward\.backward"):
            SynchronizingBackward.apply(x).sum().backward()  # type: ignore[no-untyped-call]


def test_a_graph_has_no_effect_until_it_is_replayed() -> None:
    with simulated_cuda(None) as mode, torch.inference_mode():
        x, total = torch.arange(3.0, device=CUDA), torch.zeros(3, device=CUDA)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            doubled = x * 2
            total.add_(doubled[1:].sum())
        assert total.tolist() == [0.0, 0.0, 0.0] and mode.num_captures == 1
        x.copy_(x + 1)
        graph.replay()
        graph.replay()
        assert doubled.tolist() == [2.0, 4.0, 6.0] and total.tolist() == [20.0, 20.0, 20.0]


def test_a_graph_must_not_synchronize() -> None:
    with simulated_cuda(None), torch.inference_mode():
        x = torch.arange(3.0, device=CUDA)
        with pytest.raises(RuntimeError, match="capturing"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            x.sum().item()


def test_threads_use_the_device() -> None:
    found: list[float] = []
    with simulated_cuda(None):
        thread = threading.Thread(target=lambda: found.extend(torch.ones(2, device=CUDA).tolist()))
        thread.start()
        thread.join()
    assert found == [1.0, 1.0]


@pytest.mark.parametrize("causal", [False, True])
def test_variable_length_attention_equals_the_equation(causal: bool) -> None:
    """Output and gradients; positions after the last sentence are undefined."""
    lengths, others = ([3, 1, 4], [3, 1, 4] if causal else [2, 5, 1])
    queries, keys = (PackedSequences.from_lists([[5] * n for n in ns]) for ns in (lengths, others))
    torch.manual_seed(1)
    q, k, v = (torch.randn(n, 2, 8) for n in (queries.total, keys.total, keys.total))
    grad = torch.randn(queries.total, 2, 8)

    def run(device: torch.device, dtype: torch.dtype, kernel: Kernel) -> list[Tensor]:
        inputs = [x.to(device, dtype).requires_grad_() for x in (q, k, v)]
        out = attend(inputs[0], inputs[1], inputs[2], queries.to(device), keys.to(device), causal=causal, kernel=kernel)
        return [x.cpu().float() for x in (out, *torch.autograd.grad(out, inputs, grad.to(device, dtype)))]

    expected = run(torch.device("cpu"), torch.float32, "matmul")
    with simulated_cuda(None):
        found = run(CUDA, torch.float16, "varlen")
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-2, atol=4e-3)
