"""Multi-head attention (Vaswani et al. 2017, section 3.2) over packed sentences, and over a cache during search.

One call, `attend`, hides four kernels that compute the same thing:

matmul  rectangles, and the equation as written in `scaled_dot_product`; fastest for short sentences on the CPU
sdpa    rectangles, and torch's fused kernel; on a GPU for all that varlen cannot do: float32, attention dropout, ...
varlen  torch's variable-length flash kernel on the packed rows themselves; on a GPU where `can_use_varlen` allows it
masked  all places against all, and a mask made of `cu_seqlens`; needs of the layout what varlen needs and nothing else,
        so it stands for that one where there is no GPU: slow, never chosen unless it is asked for by name
"""

from __future__ import annotations

import inspect
import math
from typing import Any, Literal, Protocol, assert_never, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.model.dropout import Dropout, dropout
from nmt.model.frozen import FrozenLinear, Linear
from nmt.packed import PackedSequences
from nmt.precision import DeviceFeatures, device_features
from nmt.rectangle import Rectangle, padded_width

Kernel = Literal["matmul", "sdpa", "varlen", "masked"]
Projections = Literal["q", "kv", "qkv"]

# Importing this kernel takes as long as importing torch itself, and only a GPU can use it.
if torch.cuda.is_available():
    from torch.nn.attention.varlen import varlen_attn

    # torch 2.12 replaced `is_causal` by the window (-1, 0).
    _HAS_WINDOW = "window_size" in inspect.signature(varlen_attn).parameters
    _VARLEN_CAUSAL: dict[str, Any] = {"window_size": (-1, 0)} if _HAS_WINDOW else {"is_causal": True}


def scaled_dot_product(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, p: float = 0.0) -> tuple[Tensor, Tensor]:
    """softmax(q k^T / sqrt(d_head) + bias) v, and the attention weights (paper, equation 1).

    q: (..., tgt_len, d_head); k, v: (..., src_len, d_head); bias: broadcasts to (..., tgt_len, src_len), -inf where
    attention is forbidden; p: dropout on the weights. Returns (..., tgt_len, d_head) and (..., tgt_len, src_len). In
    bf16 and fp16 torch's softmax counts in float32, and rounds its result as the product with v would.
    """
    scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-2, -1)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
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
    """`attend` by a kernel that takes rectangles, and a bias that keeps queries from what they must not see."""
    shape = queries.beside(keys, causal=causal)
    q, k, v = lay_out(q, shape.queries), lay_out(k, shape.keys), lay_out(v, shape.keys)  # (rows, heads, width, d_head)
    with torch.autocast(q.device.type, enabled=False):  # q, k, v have the right type, and the softmax has another
        if kernel == "sdpa":
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=shape.bias.to(q.dtype), dropout_p=p)
        else:
            out, _ = scaled_dot_product(q, k, v, shape.bias, p)
    return pack(out, shape.queries)


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
    bias = torch.zeros(hidden.shape, device=q.device).masked_fill(hidden, float("-inf"))
    with torch.autocast(q.device.type, enabled=False):
        q_heads, k_heads, v_heads = (rows.transpose(0, 1) for rows in (q, k, v))  # (num_heads, total, d_head)
        out, _ = scaled_dot_product(q_heads, k_heads, v_heads, bias, p)
    return out.transpose(0, 1)


def attention_weights(q: Tensor, k: Tensor, queries: PackedSequences, keys: PackedSequences) -> Tensor:
    """The weights that `attend` uses where nothing is causal: (num_sentences, num_heads, tgt_len, src_len), padded."""
    q, k = lay_out(q, queries.one_to_a_row), lay_out(k, keys.one_to_a_row)
    weights = scaled_dot_product(q, k, k, keys.padding_bias[:, None, None, :])[1]
    return weights[:, :, : queries.max_length, : keys.max_length].to(torch.promote_types(q.dtype, torch.float32))


def _attend_stored(queries: Tensor, stored: Tensor, bias: Tensor) -> Tensor:
    """Attention to stored keys and values, during search.

    queries: (batch, hypotheses, num_heads, d_head) -> the same shape; stored: (2, batch, num_heads, places, d_head);
    bias: broadcasts to (batch, num_heads, hypotheses, places), in the type of what is stored.
    """
    heads, (keys, values) = queries.transpose(1, 2).to(stored.dtype), stored.unbind(0)
    # In bf16 on a CPU without AMX torch's fused kernel takes three times as long as two products.
    if stored.dtype == torch.bfloat16 and not stored.is_cuda and not torch.cpu._is_amx_tile_supported():
        out, _ = scaled_dot_product(heads, keys, values, bias)
    else:
        out = F.scaled_dot_product_attention(heads, keys, values, attn_mask=bias)
    return out.transpose(1, 2).to(queries.dtype)


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


class Past(Protocol):
    """Where a step of search finds the keys and values of the steps before, and leaves its own."""

    def append(self, keys_values: Tensor) -> Tensor:
        """Add those of a step, (batch, hypotheses, 2, num_heads, d_head).

        Returns all so far, (2, batch, num_heads, places, d_head).

        Places that no hypothesis has filled are numbers too, for the bias to hide.
        """


