"""Variable-length attention on the CPU, sentence by sentence, for `tests.simulated_cuda`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import varlen


def _attention_weights(q: Tensor, k: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Weights and log-sum-exp of the scores of one sentence; q, k: (num_heads, length, d_head) in fp32."""
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
    if causal:
        later = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1 + k.shape[1] - q.shape[1])
        scores = scores.masked_fill(later, float("-inf"))
    return torch.softmax(scores, dim=-1), torch.logsumexp(scores, dim=-1)


def _heads(x: Tensor) -> Tensor:
    """(length, num_heads, d_head) -> (num_heads, length, d_head) in fp32, and back."""
    return x.transpose(0, 1).float()


def _sentences(q: Tensor, k: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int) -> list[tuple[slice, slice]]:
    """Positions of the queries and keys of each sentence; checks what the kernel requires."""
    assert q.dtype in (torch.float16, torch.bfloat16) and q.dtype == k.dtype
    assert cu_q.dtype == cu_k.dtype == torch.int32 and len(cu_q) == len(cu_k)
    assert q.stride(-1) == k.stride(-1) == 1
    rows = [
        (slice(a, b), slice(c, d))
        for a, b, c, d in zip(cu_q[:-1].tolist(), cu_q[1:].tolist(), cu_k[:-1].tolist(), cu_k[1:].tolist(), strict=True)
    ]
    for queries, keys in rows:
        assert 0 <= queries.start <= queries.stop <= len(q) and queries.stop - queries.start <= max_q
        assert 0 <= keys.start <= keys.stop <= len(k) and keys.stop - keys.start <= max_k
    return rows


def _undefined_like(x: Tensor) -> Tensor:
    return torch.full_like(x, float("nan"), memory_format=torch.contiguous_format)


def _varlen_forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the operator `torch_attn::_varlen_attn`; rest: cu_q, cu_k, max_q, max_k, is_causal, scale, window, ..."""
    out, lse = _undefined_like(q), torch.full((q.shape[1], len(q)), float("nan"))
    for queries, keys in _sentences(q, k, *rest[:4]):
        weights, lse[:, queries] = _attention_weights(_heads(q[queries]), _heads(k[keys]), rest[4])
        out[queries] = _heads(weights @ _heads(v[keys])).to(q.dtype)
    return out, lse, torch.zeros(2, dtype=torch.uint64)


def _varlen_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any) -> Any:
    """Compute the operator `torch_attn::_varlen_attn_backward`; rest: cu_q, cu_k, max_q, max_k, is_causal, ..."""
    grads = grad_q, grad_k, grad_v = _undefined_like(q), _undefined_like(k), _undefined_like(v)
    for queries, keys in _sentences(q, k, *rest[:4]):
        part_q, part_k, part_v, part_grad = _heads(q[queries]), _heads(k[keys]), _heads(v[keys]), _heads(grad[queries])
        weights, _ = _attention_weights(part_q, part_k, rest[4])
        grad_weights = part_grad @ part_v.transpose(1, 2)
        grad_scores = weights * (grad_weights - (grad_weights * weights).sum(dim=-1, keepdim=True))
        grad_scores /= math.sqrt(q.shape[-1])
        grad_q[queries] = _heads(grad_scores @ part_k).to(q.dtype)
        grad_k[keys] = _heads(grad_scores.transpose(1, 2) @ part_q).to(k.dtype)
        grad_v[keys] = _heads(weights.transpose(1, 2) @ part_grad).to(v.dtype)
    return grads


KERNELS: dict[str, Callable[..., Any]] = {
    "torch_attn::_varlen_attn": _varlen_forward,
    "torch_attn::_varlen_attn_backward": _varlen_backward,
}


def varlen_kernel() -> dict[str, Any]:
    """Names that `nmt.model.attention` imports with a GPU."""
    has_window = "window_size" in inspect.signature(varlen.varlen_attn).parameters
    causality = {"window_size": (-1, 0)} if has_window else {"is_causal": True}
    return {"varlen_attn": varlen.varlen_attn, "_VARLEN_CAUSAL": causality}
