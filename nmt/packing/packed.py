"""The one shape in which sentences travel: packed end to end, without padding.

A side of a micro-batch is one row of tokens. Only attention needs to know where sentences end; every other part of the
model, and the loss, works on `(total, ...)` rows and never sees a sentence boundary. Where all micro-batches must be of
one size, sentences of padding follow like any others, and what they are to predict does not count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.devices.transfer import to_device
from nmt.packing.rectangle import Rectangle, Rectangles, one_to_a_row, padded_width, side_by_side
from nmt.special_ids import PAD_ID

_LONGEST_PADDING = 64


def max_padding_length(max_length: int) -> int:
    """How long sentences of padding may be among others of `max_length`: not such as would make rows wide alone."""
    return min(max_length, _LONGEST_PADDING)


@dataclass(frozen=True)
class PackedSequences:
    """Sentences laid end to end.

    tokens:     (total,)           int64
    positions:  (total,)           int64, place within its own sentence, from 0
    cu_seqlens: (num_sentences+1,) int32, where each sentence starts; the last entry is total
    sizes:      (num_sentences,)   int64, tokens of each sentence
    max_length: tokens of the longest sentence; this and `sizes` are on the host, so that nothing waits for the device
    """

    tokens: Tensor
    positions: Tensor
    cu_seqlens: Tensor
    sizes: NDArray[np.int64]
    max_length: int

    @classmethod
    def from_lists(cls, sentences: Sequence[Sequence[int]]) -> PackedSequences:
        """Pack token lists, in their order; a sentence may be empty."""
        lengths = np.fromiter((len(sentence) for sentence in sentences), dtype=np.int64, count=len(sentences))
        tokens = np.concatenate(
            [np.asarray(sentence, dtype=np.int64) for sentence in sentences] or [np.empty(0, np.int64)]
        )
        return cls.from_arrays(tokens, lengths)

    @classmethod
    def from_arrays(cls, tokens: np.ndarray, lengths: np.ndarray) -> PackedSequences:
        """Pack a flat token array `(total,)` whose sentences have the given `lengths` `(num_sentences,)`."""
        starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        assert starts[-1] == len(tokens), "the lengths must add up to the number of tokens"
        positions = np.arange(len(tokens)) - np.repeat(starts[:-1], lengths)
        return cls(
            tokens=torch.from_numpy(tokens.astype(np.int64)),
            positions=torch.from_numpy(positions),
            cu_seqlens=torch.from_numpy(starts.astype(np.int32)),
            sizes=lengths.astype(np.int64),
            max_length=int(lengths.max(initial=0)),
        )

    @property
    def total(self) -> int:
        """Number of tokens."""
        return self.tokens.shape[0]

    @property
    def num_sentences(self) -> int:
        """Number of sentences."""
        return self.cu_seqlens.shape[0] - 1

    @cached_property
    def lengths(self) -> Tensor:
        """Tokens of each sentence, `(num_sentences,)` int64."""
        return self.cu_seqlens.diff().long()

    @cached_property
    def padding_mask(self) -> Tensor:
        """Added to attention scores: 0 at a token, -inf behind the end, as wide as `one_to_a_row`."""
        places = torch.arange(padded_width(self.max_length), device=self.tokens.device)
        behind_end = places >= self.lengths[:, None]
        return torch.zeros(behind_end.shape, device=self.tokens.device).masked_fill_(behind_end, float("-inf"))

    @cached_property
    def one_to_a_row(self) -> Rectangle:
        """Each sentence in a row of its own, as wide as the longest padded."""
        return one_to_a_row(self.sizes, self.tokens.device)

    def beside(self, keys: PackedSequences, *, causal: bool) -> Rectangles:
        """How these as queries, and the same sentences as keys, share rows; made once for all layers.

        keys: these themselves, or the other side of the same batch; causal: no query sees what stands behind it
        """
        other = None if keys is self else keys  # so that nothing holds itself
        found = self._rectangles.get(causal)
        if found is None or found[0] is not other:
            rectangles = side_by_side(self.sizes, keys.sizes, causal=causal, device=self.tokens.device)
            found = self._rectangles[causal] = (other, rectangles)
        return found[1]

    @cached_property
    def _rectangles(self) -> dict[bool, tuple[PackedSequences | None, Rectangles]]:
        return {}

    def select(self, sentences: Sequence[int]) -> PackedSequences:
        """Some of the sentences, in this order."""
        device, starts, sizes = self.tokens.device, np.cumsum(self.sizes) - self.sizes, self.sizes[list(sentences)]
        places = [np.arange(starts[i], starts[i] + self.sizes[i]) for i in sentences]
        index = to_device(np.concatenate([np.empty(0, np.int64), *places]), device)
        ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        return PackedSequences(
            tokens=self.tokens[index],
            positions=self.positions[index],
            cu_seqlens=to_device(ends, device),
            sizes=sizes,
            max_length=int(sizes.max(initial=0)),
        )

    def repeated(self) -> PackedSequences:
        """These sentences, and then the same again."""
        return PackedSequences(
            tokens=self.tokens.repeat(2),
            positions=self.positions.repeat(2),
            cu_seqlens=torch.cat([self.cu_seqlens, self.cu_seqlens[1:] + self.total]),
            sizes=np.tile(self.sizes, 2),
            max_length=self.max_length,
        )

    def append_padding(self, lengths: Sequence[int], max_length: int | None = None) -> PackedSequences:
        """These sentences, then others of so many pad tokens each; no sentence may be longer than `max_length`.

        By default that is the length of the longest here.
        """
        device = self.tokens.device
        ends = self.total + torch.tensor(lengths, dtype=torch.int64, device=device).cumsum(0)
        places = (torch.arange(length, device=device) for length in lengths if length)
        return PackedSequences(
            tokens=torch.cat([self.tokens, self.tokens.new_full((sum(lengths),), PAD_ID)]),
            positions=torch.cat([self.positions, *places]),
            cu_seqlens=torch.cat([self.cu_seqlens, ends.to(torch.int32)]),
            sizes=np.concatenate([self.sizes, np.array(lengths, dtype=np.int64)]),
            max_length=self.max_length if max_length is None else max_length,
        )

    def to(self, device: torch.device) -> PackedSequences:
        """The same sentences on `device`; the copy does not block the host."""
        if self.tokens.device == device:
            return self
        return PackedSequences(
            tokens=to_device(self.tokens, device),
            positions=to_device(self.positions, device),
            cu_seqlens=to_device(self.cu_seqlens, device),
            sizes=self.sizes,
            max_length=self.max_length,
        )

    def to_lists(self) -> list[list[int]]:
        """The token lists again; the inverse of `from_lists`."""
        flat, ends = self.tokens.tolist(), np.cumsum(self.sizes).tolist()
        return [flat[start:end] for start, end in pairwise([0, *ends])]


@dataclass(frozen=True)
class BatchShape:
    """One size for all micro-batches, so that a step is compiled once.

    src_tokens, tgt_tokens: tokens of either side, padding included
    num_sentences:          pairs, padding included
    max_length:             no sentence has more tokens
    """

    src_tokens: int
    tgt_tokens: int
    num_sentences: int
    max_length: int

    def fillers(self, src_tokens: int, tgt_tokens: int) -> int:
        """How many pairs of padding follow so many tokens: the fewest, none above `max_padding_length`."""
        missing = max(self.src_tokens - src_tokens, self.tgt_tokens - tgt_tokens)
        return math.ceil(missing / max_padding_length(self.max_length))

    def holds(self, src_tokens: int, tgt_tokens: int, num_sentences: int) -> bool:
        """Whether so much fits, such that in the padding, too, each target has a source token to attend to."""
        fillers = self.fillers(src_tokens, tgt_tokens)
        fits = src_tokens + fillers <= self.src_tokens and tgt_tokens <= self.tgt_tokens
        return fits and num_sentences + fillers <= self.num_sentences


@dataclass(frozen=True)
class Batch:
    """One micro-batch: sentence pairs for one forward and backward pass.

    src:     source sentences, each closed by the end token
    tgt:     decoder input, each sentence opened by the begin token
    labels:  (tgt.total,) int64, what the decoder must predict: the target sentence closed by the end token
    padding: how many of the labels, the last ones, do not count: they are PAD_ID, which no sentence holds
    """

    src: PackedSequences
    tgt: PackedSequences
    labels: Tensor
    padding: int = 0

    @property
    def num_sentences(self) -> int:
        """Number of sentence pairs."""
        return self.src.num_sentences

    @property
    def tgt_tokens(self) -> int:
        """Number of predicted tokens, the end tokens included: the unit of loss and speed."""
        return self.labels.shape[0] - self.padding

    def pad_to_shape(self, shape: BatchShape) -> Batch:
        """The same pairs in a batch of `shape`, which must hold them: every tensor is of a size that `shape` decides.

        Behind the pairs come others of pad tokens, which fill both sides up, and then empty ones.
        """
        counts = self.src.total, self.tgt.total, self.num_sentences
        assert shape.holds(*counts), f"{shape} does not hold {counts}"
        fillers = shape.fillers(*counts[:2])
        empty = [0] * (shape.num_sentences - self.num_sentences - fillers)
        missing = shape.src_tokens - self.src.total, shape.tgt_tokens - self.tgt.total
        src, tgt = (
            side.append_padding(_share(tokens, fillers) + empty, shape.max_length)
            for tokens, side in zip(missing, (self.src, self.tgt), strict=True)
        )
        labels = torch.cat([self.labels, self.labels.new_full((missing[1],), PAD_ID)])
        return Batch(src, tgt, labels, self.padding + missing[1])

    def pad_to_multiple(self, step: int) -> Batch:
        """The same pairs, and behind them others that say nothing, so that each side has a multiple of `step` tokens.

        Libraries that compile a kernel for every shape then meet few shapes. `labels` stay as they are: what the model
        says behind the last of them does not count.
        """
        sides = (self.src, self.tgt)
        missing = [-side.total % step for side in sides]
        added = max(math.ceil(tokens / side.max_length) for tokens, side in zip(missing, sides, strict=True))
        if not added:
            return self
        # Both sides need as many sentences, and each of these a token to attend to.
        missing = [tokens if tokens >= added else tokens + math.ceil(added / step) * step for tokens in missing]
        if any(tokens > added * side.max_length for tokens, side in zip(missing, sides, strict=True)):
            return self  # pairs so short, or so unlike in length, that the others would be longer than they are
        src, tgt = (side.append_padding(_share(tokens, added)) for tokens, side in zip(missing, sides, strict=True))
        return replace(self, src=src, tgt=tgt)

    def to(self, device: torch.device) -> Batch:
        """The same pairs on `device`."""
        labels = to_device(self.labels, device)
        return replace(self, src=self.src.to(device), tgt=self.tgt.to(device), labels=labels)


def _share(tokens: int, sentences: int) -> list[int]:
    """The lengths of so many sentences that have so many tokens together, as equal as can be."""
    return [tokens * (i + 1) // sentences - tokens * i // sentences for i in range(sentences)]
