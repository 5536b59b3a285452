"""Attention (Vaswani et al. 2017, section 3.2.1): the equation, and what computes it over packed sentences.

`attend` hides four kernels with the same result:

matmul  padded rows, and the equation as written in `scaled_dot_product`: fastest for short sentences on a CPU
sdpa    padded rows, and torch's fused kernel: on a GPU, where varlen does not support the dtype or the dropout
varlen  torch's variable-length flash kernel on packed rows: on a GPU where `can_use_varlen` allows it
masked  all positions against all, and a mask made of `cu_seqlens`: the inputs of varlen on any device, for tests
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
from nmt.packing.rectangle import pad, unpad

Kernel = Literal["matmul", "sdpa", "varlen", "masked"]

# Importing this kernel takes as long as importing torch itself, and only a GPU can use it.
if torch.cuda.is_available():
    from torch.nn.attention.varlen import varlen_attn

    # torch 2.12 replaced `is_causal` by the window (-1, 0).
    _HAS_WINDOW = "window_size" in inspect.signature(varlen_attn).parameters
    _VARLEN_CAUSAL: dict[str, Any] = {"window_size": (-1, 0)} if _HAS_WINDOW else {"is_causal": True}


def scaled_dot_product(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float = 0.0) -> tuple[Tensor, Tensor]:
    """softmax(q k^T / sqrt(d_head) + mask) v, and the attention weights (paper, equation 1).

    q: (..., tgt_len, d_head); k, v: (..., src_len, d_head); mask: broadcasts to (..., tgt_len, src_len), 0 where a
    query may attend and -inf elsewhere; p: dropout on the weights. Returns (..., tgt_len, d_head) and (..., tgt_len,
    src_len). In bf16 and fp16 torch's softmax accumulates in float32.
    """
    scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-2, -1)
    if mask is not None:
        scores = scores + mask.to(scores.dtype)
    weights = dropout(torch.softmax(scores, dim=-1), p)
    return weights @ v, weights


def choose_kernel(q: Tensor, p: float) -> Kernel:
    """The fastest kernel that supports queries (..., d_head) and dropout on the weights with probability `p`."""
    if not q.is_cuda:
        return "matmul"
    return "varlen" if can_use_varlen(device_features(q.device), q.dtype, q.shape[-1], p) else "sdpa"


def can_use_varlen(features: DeviceFeatures, dtype: torch.dtype, d_head: int, p: float) -> bool:
    """Whether torch's variable-length flash kernel supports this; it has no dropout on the weights.

    The limits are those that torch checks in `mha_varlen_fwd` (aten/src/ATen/native/transformers/cuda/flash_attn).
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
    """Every sentence of `queries` attends to the same sentence of `keys`, and to nothing else.

    q: (queries.total, num_heads, d_head); k, v: (keys.total, num_heads, d_head). With `causal` a position sees only
    itself and those before it. Returns (queries.total, num_heads, d_head).
    """
    kernel = kernel or choose_kernel(q, p)
    match kernel:
        case "varlen":
            causality = _VARLEN_CAUSAL if causal else {}
            lengths = (queries.cu_seqlens, keys.cu_seqlens, queries.max_length, keys.max_length)
            return cast(Tensor, varlen_attn(q, k, v, *lengths, **causality))
        case "sdpa" | "matmul":
            return _attend_padded(q, k, v, queries, keys, causal=causal, p=p, fused=kernel == "sdpa")
        case "masked":
            return _attend_masked(q, k, v, queries, keys, causal=causal, p=p)
        case _:
            assert_never(kernel)


def _attend_padded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: PackedSequences,
    keys: PackedSequences,
    *,
    causal: bool,
    p: float,
    fused: bool,
) -> Tensor:
    """`attend` on padded rows, several sentences in each, under a mask that keeps them apart."""
    rows = queries.beside(keys, causal=causal)
    q, k, v = pad(q, rows.queries), pad(k, rows.keys), pad(v, rows.keys)  # (rows, num_heads, width, d_head)
    with torch.autocast(q.device.type, enabled=False):  # q, k, v have the right dtype, and the softmax has another
        if fused:
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=rows.mask.to(q.dtype), dropout_p=p)
        else:
            out, _ = scaled_dot_product(q, k, v, rows.mask, p)
    return unpad(out, rows.queries)


def _attend_masked(
    q: Tensor, k: Tensor, v: Tensor, queries: PackedSequences, keys: PackedSequences, *, causal: bool, p: float
) -> Tensor:
    """`attend` on one row of all sentences; a sentence with queries must have keys."""
    q_index, k_index = (torch.arange(len(rows), device=rows.device) for rows in (q, k))
    q_sentence = torch.searchsorted(queries.cu_seqlens[1:].long(), q_index, right=True)
    k_sentence = torch.searchsorted(keys.cu_seqlens[1:].long(), k_index, right=True)
    hidden = q_sentence[:, None] != k_sentence
    if causal:
        hidden = hidden | (q_index[:, None] < k_index)
    mask = torch.zeros(hidden.shape, device=q.device).masked_fill(hidden, float("-inf"))
    with torch.autocast(q.device.type, enabled=False):
        q, k, v = (rows.transpose(0, 1) for rows in (q, k, v))  # (num_heads, total, d_head)
        out, _ = scaled_dot_product(q, k, v, mask, p)
    return out.transpose(0, 1)


def attention_weights(q: Tensor, k: Tensor, queries: PackedSequences, keys: PackedSequences) -> Tensor:
    """The weights of `attend` without `causal`: (num_sentences, num_heads, tgt_len, src_len), padded."""
    q, k = pad(q, queries.one_to_a_row), pad(k, keys.one_to_a_row)
    weights = scaled_dot_product(q, k, k, keys.padding_mask[:, None, None, :])[1]
    return weights[:, :, : queries.max_length, : keys.max_length].to(torch.promote_types(q.dtype, torch.float32))


def attend_cached(queries: Tensor, stored: Tensor, mask: Tensor) -> Tensor:
    """Attention to stored keys and values, during search.

    queries: (batch, hypotheses, num_heads, d_head) -> the same shape; stored: (2, batch, num_heads, slots, d_head);
    mask: broadcasts to (batch, num_heads, hypotheses, slots), additive, in the dtype of `stored`.
    """
    heads, (keys, values) = queries.transpose(1, 2).to(stored.dtype), stored.unbind(0)
    # In bf16 on a CPU without AMX torch's fused kernel takes three times as long as two matmuls.
    if stored.dtype == torch.bfloat16 and not stored.is_cuda and not torch.cpu._is_amx_tile_supported():
        out, _ = scaled_dot_product(heads, keys, values, mask)
    else:
        out = F.scaled_dot_product_attention(heads, keys, values, attn_mask=mask)
    return out.transpose(1, 2).to(queries.dtype)
