"""Multi-head attention (Vaswani et al. 2017, section 3.2) over packed sentences, and over a cache during search.

One call, `attend`, hides four kernels that compute the same thing:

matmul  rectangles, and the equation as written in `scaled_dot_product`; fastest for short sentences on the CPU
sdpa    rectangles, and torch's fused kernel; for float32 on a GPU
varlen  torch's variable-length flash kernel on the packed rows themselves; for bf16 and fp16 on a GPU
masked  all places against all, and a mask made of `cu_seqlens`; needs of the layout what varlen needs and nothing else,
        so it stands for that one where there is no GPU: slow, never chosen unless it is asked for by name
"""

from __future__ import annotations

import inspect
import math
from typing import Any, Literal, assert_never, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.model.dropout import dropout
from nmt.packed import PackedSequences
from nmt.rectangle import Rectangle

Kernel = Literal["matmul", "sdpa", "varlen", "masked"]

# Importing this kernel takes as long as importing torch itself, and only a GPU can use it.
if torch.cuda.is_available():
    from torch.nn.attention.varlen import varlen_attn

    # torch 2.12 replaced `is_causal` by the window (-1, 0).
    _HAS_WINDOW = "window_size" in inspect.signature(varlen_attn).parameters
    _VARLEN_CAUSAL: dict[str, Any] = {"window_size": (-1, 0)} if _HAS_WINDOW else {"is_causal": True}


def scaled_dot_product(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, p: float = 0.0) -> tuple[Tensor, Tensor]:
    """softmax(q k^T / sqrt(d_head) + bias) v, and the attention weights (paper, equation 1).

    q: (..., tgt_len, d_head); k, v: (..., src_len, d_head); bias: broadcasts to (..., tgt_len, src_len), -inf where
    attention is forbidden; p: dropout on the weights. Returns (..., tgt_len, d_head) and (..., tgt_len, src_len).
    """
    scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-2, -1)
    if bias is not None:
        scores = scores + bias
    weights = dropout(torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)), p)
    return weights.to(v.dtype) @ v, weights


def choose_kernel(q: Tensor, p: float) -> Kernel:
    """The fastest kernel that can do the job for a query tensor and a dropout probability on the weights."""
    if not q.is_cuda or p > 0.0:
        return "matmul"
    return "varlen" if q.dtype in (torch.bfloat16, torch.float16) else "sdpa"


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
    """Attention of every sentence of `queries` to the same sentence of `keys`, and to nothing else.

    q: (queries.total, num_heads, d_head); k, v: (keys.total, num_heads, d_head). With `causal`, a position sees itself
    and what stands before it. Returns (queries.total, num_heads, d_head).
    """
    kernel = kernel or choose_kernel(q, p)
    match kernel:
        case "varlen":
            causality = _VARLEN_CAUSAL if causal else {}
            lengths = (queries.cu_seqlens, keys.cu_seqlens, queries.max_length, keys.max_length)
            return cast(Tensor, varlen_attn(q, k, v, *lengths, **causality))
        case "sdpa" | "matmul":
            return _attend_in_rectangles(q, k, v, queries, keys, causal=causal, p=p, kernel=kernel)
        case "masked":
            return _attend_by_mask(q, k, v, queries, keys, causal=causal, p=p)
        case _:
            assert_never(kernel)


def _attend_in_rectangles(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: PackedSequences,
    keys: PackedSequences,
    *,
    causal: bool,
    p: float,
    kernel: Kernel,
) -> Tensor:
    """`attend` by a kernel that takes rectangles, and a bias that keeps queries from what they must not see.

    On a CPU in float32 at least: there these products are too small to gain by bf16.
    """
    narrow = q.dtype
    if q.device.type == "cpu":
        q, k, v = (rows.to(torch.promote_types(narrow, torch.float32)) for rows in (q, k, v))
    shape = queries.beside(keys, causal=causal)
    q, k, v = lay_out(q, shape.queries), lay_out(k, shape.keys), lay_out(v, shape.keys)  # (rows, heads, width, d_head)
    with torch.autocast(q.device.type, enabled=False):  # which would make the products narrow again
        if kernel == "sdpa":
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=shape.bias.to(q.dtype), dropout_p=p)
        else:
            out, _ = scaled_dot_product(q, k, v, shape.bias, p)
    return pack(out, shape.queries).to(narrow)


