"""Padded rows for attention by matmuls.

One row per sentence would be mostly padding, because lengths differ. Several sentences therefore share a row, and an
attention mask restricts each query to the keys of its own sentence.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.devices.transfer import to_device

Lengths = NDArray[np.int64]

# Rows have capacity for several short sentences. Their width is a multiple of the step, to limit the matmul shapes.
_MIN_WIDTH = 64
_WIDTH_STEP = 16


@dataclass(frozen=True)
class PaddedRows:
    """Layout of packed tokens in rows of one width.

    tokens: (rows, width) int64, index of the packed token in each slot; padding repeats the last token of its row
    slots:  (total,) int64, slot of each token: row * width + column
    """

    tokens: Tensor
    slots: Tensor

    @property
    def width(self) -> int:
        """Slots per row."""
        return self.tokens.shape[1]

    def head_rows(self, num_heads: int) -> tuple[Tensor, Tensor]:
        """Return gather indices for `(total * num_heads,)` rows of single heads, int64; cached for all layers.

        The first pads, (rows * num_heads * width,); the second unpads, (total * num_heads,).
        """
        if num_heads not in self._head_rows:
            heads = torch.arange(num_heads, device=self.tokens.device)
            pad_index = self.tokens[:, None, :] * num_heads + heads[:, None]
            row, column = self.slots // max(self.width, 1), self.slots % max(self.width, 1)
            unpad_index = (row[:, None] * num_heads + heads) * self.width + column[:, None]
            self._head_rows[num_heads] = pad_index.flatten(), unpad_index.flatten()
        return self._head_rows[num_heads]

    @cached_property
    def _head_rows(self) -> dict[int, tuple[Tensor, Tensor]]:
        return {}


@dataclass(frozen=True)
class AttentionRows:
    """Queries and keys in the same number of rows: a sentence has the same row on both sides.

    mask: (rows, 1, query width, key width) float32, 0 where a query attends to a key, -inf elsewhere
    """

    queries: PaddedRows
    keys: PaddedRows
    mask: Tensor


def one_per_row(lengths: Lengths, device: torch.device) -> PaddedRows:
    """Put each sentence in its own row, with the padded width of the longest."""
    width = padded_width(int(lengths.max(initial=0)))
    rows, _, _ = _layout(lengths, np.arange(len(lengths)), width, device)
    return rows


def shared_rows(queries: Lengths, keys: Lengths, *, causal: bool, device: torch.device) -> AttentionRows:
    """Pack as many sentences into a row as fit on both sides.

    Args:
        queries, keys: lengths (num_sentences,) of both sides
        causal: a query attends only to keys up to its own column.
    """
    query_width, key_width = row_width(int(queries.max(initial=0))), row_width(int(keys.max(initial=0)))
    row_of = _pack_rows(np.stack([queries, keys], axis=1), (query_width, key_width))
    query_rows, query_sentences, query_ends = _layout(queries, row_of, query_width, device)
    key_rows, key_sentences, key_ends = _layout(keys, row_of, key_width, device)
    query_columns, key_columns = np.arange(query_width), np.arange(key_width)
    visible = query_sentences[:, :, None] == key_sentences[:, None, :]  # (rows, query width, key width)
    visible &= (key_columns < key_ends)[:, None, :]
    if causal:
        visible &= key_columns <= query_columns[:, None]
    # Padding queries see every key. Without any key, their softmax and the gradient of the keys would be NaN.
    visible |= (query_columns >= query_ends)[:, :, None]
    mask = np.where(visible, np.float32(0.0), np.float32("-inf"))[:, None]
    return AttentionRows(query_rows, key_rows, to_device(mask, device))


def row_width(longest: int) -> int:
    """Return the width of shared rows for sentences of up to `longest` tokens."""
    return max(_MIN_WIDTH, padded_width(longest)) if longest else 0


def padded_width(length: int) -> int:
    """Round a width up to a multiple of 16.

    Below 16, the softmax of torch on a CPU with AVX-512 can be more than ten times slower.
    """
    return -(-length // _WIDTH_STEP) * _WIDTH_STEP


def _pack_rows(lengths: Lengths, widths: tuple[int, ...]) -> Lengths:
    """Assign a row to each sentence: first fit decreasing (Johnson 1973), ordered by the longer side.

    Args:
        lengths: (num_sentences, sides)
        widths: row width of each side
    """
    capacity = np.tile(np.array(widths), (len(lengths), 1))  # of each possible row
    row_of = np.empty(len(lengths), dtype=np.int64)
    num_rows = 0
    for sentence in np.argsort(-lengths.max(axis=1), kind="stable"):
        row = int((capacity[: num_rows + 1] >= lengths[sentence]).all(axis=1).argmax())
        capacity[row] -= lengths[sentence]
        row_of[sentence] = row
        num_rows = max(num_rows, row + 1)
    return row_of


def _layout(lengths: Lengths, row_of: Lengths, width: int, device: torch.device) -> tuple[PaddedRows, Lengths, Lengths]:
    """Put sentences in the given rows, in order within a row.

    Also returns the sentence of each slot, (rows, width), and the number of tokens in each row, (rows, 1).
    """
    num_rows, total = int(row_of.max(initial=-1)) + 1, int(lengths.sum())
    ends = np.zeros(num_rows, dtype=np.int64)
    np.add.at(ends, row_of, lengths)
    order = np.argsort(row_of, kind="stable")
    tokens_before = np.cumsum(lengths[order]) - lengths[order]  # in previous rows and to the left
    padding_before = np.arange(num_rows) * width - (np.cumsum(ends) - ends)  # in previous rows
    first_slots = np.empty_like(lengths)  # slot of the first token of each sentence
    first_slots[order] = tokens_before + padding_before[row_of[order]]
    first_tokens = np.cumsum(lengths) - lengths
    slots = np.arange(total) + np.repeat(first_slots - first_tokens, lengths)
    token_at = np.zeros(num_rows * width, dtype=np.int64)
    token_at[slots] = np.arange(total)
    columns = np.minimum(np.arange(width), ends[:, None] - 1).clip(min=0)  # padding repeats the last token
    tokens = np.take_along_axis(token_at.reshape(num_rows, width), columns, axis=1)
    sentence_of = np.repeat(np.arange(len(lengths)), lengths)
    rows = PaddedRows(to_device(tokens, device), to_device(slots, device))
    return rows, sentence_of[tokens], ends[:, None]


# --- Packed to padded and back ----------------------------------------------------------------------------------------


def pad(packed: Tensor, rows: PaddedRows) -> Tensor:
    """(total, num_heads, d_head) -> (rows, num_heads, width, d_head); padding repeats the last token of its row.

    The caller must mask the padding: it gets no gradient.
    """
    num_heads, d_head = packed.shape[1:]
    padded = _Pad.apply(packed.reshape(-1, d_head), *rows.head_rows(num_heads))  # type: ignore[no-untyped-call]
    return cast(Tensor, padded).view(-1, num_heads, rows.width, d_head)


def unpad(padded: Tensor, rows: PaddedRows) -> Tensor:
    """(rows, num_heads, width, d_head) -> (total, num_heads, d_head)."""
    num_heads, d_head = padded.shape[1], padded.shape[3]
    _, unpad_index = rows.head_rows(num_heads)
    packed = _Unpad.apply(padded.reshape(-1, d_head), unpad_index)  # type: ignore[no-untyped-call]
    return cast(Tensor, packed).view(-1, num_heads, d_head)


def permute(rows: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    """Return rows (total, width) in the given order, (total,) int64; `inverse` is the inverse permutation."""
    return cast(Tensor, _Pad.apply(rows, order, inverse))  # type: ignore[no-untyped-call]


class _Pad(torch.autograd.Function):
    """A gather whose gradient is a gather too, since padding has no gradient."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor, pad_index: Tensor, unpad_index: Tensor) -> Tensor:
        ctx.save_for_backward(unpad_index)
        return packed.index_select(0, pad_index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (unpad_index,) = ctx.saved_tensors
        return grad.index_select(0, unpad_index), None, None


class _Unpad(torch.autograd.Function):
    """A gather whose gradient is a copy into zeros, since slots are unique."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, unpad_index: Tensor) -> Tensor:
        ctx.save_for_backward(unpad_index)
        ctx.num_slots = len(padded)
        return padded.index_select(0, unpad_index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (unpad_index,) = ctx.saved_tensors
        return grad.new_zeros(ctx.num_slots, grad.shape[1]).index_copy_(0, unpad_index, grad), None
