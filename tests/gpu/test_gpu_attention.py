"""Outputs and gradients of every attention kernel, compared with loops in float64 on the CPU.

Tolerances follow from the unit roundoff u of the dtype (2^-24, 2^-11, 2^-8). Let `bound` be the largest
sum |q||k| / sqrt(d) of a query and a key. Rounding queries and scores changes a score by at most 2 u bound, so a weight
by a relative 4 u bound; weights and outputs are rounded once more each. The output error is therefore at most
u (2 + 4 bound) times the weighted sum of |v|, plus n 2^-24 of it for float32 sums of n terms. Gradients accumulate
these errors again.
"""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from nmt.model.attention import Kernel, attend
from nmt.packing.packed import PackedSequences

pytestmark = pytest.mark.gpu

HEADS = 3
UNIT_ROUNDOFF = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
QUERY_LENGTHS, KEY_LENGTHS = (5, 1, 33, 67), (3, 31, 9, 71)


@dataclass
class Exact:
    """Exact results, (total, HEADS, d_head) float64, and the sums of absolute values of their terms."""

    out: Tensor
    grads: tuple[Tensor, Tensor, Tensor]
    out_terms: Tensor
    grads_terms: tuple[Tensor, Tensor, Tensor]
    bound: float


def exact_attention(
    q: Tensor, k: Tensor, v: Tensor, grad: Tensor, lengths: list[tuple[int, int]], causal: bool
) -> Exact:
    """Compute each sentence with the textbook equations."""
    parts: list[tuple[Tensor, ...]] = []
    bound, q_start, k_start, scale = 0.0, 0, 0, 1 / math.sqrt(q.shape[2])
    for q_len, k_len in lengths:
        q_slice, k_slice = slice(q_start, q_start + q_len), slice(k_start, k_start + k_len)
        q_start, k_start = q_slice.stop, k_slice.stop
        qs, grads, ks, vs = (t.transpose(0, 1) for t in (q[q_slice], grad[q_slice], k[k_slice], v[k_slice]))
        scores = qs @ ks.mT * scale
        if causal:
            scores = scores.masked_fill(torch.ones(q_len, k_len).triu(1).bool(), -math.inf)
        weights = scores.softmax(-1)
        d_weights = grads @ vs.mT
        inner = (weights * d_weights).sum(-1, keepdim=True)
        d_scores = weights * (d_weights - inner) * scale
        d_weights_terms = grads.abs() @ vs.abs().mT
        terms = weights * (d_weights_terms + (weights * d_weights_terms).sum(-1, keepdim=True)) * scale
        values = (weights @ vs, d_scores @ ks, d_scores.mT @ qs, weights.mT @ grads)
        magnitudes = (weights @ vs.abs(), terms @ ks.abs(), terms.mT @ qs.abs(), weights.mT @ grads.abs())
        parts.append(tuple(t.transpose(0, 1) for t in (*values, *magnitudes)))
        bound = max(bound, float((qs.abs() @ ks.abs().mT).max()) * scale)
    whole = [torch.cat(one) for one in zip(*parts, strict=True)]
    return Exact(whole[0], (whole[1], whole[2], whole[3]), whole[4], (whole[5], whole[6], whole[7]), bound)


def distance(found: Tensor, exact: Tensor, terms: Tensor) -> float:
    return float((found.cpu().double() - exact).norm() / terms.norm())


@pytest.mark.parametrize("kernel", ["varlen", "sdpa", "matmul"])
@pytest.mark.parametrize("dtype", UNIT_ROUNDOFF, ids=str)
@pytest.mark.parametrize("d_head", [8, 16, 24, 32, 64, 96, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_output_and_gradients_match_float64(
    kernel: Kernel, dtype: torch.dtype, d_head: int, causal: bool, gpu: torch.device
) -> None:
    if kernel == "varlen" and dtype == torch.float32:
        pytest.skip("varlen attention is for 16-bit types")
    key_lengths = QUERY_LENGTHS if causal else KEY_LENGTHS
    queries, keys = (PackedSequences.from_lists([[1] * n for n in side]) for side in (QUERY_LENGTHS, key_lengths))
    generator = torch.Generator().manual_seed(d_head)

    def rows(side: PackedSequences, size: float) -> Tensor:
        return (torch.randn(side.total, HEADS, d_head, generator=generator) * size).to(dtype)

    q, k, v, grad = rows(queries, 0.5), rows(keys, 1.0), rows(keys, 1.0), rows(queries, 1.0)
    doubles = [t.double() for t in (q, k, v, grad)]
    lengths = list(zip(QUERY_LENGTHS, key_lengths, strict=True))
    exact = exact_attention(doubles[0], doubles[1], doubles[2], doubles[3], lengths, causal)

    inputs = q, k, v = tuple(t.to(gpu).requires_grad_() for t in (q, k, v))
    here = queries.to(gpu)
    out = attend(q, k, v, here, here if causal else keys.to(gpu), causal=causal, kernel=kernel)
    assert out.dtype == dtype
    out.backward(grad.to(gpu))

    sums = (d_head + max(key_lengths)) * 2.0**-24 * (1 + exact.bound)
    tolerance = UNIT_ROUNDOFF[dtype] * (2 + 4 * exact.bound) + sums
    assert distance(out.detach(), exact.out, exact.out_terms) <= tolerance
    for tensor, expected, terms in zip(inputs, exact.grads, exact.grads_terms, strict=True):
        assert tensor.grad is not None
        assert distance(tensor.grad, expected, terms) <= 4 * tolerance
    if causal:  # the tolerance distinguishes causal from full attention
        other = exact_attention(doubles[0], doubles[1], doubles[2], doubles[3], lengths, causal=False)
        assert distance(other.out, exact.out, exact.out_terms) > 2 * tolerance


@pytest.mark.parametrize("kernel", ["varlen", "sdpa", "matmul"])
def test_padding_and_empty_sentences_have_no_effect(kernel: Kernel, gpu: torch.device) -> None:
    """As in batches of one shape: a sentence of padding follows the others, then empty sentences."""
    plain = PackedSequences.from_lists([[1] * n for n in (9, 4)])
    padded = plain.append_padding([7, 0, 0], max_length=16)
    generator = torch.Generator().manual_seed(1)
    q, k, v = torch.randn(3, padded.total, HEADS, 32, generator=generator).half().to(gpu).unbind(0)
    sides = plain.to(gpu), padded.to(gpu)
    alone, with_padding = (
        attend(q[: side.total], k[: side.total], v[: side.total], side, side, causal=True, kernel=kernel)
        for side in sides
    )
    assert with_padding.isfinite().all()
    torch.testing.assert_close(with_padding[: plain.total], alone, rtol=2.0**-9, atol=2.0**-9)
