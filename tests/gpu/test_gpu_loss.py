"""Losses on a GPU, compared with torch's own in float64 on the CPU.

Let u be the unit roundoff of the dtype and `bound` the largest sum |h||w| of a logit. A logit has an error of at most
2 u bound (operands and result are rounded), a probability a relative 4 u bound, and the loss of a position 4 u bound.
Gradients also round the gradient of the logits and the result. Sums of n terms in float32 add about sqrt(n) 2^-24; the
tolerance is 4 times that.
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.special_ids import PAD_ID
from nmt.train import loss as loss_module
from nmt.train.compiled_loss import compilable_cross_entropy
from nmt.train.loss import linear_cross_entropy, linear_rdrop

pytestmark = pytest.mark.gpu

ROWS, WIDTH, VOCAB = 203, 72, 1_003
UNIT_ROUNDOFF = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
CHUNK_BYTES = (4 * VOCAB * 64, 512 << 20)  # several chunks of 64 rows, and one


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) / 3


def assert_close(
    found: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
    exact: Callable[[Tensor, Tensor, Tensor], Tensor],
    hidden: Tensor,
    dtype: torch.dtype,
    gpu: torch.device,
    gain: float = 1.0,
) -> None:
    """Check loss and gradients of `found` on the GPU against `exact` within the precision of the dtype.

    gain: largest ratio of a term of a gradient to its probability
    """
    hidden, weight = hidden.to(dtype), numbers(VOCAB, WIDTH, seed=2)
    labels = torch.randint(1, VOCAB, (ROWS,), generator=torch.Generator().manual_seed(3))
    doubles = [hidden.double().requires_grad_(), weight.double().requires_grad_()]
    expected = exact(doubles[0], doubles[1], labels)
    expected_grads = torch.autograd.grad(expected, doubles)
    here = [hidden.to(gpu).requires_grad_(), weight.to(gpu).requires_grad_()]
    loss, _ = found(here[0], here[1], labels.to(gpu))
    grads = torch.autograd.grad(loss, here)
    assert [grad.dtype for grad in grads] == [dtype, torch.float32]

    with torch.no_grad():
        bound = float((doubles[0].flatten(0, -2).abs() @ doubles[1].abs().T).max())
        probabilities = (doubles[0] @ doubles[1].T).softmax(-1).flatten(0, -2) * gain + 1 / VOCAB
        gold = F.one_hot(labels, VOCAB).repeat(len(probabilities) // ROWS, 1) + probabilities
        terms = (gold @ doubles[1].abs()).norm(), (gold.T @ doubles[0].flatten(0, -2).abs()).norm()
    tolerance = UNIT_ROUNDOFF[dtype] * (2 + 4 * bound) + 4 * math.sqrt(WIDTH + VOCAB) * 2.0**-24 * (1 + bound)
    assert abs(loss.item() - expected.item()) / ROWS <= tolerance
    for grad, expected_grad, size in zip(grads, expected_grads, terms, strict=True):
        assert float((grad.cpu().double() - expected_grad).norm() / size) <= tolerance


@pytest.mark.parametrize("dtype", UNIT_ROUNDOFF, ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk_bytes", CHUNK_BYTES)
@pytest.mark.parametrize("traced", [False, True], ids=["plain", "traced"])
def test_cross_entropy_matches_float64(
    dtype: torch.dtype,
    smoothing: float,
    chunk_bytes: int,
    traced: bool,
    gpu: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(loss_module.CHUNK_BYTES, gpu.type, chunk_bytes)

    def found(hidden: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if not traced:
            return linear_cross_entropy(hidden, weight, labels, smoothing)
        padded = F.pad(hidden, (0, 0, 0, 21), value=3.0), F.pad(labels, (0, 21), value=PAD_ID)
        return compilable_cross_entropy(padded[0], weight, padded[1], smoothing, chunk_bytes)

    def exact(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(hidden @ weight.T, labels, label_smoothing=smoothing, reduction="sum")

    assert_close(found, exact, numbers(ROWS, WIDTH, seed=1), dtype, gpu)


@pytest.mark.parametrize("dtype", UNIT_ROUNDOFF, ids=str)
@pytest.mark.parametrize("chunk_bytes", CHUNK_BYTES)
def test_rdrop_matches_float64(
    dtype: torch.dtype, chunk_bytes: int, gpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(loss_module.CHUNK_BYTES, gpu.type, chunk_bytes)

    def exact(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        log_p, log_q = (hidden @ weight.T).log_softmax(-1).unbind(0)
        divergence = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum()
        plain = [F.cross_entropy(one, labels, label_smoothing=0.1, reduction="sum") for one in (log_p, log_q)]
        return sum(plain) / 2 + 2.0 / 4 * divergence

    hidden = numbers(2, ROWS, WIDTH, seed=1)
    log_p, log_q = (hidden @ numbers(VOCAB, WIDTH, seed=2).T).log_softmax(-1).unbind(0)
    gain = 1 + float((log_p - log_q).abs().max())
    assert_close(lambda h, w, labels: linear_rdrop(h, w, labels, 0.1, 2.0), exact, hidden, dtype, gpu, gain)