def _attend_by_mask(
    q: Tensor, k: Tensor, v: Tensor, queries: PackedSequences, keys: PackedSequences, *, causal: bool, p: float
) -> Tensor:
    """`attend` on one row of all sentences; each of `queries` that has tokens must have some in `keys`."""
    q_places, k_places = (torch.arange(len(rows), device=rows.device) for rows in (q, k))
    q_sentences = torch.searchsorted(queries.cu_seqlens[1:].long(), q_places, right=True)  # empty ones have no place
    k_sentences = torch.searchsorted(keys.cu_seqlens[1:].long(), k_places, right=True)
    hidden = q_sentences[:, None] != k_sentences
    if causal:
        hidden = hidden | (q_places[:, None] < k_places)
    wide = torch.promote_types(q.dtype, torch.float32)
    bias = torch.zeros(hidden.shape, dtype=wide, device=q.device).masked_fill(hidden, float("-inf"))
    with torch.autocast(q.device.type, enabled=False):
        q_heads, k_heads, v_heads = (rows.to(wide).transpose(0, 1) for rows in (q, k, v))  # (num_heads, total, d_head)
        out, _ = scaled_dot_product(q_heads, k_heads, v_heads, bias, p)
    return out.transpose(0, 1).to(q.dtype)


def attention_weights(q: Tensor, k: Tensor, queries: PackedSequences, keys: PackedSequences) -> Tensor:
    """The weights that `attend` uses where nothing is causal: (num_sentences, num_heads, tgt_len, src_len), padded."""
    q, k = lay_out(q, queries.one_to_a_row), lay_out(k, keys.one_to_a_row)
    return scaled_dot_product(q, k, k, keys.padding_bias[:, None, None, :])[1]


def lay_out(packed: Tensor, rectangle: Rectangle) -> Tensor:
    """(total, num_heads, d_head) -> (rows, num_heads, width, d_head), the last of each row repeated behind its end.

    What stands behind the end must not count: a bias of -inf keeps it from being seen, and `pack` drops it.
    """
    num_heads, d_head = packed.shape[1:]
    laid_out = _LayOut.apply(packed.reshape(-1, d_head), *rectangle.head_rows(num_heads))  # type: ignore[no-untyped-call]
    return cast(Tensor, laid_out).view(-1, num_heads, rectangle.width, d_head)


def pack(laid_out: Tensor, rectangle: Rectangle) -> Tensor:
    """The inverse of `lay_out`."""
    num_heads, d_head = laid_out.shape[1], laid_out.shape[3]
    _, places = rectangle.head_rows(num_heads)
    packed = _Pack.apply(laid_out.reshape(-1, d_head), places)  # type: ignore[no-untyped-call]
    return cast(Tensor, packed).view(-1, num_heads, d_head)


