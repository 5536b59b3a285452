"""Attention kernels, compared with loops in float64; dropout statistics; sinusoids by the formula of the paper."""

import math

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from nmt.devices.precision import DeviceFeatures
from nmt.model import attention
from nmt.model.attention import Kernel, attend, attention_weights, can_use_varlen, choose_kernel
from nmt.model.dropout import Dropout, dropout
from nmt.model.layers import sinusoids
from nmt.packing.packed import PackedSequences
from nmt.packing.padding import pad, unpad

CPU = DeviceFeatures("cpu")
V100, T4, A100, H100 = (DeviceFeatures("cuda", capability) for capability in ((7, 0), (7, 5), (8, 0), (9, 0)))
HEADS, D_HEAD = 3, 4
QUERIES = PackedSequences.from_lists([[1] * n for n in (4, 1, 7)])
KEYS = PackedSequences.from_lists([[1] * n for n in (2, 5, 3)])


def random_heads(sentences: PackedSequences, seed: int) -> Tensor:
    """Return queries, keys or values (sentences.total, HEADS, D_HEAD)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sentences.total, HEADS, D_HEAD, generator=generator, dtype=torch.float64)


def attend_by_loops(
    q: Tensor, k: Tensor, v: Tensor, queries: PackedSequences, keys: PackedSequences, causal: bool
) -> Tensor:
    out = torch.zeros_like(q)
    for sentence in range(queries.num_sentences):
        q_start, q_end = queries.cu_seqlens[sentence : sentence + 2].tolist()
        k_start, k_end = keys.cu_seqlens[sentence : sentence + 2].tolist()
        for head in range(HEADS):
            for i in range(q_start, q_end):
                last = k_start + (i - q_start) + 1 if causal else k_end
                scores = [
                    math.fsum((q[i, head] * k[j, head]).tolist()) / math.sqrt(D_HEAD) for j in range(k_start, last)
                ]
                exponentials = [math.exp(s) for s in scores]
                for j, e in zip(range(k_start, last), exponentials, strict=True):
                    out[i, head] += e / math.fsum(exponentials) * v[j, head]
    return out


@pytest.mark.parametrize("kernel", ["matmul", "sdpa", "masked"])
@pytest.mark.parametrize("causal", [False, True])
def test_kernels_equal_plain_loops(kernel: Kernel, causal: bool) -> None:
    keys = QUERIES if causal else KEYS
    q, k, v = random_heads(QUERIES, 1), random_heads(keys, 2), random_heads(keys, 3)
    got = attend(q, k, v, QUERIES, keys, causal=causal, kernel=kernel)
    torch.testing.assert_close(got, attend_by_loops(q, k, v, QUERIES, keys, causal), rtol=1e-12, atol=1e-12)


def test_the_masked_kernel_supports_empty_sentences_and_dropout() -> None:
    queries = PackedSequences.from_lists([[1] * n for n in (0, 2, 0, 3, 0, 0)])
    keys = PackedSequences.from_lists([[1] * n for n in (0, 4, 3, 1, 0, 0)])
    q, k, v = random_heads(queries, 1), random_heads(keys, 2), random_heads(keys, 3)
    got = attend(q, k, v, queries, keys, causal=False, kernel="masked")
    torch.testing.assert_close(got, attend_by_loops(q, k, v, queries, keys, causal=False), rtol=1e-12, atol=1e-12)
    torch.manual_seed(0)
    assert not torch.equal(got, attend(q, k, v, queries, keys, causal=False, p=0.5, kernel="masked"))


@pytest.mark.parametrize("kernel", ["matmul", "sdpa", "masked"])
def test_keys_without_queries_have_no_gradient(kernel: Kernel) -> None:
    queries = PackedSequences.from_lists([[1] * n for n in (60, 0, 5)])
    keys = PackedSequences.from_lists([[1] * n for n in (50, 60, 9)])  # each sentence has a row
    heads = (random_heads(queries, 1), random_heads(keys, 2), random_heads(keys, 3))
    q, k, v = (side.requires_grad_() for side in heads)
    attend(q, k, v, queries, keys, causal=False, kernel=kernel).sum().backward()
    assert q.grad is not None and k.grad is not None and v.grad is not None
    assert all(bool(grad.isfinite().all()) for grad in (q.grad, k.grad, v.grad))
    without_queries = slice(50, 110)
    assert not k.grad[without_queries].any() and not v.grad[without_queries].any()
    torch.testing.assert_close(v.grad.sum(dim=0), torch.full((HEADS, D_HEAD), 65.0, dtype=torch.float64))


@pytest.mark.parametrize("kernel", ["matmul", "sdpa", "masked"])
def test_bf16_output_has_bf16_precision(kernel: Kernel) -> None:
    q, k, v = (random_heads(QUERIES, seed) for seed in (1, 2, 3))
    with torch.autocast("cpu", torch.bfloat16):
        got = attend(q.bfloat16(), k.bfloat16(), v.bfloat16(), QUERIES, QUERIES, causal=True, kernel=kernel)
    assert got.dtype == torch.bfloat16
    exact = attend_by_loops(q, k, v, QUERIES, QUERIES, causal=True)
    assert (got - exact).abs().max() < 3 * 2.0**-8 * v.abs().max()


@pytest.mark.parametrize(
    ("features", "dtype", "d_head", "p", "kernel"),
    [
        (CPU, torch.float32, 64, 0.0, "matmul"),
        (CPU, torch.bfloat16, 64, 0.0, "matmul"),
        (CPU, torch.float32, 64, 0.1, "matmul"),
        (V100, torch.float16, 64, 0.0, "sdpa"),
        (T4, torch.float16, 64, 0.0, "sdpa"),
        (T4, torch.float32, 64, 0.0, "sdpa"),
        (T4, torch.float16, 64, 0.1, "sdpa"),
        (A100, torch.float16, 64, 0.0, "varlen"),
        (A100, torch.bfloat16, 256, 0.0, "varlen"),
        (A100, torch.float32, 64, 0.0, "sdpa"),
        (A100, torch.bfloat16, 36, 0.0, "sdpa"),
        (H100, torch.bfloat16, 64, 0.0, "varlen"),
        (H100, torch.bfloat16, 8, 0.0, "varlen"),
        (H100, torch.bfloat16, 4, 0.0, "sdpa"),
        (H100, torch.bfloat16, 12, 0.0, "sdpa"),
        (H100, torch.float16, 264, 0.0, "sdpa"),
        (H100, torch.bfloat16, 64, 0.1, "sdpa"),
        (H100, torch.float64, 64, 0.0, "sdpa"),
    ],
)
def test_choose_kernel_by_device_dtype_and_dropout(
    features: DeviceFeatures, dtype: torch.dtype, d_head: int, p: float, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "device_features", lambda device: features)
    with FakeTensorMode():
        q = torch.empty(3, HEADS, d_head, dtype=dtype, device=f"{features.kind}:0")
    assert choose_kernel(q, p) == kernel
    assert can_use_varlen(features, dtype, d_head, p) is (kernel == "varlen")


@pytest.mark.parametrize("kernel", ["matmul", "sdpa"])
def test_attention_dropout_applies_the_same_mask_to_output_and_gradient(kernel: Kernel) -> None:
    """With the identity matrix as values, the output is the weights."""
    p, length = 0.25, 64
    sentence = PackedSequences.from_lists([[1] * length])
    generator = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, length, HEADS, length, generator=generator, dtype=torch.float64).unbind(0)
    v = torch.eye(length, dtype=torch.float64)[:, None].repeat(1, HEADS, 1).requires_grad_()
    weights = attend(q, k, v, sentence, sentence, causal=False, kernel="matmul").detach()
    torch.manual_seed(2)
    out = attend(q, k, v, sentence, sentence, causal=False, p=p, kernel=kernel)
    dropped = out == 0
    torch.testing.assert_close(out, (weights / (1 - p)).masked_fill(dropped, 0.0), rtol=1e-12, atol=1e-15)
    fraction, count = dropped.double().mean().item(), dropped.numel()
    assert fraction == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / count))
    out.sum().backward()
    total_weights = out.detach().sum(dim=0).transpose(0, 1)  # (keys, heads), summed over queries
    torch.testing.assert_close(v.grad, total_weights[:, :, None].expand(-1, -1, length), rtol=1e-12, atol=1e-12)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
def test_varlen_equals_matmul_on_a_gpu(causal: bool) -> None:
    device = torch.device("cuda")
    queries = PackedSequences.from_lists([[1] * n for n in (40, 1, 70)]).to(device)
    keys = queries if causal else PackedSequences.from_lists([[1] * n for n in (20, 50, 30)]).to(device)
    generator = torch.Generator(device).manual_seed(0)
    q, k, v = (
        torch.randn(side.total, 8, 64, generator=generator, device=device).bfloat16() for side in (queries, keys, keys)
    )
    assert choose_kernel(q, 0.0) == "varlen"
    fast = attend(q, k, v, queries, keys, causal=causal)
    plain = attend(q.float(), k.float(), v.float(), queries, keys, causal=causal, kernel="matmul")
    torch.testing.assert_close(fast.float(), plain, rtol=2e-2, atol=2e-2)


def test_attention_weights_are_distributions_over_the_sentence() -> None:
    weights = attention_weights(random_heads(QUERIES, 1), random_heads(KEYS, 2), QUERIES, KEYS)
    assert weights.shape == (3, HEADS, 7, 5)
    q, k = random_heads(QUERIES, 1).bfloat16(), random_heads(KEYS, 2).bfloat16()
    assert attention_weights(q, k, QUERIES, KEYS).dtype == torch.float32
    for sentence, length in enumerate([2, 5, 3]):
        assert (weights[sentence, ..., length:] == 0).all()
        torch.testing.assert_close(weights[sentence].sum(-1), torch.ones(HEADS, 7, dtype=weights.dtype))


def test_pad_repeats_the_last_token_and_unpad_inverts_it() -> None:
    q = random_heads(QUERIES, 4)
    padded = pad(q, QUERIES.one_per_row)
    assert padded.shape == (3, HEADS, 16, D_HEAD)
    assert torch.equal(padded[1], q[4][:, None].expand(-1, 16, -1))
    assert torch.equal(padded[0, :, 4:], q[3][:, None].expand(-1, 12, -1))
    assert torch.equal(unpad(padded, QUERIES.one_per_row), q)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
def test_dropout_fraction_mean_and_gradient(p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    x = torch.ones(1000, 1001, dtype=dtype, requires_grad=True)
    y = dropout(x, p)
    assert y.dtype == dtype
    scale = 2**16 / (2**16 - round(p * 2**16))  # of the rounded probability
    assert y.max().item() == pytest.approx(scale, rel=torch.finfo(dtype).eps)
    dropped = (y == 0).float()
    assert dropped.mean().item() == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / x.numel()) + 2**-16)
    assert y.float().mean().item() == pytest.approx(1.0, abs=0.005)
    for lane in range(4):  # each random integer decides whether four neighbors are dropped
        assert dropped.flatten()[lane::4].mean().item() == pytest.approx(p, abs=0.005)
    assert (dropped[:, 1:] * dropped[:, :-1]).mean().item() == pytest.approx(p * p, abs=0.005)
    y.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, y.detach())


def test_dropout_depends_on_the_seed_and_is_the_identity_at_zero() -> None:
    x = torch.randn(33, 7)
    torch.manual_seed(5)
    first = dropout(x, 0.2)
    torch.manual_seed(5)
    assert torch.equal(first, dropout(x, 0.2))
    assert dropout(x, 0.0) is x


def test_dropout_of_almost_1_is_finite() -> None:
    assert bool(dropout(torch.ones(1000), 1 - 2**-20).isfinite().all())


def test_a_fraction_of_dropout_scales_its_probability() -> None:
    x, layer = torch.randn(33, 7), Dropout(0.4)
    layer.scale = 0.25
    torch.manual_seed(5)
    part = layer(x)
    torch.manual_seed(5)
    assert torch.equal(part, dropout(x, 0.1))
    assert layer.eval()(x) is x
    layer.train().scale = 0.0
    assert layer(x) is x


def test_sinusoids_follow_the_paper() -> None:
    d_model = 12
    table = sinusoids(5_000, d_model)
    for position in (0, 1, 7, 49, 4_999):
        for i in range(d_model // 2):
            angle = position / 10_000 ** (2 * i / d_model)
            assert table[position, i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[position, d_model // 2 + i].item() == pytest.approx(math.cos(angle), abs=1e-6)
