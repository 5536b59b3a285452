"""Attention (Vaswani et al. 2017, section 3.2.1): the equation, and its kernels for packed sentences.

All kernels compute the same result:

matmul  padded rows and `scaled_dot_product`; fastest for short sentences on a CPU
sdpa    padded rows and torch's fused kernel; on a GPU unless `can_use_varlen`
varlen  torch's variable-length flash kernel on packed positions; on a GPU if `can_use_varlen`
masked  all packed positions at once, with a mask from `cu_seqlens`; takes the inputs of varlen and runs on any device,
        to test compiled steps
"""

from __future__ import annotations

import inspect
import math
from typing import Any, Literal, assert_never, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.devices.precision import DeviceFeatures, device_features
from nmt.model.dropout import dropout
from nmt.packing.packed import PackedSequences
from nmt.packing.padding import pad, unpad

Kernel = Literal["matmul", "sdpa", "varlen", "masked"]

# Importing this kernel takes as long as importing torch itself, and only a GPU can use it.
if torch.cuda.is_available():
    from torch.nn.attention.varlen import varlen_attn

    # torch 2.11 replaced `is_causal` with the window (-1, 0).
    _HAS_WINDOW = "window_size" in inspect.signature(varlen_attn).parameters
    _VARLEN_CAUSAL: dict[str, Any] = {"window_size": (-1, 0)} if _HAS_WINDOW else {"is_causal": True}


def scaled_dot_product(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float = 0.0) -> tuple[Tensor, Tensor]:
    """softmax(q k^T / sqrt(d_head) + mask) v, and the attention weights (paper, equation 1).

    Args:
        q: (..., tgt_len, d_head)
        k, v: (..., src_len, d_head)
        mask: broadcasts to (..., tgt_len, src_len); 0 where a query may attend, -inf elsewhere
        p: dropout probability of the weights

    Returns:
        (..., tgt_len, d_head) and (..., tgt_len, src_len).
    """
    scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-2, -1)  # (..., tgt_len, src_len)
    if mask is not None:
        scores = scores + mask.to(scores.dtype)
    weights = dropout(torch.softmax(scores, dim=-1), p)  # torch accumulates the softmax in float32
    return weights @ v, weights


def choose_kernel(q: Tensor, p: float) -> Kernel:
    """Return the fastest kernel for queries (..., d_head) and dropout probability `p` of the weights."""
    if not q.is_cuda:
        return "matmul"
    return "varlen" if can_use_varlen(device_features(q.device), q.dtype, q.shape[-1], p) else "sdpa"


def can_use_varlen(features: DeviceFeatures, dtype: torch.dtype, d_head: int, p: float) -> bool:
    """Return whether torch's variable-length flash kernel supports these inputs; it has no dropout.

    The limits are those of `mha_varlen_fwd` (aten/src/ATen/native/transformers/cuda/flash_attn).
    """
    has_kernel = features.kind == "cuda" and features.capability >= (8, 0)
    return has_kernel and dtype in (torch.bfloat16, torch.float16) and d_head % 8 == 0 and d_head <= 256 and p == 0.0


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: PackedSequences,
    keys: PackedSequences,
    *,
    causal: bool,
    p: float = 0.0,
    kernel: Kernel | None = None,
) -> Tensor:
    """Attention of every sentence of `queries` to the corresponding sentence of `keys`.

    Args:
        q: (queries.total, num_heads, d_head)
        k, v: (keys.total, num_heads, d_head)
        causal: a position attends only to itself and earlier positions.
        p: dropout probability of the weights
        kernel: None selects the fastest.

    Returns:
        (queries.total, num_heads, d_head).
    """
    kernel = kernel or choose_kernel(q, p)
    match kernel:
        case "varlen":
            options = _VARLEN_CAUSAL if causal else {}
            lengths = (queries.cu_seqlens, keys.cu_seqlens, queries.max_length, keys.max_length)
            return cast(Tensor, varlen_attn(q, k, v, *lengths, **options))
        case "sdpa" | "matmul":
            rows = queries.attention_rows(keys, causal=causal)
            q, k, v = pad(q, rows.queries), pad(k, rows.keys), pad(v, rows.keys)  # (rows, num_heads, width, d_head)
            with torch.autocast(q.device.type, enabled=False):  # it would compute the softmax in another dtype
                if kernel == "sdpa":
                    out = F.scaled_dot_product_attention(q, k, v, attn_mask=rows.mask.to(q.dtype), dropout_p=p)
                else:
                    out, _ = scaled_dot_product(q, k, v, rows.mask, p)
            return unpad(out, rows.queries)
        case "masked":
            mask = _packed_mask(queries, keys, causal=causal)
            with torch.autocast(q.device.type, enabled=False):
                q, k, v = (x.transpose(0, 1) for x in (q, k, v))  # (num_heads, total, d_head)
                out, _ = scaled_dot_product(q, k, v, mask, p)
            return out.transpose(0, 1)
        case _:
            assert_never(kernel)


def _packed_mask(queries: PackedSequences, keys: PackedSequences, *, causal: bool) -> Tensor:
    """Return an additive mask (queries.total, keys.total); a sentence with queries must have keys."""
    device = queries.cu_seqlens.device
    q_index, k_index = (torch.arange(side.total, device=device) for side in (queries, keys))
    q_sentence = torch.searchsorted(queries.cu_seqlens[1:].long(), q_index, right=True)
    k_sentence = torch.searchsorted(keys.cu_seqlens[1:].long(), k_index, right=True)
    is_hidden = q_sentence[:, None] != k_sentence
    if causal:
        is_hidden = is_hidden | (q_index[:, None] < k_index)
    return torch.zeros(is_hidden.shape, dtype=torch.float32, device=device).masked_fill(is_hidden, float("-inf"))


def attention_weights(q: Tensor, k: Tensor, queries: PackedSequences, keys: PackedSequences) -> Tensor:
    """Return the non-causal weights of `attend`, (num_sentences, num_heads, tgt_len, src_len), padded."""
    q, k = pad(q, queries.one_per_row), pad(k, keys.one_per_row)
    _, weights = scaled_dot_product(q, k, k, keys.padding_mask[:, None, None, :])
    return weights[:, :, : queries.max_length, : keys.max_length].to(torch.promote_types(q.dtype, torch.float32))


def attend_cached(q: Tensor, cached: Tensor, mask: Tensor) -> Tensor:
    """Attention of the newest positions to cached keys and values.

    Args:
        q: (batch, hypotheses, num_heads, d_head)
        cached: (2, batch, num_heads, slots, d_head), keys and values
        mask: broadcasts to (batch, num_heads, hypotheses, slots), additive, in the dtype of `cached`

    Returns:
        (batch, hypotheses, num_heads, d_head).
    """
    heads = q.transpose(1, 2).to(cached.dtype)
    k, v = cached.unbind(0)
    # In bf16 on a CPU without AMX, torch's fused kernel takes three times as long as two matmuls.
    if cached.dtype == torch.bfloat16 and not cached.is_cuda and not torch.cpu._is_amx_tile_supported():
        out, _ = scaled_dot_product(heads, k, v, mask)
    else:
        out = F.scaled_dot_product_attention(heads, k, v, attn_mask=mask)
    return out.transpose(1, 2).to(q.dtype)