class _LayOut(torch.autograd.Function):
    """Both ways a plain gather: what stands behind the end has no gradient, because nothing that counts has seen it."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor, rows: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        return packed.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        return grad.index_select(0, places), None, None


class _Pack(torch.autograd.Function):
    """A plain gather, and as its gradient a scatter among zeros, since no two rows share a place."""

    @staticmethod
    def forward(ctx: Any, laid_out: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.num_places = len(laid_out)
        return laid_out.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        return grad.new_zeros(ctx.num_places, grad.shape[1]).index_copy_(0, places, grad), None


class KeyValueCache:
    """Keys and values of one attention during search, one row per hypothesis, grown by doubling.

    keys, values: (rows, num_heads, capacity, d_head), of which the first `length` places are filled.
    """

    def __init__(self, rows: int, num_heads: int, d_head: int, like: Tensor) -> None:
        self.keys = like.new_empty(rows, num_heads, 16, d_head)
        self.values = torch.empty_like(self.keys)
        self.length = 0

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add one position, k and v of shape (rows, num_heads, d_head); returns all keys and values so far."""
        if self.length == self.keys.shape[2]:
            self.keys = torch.cat([self.keys, torch.empty_like(self.keys)], dim=2)
            self.values = torch.cat([self.values, torch.empty_like(self.values)], dim=2)
        self.keys[:, :, self.length] = k
        self.values[:, :, self.length] = v
        self.length += 1
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def select(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was."""
        self.keys = self.keys.index_select(0, rows)
        self.values = self.values.index_select(0, rows)


class MultiHeadAttention(nn.Module):
    """Concat(head_1 .. head_h) W_O with head_i = Attention(Q W_i, K W_i, V W_i) (paper, section 3.2.2)."""

    def __init__(self, d_model: int, num_heads: int, p: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.p = p
        self.kernel: Kernel | None = None  # see `Transformer.use_kernel`
        self.q = nn.Linear(d_model, d_model)
        self.k = nn.Linear(d_model, d_model)
        self.v = nn.Linear(d_model, d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, layout: PackedSequences, *, causal: bool) -> Tensor:
        """Self-attention. x: (total, d_model) -> (total, d_model)."""
        q, k, v = self._project(x, self.q, self.k, self.v)
        return self._merge(attend(q, k, v, layout, layout, causal=causal, p=self._p, kernel=self.kernel))

    def cross(self, x: Tensor, memory: Tensor, queries: PackedSequences, keys: PackedSequences) -> Tensor:
        """Attention to the encoder's output. x: (queries.total, d_model), memory: (keys.total, d_model)."""
        (q,) = self._project(x, self.q)
        k, v = self._project(memory, self.k, self.v)
        return self._merge(attend(q, k, v, queries, keys, causal=False, p=self._p, kernel=self.kernel))

    def cross_weights(self, x: Tensor, memory: Tensor, queries: PackedSequences, keys: PackedSequences) -> Tensor:
        """The weights that `cross` gives the memory: (num_sentences, num_heads, tgt_len, src_len) float32, padded."""
        (q,), (k,) = self._project(x, self.q), self._project(memory, self.k)
        return attention_weights(q, k, queries, keys)

    def step(self, x: Tensor, cache: KeyValueCache) -> Tensor:
        """Self-attention of the newest position to all so far. x: (rows, d_model) -> (rows, d_model)."""
        (q,), (k,), (v,) = self._project(x, self.q), self._project(x, self.k), self._project(x, self.v)
        keys, values = cache.append(k, v)
        out, _ = scaled_dot_product(q[:, :, None], keys, values, bias=None)
        return self._merge(out.squeeze(2))

    def step_cross(self, x: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Attention of all beams of a sentence to its memory, which is stored once, not per beam; and its weights.

        x: (batch, beam, d_model); keys, values: (batch, num_heads, src_len, d_head); bias: (batch, 1, 1, src_len).
        Returns (batch, beam, d_model) and (batch, num_heads, beam, src_len) float32.
        """
        (q,) = self._project(x, self.q)
        out, weights = scaled_dot_product(q.transpose(1, 2), keys, values, bias)  # beams in the place of query length
        return self._merge(out.transpose(1, 2)), weights

    def memory_keys_values(self, memory: Tensor, layout: PackedSequences) -> tuple[Tensor, Tensor]:
        """Keys and values of a memory for `step_cross`, each (num_sentences, num_heads, src_len, d_head)."""
        k, v = self._project(memory, self.k, self.v)
        return lay_out(k, layout.one_to_a_row), lay_out(v, layout.one_to_a_row)

    @property
    def _p(self) -> float:
        return self.p if self.training else 0.0

    def _project(self, x: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
        """Each layer applied to x and split into heads, all in one matrix product: (..., num_heads, d_head) each."""
        if len(layers) == 1:
            projected = layers[0](x)
        else:
            weight = torch.cat([layer.weight for layer in layers])
            projected = F.linear(x, weight, torch.cat([layer.bias for layer in layers]))
        heads = projected.view(*x.shape[:-1], len(layers), self.num_heads, -1)
        return tuple(heads.unbind(-3))

    def _merge(self, heads: Tensor) -> Tensor:
        """(..., num_heads, d_head) -> (..., d_model)."""
        merged: Tensor = self.out(heads.flatten(-2))
        return merged
