"""Packed sentences laid out in rectangles, as products of matrices want them.

A sentence to a row would be mostly padding, because one is long and most are short. So several share a row, side by
side, and what belongs together is said by a mask: a query sees the keys of its own sentence alone.
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

# Rows are at least this wide, so that some sentences fit side by side, and a multiple of the step, so that the products
# are of few shapes.
_LEAST_WIDTH = 64
_WIDTH_STEP = 16


@dataclass(frozen=True)
class Rectangle:
    """Where the tokens of packed sentences lie in rows of one width.

    tokens: (rows, width) int64, the packed token at each place; behind the end of a row its last token again
    places: (total,) int64, the place of each token, row * width + column
    """

    tokens: Tensor
    places: Tensor

    @property
    def width(self) -> int:
        """Places of a row."""
        return self.tokens.shape[1]

    def head_rows(self, num_heads: int) -> tuple[Tensor, Tensor]:
        """How rows of single heads are laid out and found again, int64; computed once for all layers.

        Of `(total * num_heads,)` rows, which one lies at each place of `(rows * num_heads * width,)`; and at which of
        these places each row lies.
        """
        if num_heads not in self._head_rows:
            heads = torch.arange(num_heads, device=self.tokens.device)
            laid_out = self.tokens[:, None, :] * num_heads + heads[:, None]
            row, column = self.places // max(self.width, 1), self.places % max(self.width, 1)
            found = (row[:, None] * num_heads + heads) * self.width + column[:, None]
            self._head_rows[num_heads] = laid_out.flatten(), found.flatten()
        return self._head_rows[num_heads]

    @cached_property
    def _head_rows(self) -> dict[int, tuple[Tensor, Tensor]]:
        return {}


@dataclass(frozen=True)
class Rectangles:
    """Queries and keys in as many rows, the same sentences in the same row, and who sees whom.

    mask: (rows, 1, query width, key width) float32, 0 where a query sees a key, -inf where it must not
    """

    queries: Rectangle
    keys: Rectangle
    mask: Tensor


def one_to_a_row(lengths: Lengths, device: torch.device) -> Rectangle:
    """Each sentence in a row of its own, as wide as the longest padded."""
    width = padded_width(int(lengths.max(initial=0)))
    return _lay_out(lengths, np.arange(len(lengths)), width).to(device)


def side_by_side(queries: Lengths, keys: Lengths, *, causal: bool, device: torch.device) -> Rectangles:
    """As many sentences to a row as fit on both sides; with `causal` a query sees only keys up to its own column.

    What stands behind the end of a row of queries sees every key. It does not count, but were it to see none, as beside
    keys whose sentences have no queries, it would be no number, and so would be the gradient of these keys.
    """
    widths = row_width(int(queries.max(initial=0))), row_width(int(keys.max(initial=0)))
    row_of = _share_rows(np.stack([queries, keys], axis=1), widths)
    as_queries, as_keys = (_lay_out(side, row_of, width) for side, width in zip((queries, keys), widths, strict=True))
    columns = np.arange(widths[1])
    sees = as_queries.sentences[:, :, None] == as_keys.sentences[:, None, :]  # (rows, query width, key width)
    sees &= (columns < as_keys.ends)[:, None, :]
    if causal:
        sees &= columns <= np.arange(widths[0])[:, None]
    sees |= (np.arange(widths[0]) >= as_queries.ends)[:, :, None]
    mask = np.where(sees, np.float32(0.0), np.float32("-inf"))[:, None]
    return Rectangles(as_queries.to(device), as_keys.to(device), to_device(mask, device))


def row_width(longest: int) -> int:
    """The width of rows that sentences share of which the longest has so many tokens."""
    return max(_LEAST_WIDTH, padded_width(longest)) if longest else 0


def padded_width(longest: int) -> int:
    """The width of rows that have room for so many: a multiple of what a CPU takes at a time.

    Of rows that are narrower than 16, torch computes the softmax number by number, which takes ten times as long.
    """
    return -(-longest // _WIDTH_STEP) * _WIDTH_STEP


def _share_rows(lengths: Lengths, widths: tuple[int, ...]) -> Lengths:
    """The row of each sentence: the first one with room on every side, the longest sentences before the others.

    lengths: (num_sentences, sides), widths: of each side. Seldom more than a ninth above the fewest rows that would do
    (first fit decreasing; Johnson 1973 for one side).
    """
    room = np.tile(np.array(widths), (len(lengths), 1))  # of each row that may come to be
    row_of = np.empty(len(lengths), dtype=np.int64)
    num_rows = 0
    for sentence in np.argsort(-lengths.max(axis=1), kind="stable"):
        row = int((room[: num_rows + 1] >= lengths[sentence]).all(axis=1).argmax())
        room[row] -= lengths[sentence]
        row_of[sentence] = row
        num_rows = max(num_rows, row + 1)
    return row_of


@dataclass(frozen=True)
class _Layout:
    """A `Rectangle` in numpy.

    sentences: (rows, width), to which sentence the token of each place belongs
    ends:      (rows, 1), how many places of each row are taken
    """

    tokens: NDArray[np.int64]
    places: NDArray[np.int64]
    sentences: NDArray[np.int64]
    ends: NDArray[np.int64]

    def to(self, device: torch.device) -> Rectangle:
        tokens, places = (to_device(array, device) for array in (self.tokens, self.places))
        return Rectangle(tokens, places)


def _lay_out(lengths: Lengths, row_of: Lengths, width: int) -> _Layout:
    """Lay sentences out in the rows that each was given, those of a row in their order."""
    num_rows, total = int(row_of.max(initial=-1)) + 1, int(lengths.sum())
    ends = np.zeros(num_rows, dtype=np.int64)
    np.add.at(ends, row_of, lengths)
    order = np.argsort(row_of, kind="stable")
    starts = np.empty_like(lengths)  # the place of each sentence's first token
    before = np.cumsum(lengths[order]) - lengths[order]  # tokens in rows above, and in this one to the left
    starts[order] = before + (np.arange(num_rows) * width - (np.cumsum(ends) - ends))[row_of[order]]
    places = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(total)
    laid_out = np.zeros(num_rows * width, dtype=np.int64)
    laid_out[places] = np.arange(total)
    columns = np.minimum(np.arange(width), ends[:, None] - 1).clip(min=0)
    tokens = np.take_along_axis(laid_out.reshape(num_rows, width), columns, axis=1)
    sentence_of = np.repeat(np.arange(len(lengths)), lengths)
    return _Layout(tokens, places, sentence_of[tokens] if total else tokens, ends[:, None])


# --- Packed rows to padded rows and back ------------------------------------------------------------------------------


def pad(packed: Tensor, rectangle: Rectangle) -> Tensor:
    """(total, num_heads, d_head) -> (rows, num_heads, width, d_head), the last token of each row repeated behind it.

    Padding must not count: a mask hides it from queries, and `unpad` drops it.
    """
    num_heads, d_head = packed.shape[1:]
    padded = _Pad.apply(packed.reshape(-1, d_head), *rectangle.head_rows(num_heads))  # type: ignore[no-untyped-call]
    return cast(Tensor, padded).view(-1, num_heads, rectangle.width, d_head)


def unpad(padded: Tensor, rectangle: Rectangle) -> Tensor:
    """The inverse of `pad`."""
    num_heads, d_head = padded.shape[1], padded.shape[3]
    _, places = rectangle.head_rows(num_heads)
    packed = _Unpad.apply(padded.reshape(-1, d_head), places)  # type: ignore[no-untyped-call]
    return cast(Tensor, packed).view(-1, num_heads, d_head)


class _Pad(torch.autograd.Function):
    """A gather both ways: padding has no gradient, because nothing that counts has seen it."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor, rows: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        return packed.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        return grad.index_select(0, places), None, None


class _Unpad(torch.autograd.Function):
    """A gather, and as its gradient a scatter among zeros, since no two rows share a position."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.num_places = len(padded)
        return padded.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        return grad.new_zeros(ctx.num_places, grad.shape[1]).index_copy_(0, places, grad), None