class KeyValueCache:
    """Keys and values of one attention during search, of every hypothesis that a sentence has had so far.

    They stay where they are when hypotheses die and others take their place. Who comes from whom is told by a bias
    (`DecoderState.past_bias`), and to move its few numbers costs nothing beside moving all of this.

    stored: (2, batch, num_heads, padded_width(length), d_head), keys and values, and zeros behind the first `length`
    """

    def __init__(self, like: Tensor) -> None:
        """Empty, for as many sentences, heads and features as (2, batch, num_heads, any, d_head) has."""
        self.stored = like[:, :, :, :0]
        self.length = 0

    def append(self, keys_values: Tensor) -> Tensor:
        """See `Past.append`; what is returned has zeros behind the places that there are so far."""
        first, self.length = self.length, self.length + keys_values.shape[1]
        more = padded_width(self.length) - self.stored.shape[3]
        if more:
            # No room for later: the products of `_attend_stored` want all of it in one piece.
            self.stored = F.pad(self.stored, (0, 0, 0, more))
        self.stored[:, :, :, first : self.length] = heads_first(keys_values)
        return self.stored

    def keep(self, sentences: Tensor) -> None:
        """Only these sentences stay, in this order; (kept,)."""
        self.stored = self.stored.index_select(1, sentences)


def heads_first(keys_values: Tensor) -> Tensor:
    """As products leave them -> as they are stored.

    (batch, places, 2, num_heads, d_head) -> (2, batch, num_heads, places, d_head).
    """
    return keys_values.permute(2, 0, 3, 1, 4)


class MultiHeadAttention(nn.Module):
    """Concat(head_1 .. head_h) W_O with head_i = Attention(Q W_i, K W_i, V W_i) (paper, section 3.2.2)."""

    def __init__(self, d_model: int, num_heads: int, p: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = Dropout(p)  # on the weights
        self.kernel: Kernel | None = None  # see `Transformer.use_kernel`
        self.q = nn.Linear(d_model, d_model)
        self.k = nn.Linear(d_model, d_model)
        self.v = nn.Linear(d_model, d_model)
        self.out: Linear = nn.Linear(d_model, d_model)
        self._kind: type[FrozenLinear] = FrozenLinear
        self._frozen: dict[Projections, FrozenLinear] = {}

    def forward(self, x: Tensor, layout: PackedSequences, *, causal: bool) -> Tensor:
        """Self-attention. x: (total, d_model) -> (total, d_model)."""
        q, k, v = self._project(x, "qkv").unbind(1)
        return self._merge(attend(q, k, v, layout, layout, causal=causal, p=self.dropout.p_now, kernel=self.kernel))

    def cross(self, x: Tensor, memory: Tensor, queries: PackedSequences, keys: PackedSequences) -> Tensor:
        """Attention to the encoder's output. x: (queries.total, d_model), memory: (keys.total, d_model)."""
        (q,), (k, v) = self._project(x, "q").unbind(1), self._project(memory, "kv").unbind(1)
        return self._merge(attend(q, k, v, queries, keys, causal=False, p=self.dropout.p_now, kernel=self.kernel))

    def cross_weights(self, x: Tensor, memory: Tensor, queries: PackedSequences, keys: PackedSequences) -> Tensor:
        """The weights that `cross` gives the memory: (num_sentences, num_heads, tgt_len, src_len) float32, padded."""
        (q,), (k, _) = self._project(x, "q").unbind(1), self._project(memory, "kv").unbind(1)
        return attention_weights(q, k, queries, keys)

    def step(self, x: Tensor, past: Past, bias: Tensor) -> Tensor:
        """Self-attention of the newest position of each hypothesis to its own past, which it joins.

        x: (batch, hypotheses, d_model) -> the same shape; bias: (batch, 1, hypotheses, places of the past with this
        step), in the type of x.
        """
        projected = self._project(x, "qkv")
        return self._merge(_attend_stored(projected[:, :, 0], past.append(projected[:, :, 1:]), bias))

    def step_cross(self, x: Tensor, memory: Tensor, bias: Tensor) -> Tensor:
        """Attention of all hypotheses of a sentence to its memory, which is stored once for them.

        x: (batch, hypotheses, d_model) -> the same shape; memory: (2, batch, num_heads, src_len, d_head); bias: (batch,
        1, 1, src_len).
        """
        return self._merge(_attend_stored(self._project(x, "q").squeeze(2), memory, bias))

    def stored_memory(self, memory: Tensor, layout: PackedSequences) -> Tensor:
        """Keys and values of the encoder's output for `step_cross`, a row for each sentence; (total, d_model)."""
        rows = layout.one_to_a_row.tokens  # (num_sentences, padded src_len)
        stored: Tensor = self._project(memory, "kv").index_select(0, rows.flatten()).unflatten(0, rows.shape)
        return heads_first(stored).contiguous().to(self._kind.stored_type(memory))

    def freeze(self, kind: type[FrozenLinear], *uses: Projections) -> None:
        """Lay the weights out for search, for nothing but these uses of `_project`; training is over."""
        self._kind, self._frozen = kind, {use: kind.of(*self._layers(use)) for use in uses}
        self.out = kind.of(self.out)
        del self.q, self.k, self.v

    def _project(self, x: Tensor, use: Projections) -> Tensor:
        """Queries, keys, values, as asked for, in one product: (..., d_model) -> (..., 1 to 3, num_heads, d_head)."""
        if self._frozen:
            projected: Tensor = self._frozen[use](x)
        elif len(use) == 1:
            projected = self._layers(use)[0](x)
        else:
            layers = self._layers(use)
            weight = torch.cat([layer.weight for layer in layers])
            projected = F.linear(x, weight, torch.cat([layer.bias for layer in layers]))
        return projected.view(*x.shape[:-1], len(use), self.num_heads, -1)

    def _layers(self, use: Projections) -> list[nn.Linear]:
        return [getattr(self, name) for name in use]

    def _merge(self, heads: Tensor) -> Tensor:
        """(..., num_heads, d_head) -> (..., d_model)."""
        merged: Tensor = self.out(heads.flatten(-2))
        return merged
