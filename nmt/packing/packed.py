"""Packed sentences: concatenated without padding.

Each side of a micro-batch is one sequence of tokens. Only attention uses sentence boundaries; all other layers and the
loss work on `(total, ...)` tensors. To give all micro-batches one shape, sentences of pad tokens are appended, whose
labels are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.devices.transfer import to_device
from nmt.packing.padding import AttentionRows, PaddedRows, one_per_row, padded_width, shared_rows
from nmt.special_ids import BOS_ID, EOS_ID, PAD_ID

_MAX_PADDING_LENGTH = 64


def max_padding_length(max_length: int) -> int:
    """Return the maximum length of padding sentences, which must not widen the rows of attention."""
    return min(max_length, _MAX_PADDING_LENGTH)


@dataclass(frozen=True)
class PackedSequences:
    """Concatenated sentences of one side.

    tokens:     (total,)           int64
    positions:  (total,)           int64, position within the sentence, from 0
    cu_seqlens: (num_sentences+1,) int32, start of each sentence; the last entry is total
    sizes:      (num_sentences,)   int64, tokens of each sentence, on the host
    max_length: at least the length of the longest sentence
    """

    tokens: Tensor
    positions: Tensor
    cu_seqlens: Tensor
    sizes: NDArray[np.int64]
    max_length: int

    @classmethod
    def from_lists(cls, sentences: Sequence[Sequence[int]]) -> PackedSequences:
        """Pack token lists; a sentence may be empty."""
        lengths = np.array([len(sentence) for sentence in sentences], dtype=np.int64)
        arrays = [np.asarray(sentence, dtype=np.int64) for sentence in sentences]
        return cls.from_arrays(np.concatenate([np.empty(0, np.int64), *arrays]), lengths)

    @classmethod
    def from_arrays(cls, tokens: np.ndarray, lengths: np.ndarray) -> PackedSequences:
        """Pack tokens (total,) of sentences with the given lengths (num_sentences,)."""
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
        """Tokens of each sentence, (num_sentences,) int64, on the device."""
        return self.cu_seqlens.diff().long()

    @cached_property
    def padding_mask(self) -> Tensor:
        """Additive attention mask (num_sentences, padded max_length): 0 at tokens, -inf at padding."""
        columns = torch.arange(padded_width(self.max_length), device=self.tokens.device)
        is_padding = columns >= self.lengths[:, None]
        return torch.zeros_like(is_padding, dtype=torch.float32).masked_fill_(is_padding, float("-inf"))

    @cached_property
    def one_per_row(self) -> PaddedRows:
        """Layout with one sentence per row, padded to the longest."""
        return one_per_row(self.sizes, self.tokens.device)

    def attention_rows(self, keys: PackedSequences, *, causal: bool) -> AttentionRows:
        """Return the layout of these sentences as queries with `keys`, cached for all layers.

        Args:
            keys: this object, or the other side of the same batch.
            causal: a query attends only to keys up to its own position.
        """
        other = None if keys is self else keys  # no reference cycle
        cached = self._cached_rows.get(causal)
        if cached is None or cached[0] is not other:
            rows = shared_rows(self.sizes, keys.sizes, causal=causal, device=self.tokens.device)
            cached = self._cached_rows[causal] = (other, rows)
        return cached[1]

    @cached_property
    def _cached_rows(self) -> dict[bool, tuple[PackedSequences | None, AttentionRows]]:
        return {}

    def select(self, sentences: Sequence[int]) -> PackedSequences:
        """Select sentences, in this order."""
        device = self.tokens.device
        ends = np.cumsum(self.sizes)
        ranges = [np.arange(ends[i] - self.sizes[i], ends[i]) for i in sentences]
        index = to_device(np.concatenate([np.empty(0, np.int64), *ranges]), device)
        sizes = self.sizes[list(sentences)]
        cu_seqlens = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        return PackedSequences(
            tokens=self.tokens[index],
            positions=self.positions[index],
            cu_seqlens=to_device(cu_seqlens, device),
            sizes=sizes,
            max_length=int(sizes.max(initial=0)),
        )

    def repeated(self) -> PackedSequences:
        """Return all sentences twice, the copies after the originals."""
        return PackedSequences(
            tokens=self.tokens.repeat(2),
            positions=self.positions.repeat(2),
            cu_seqlens=torch.cat([self.cu_seqlens, self.cu_seqlens[1:] + self.total]),
            sizes=np.tile(self.sizes, 2),
            max_length=self.max_length,
        )

    def append_padding(self, lengths: Sequence[int], max_length: int | None = None) -> PackedSequences:
        """Append sentences of pad tokens with the given lengths; `max_length` defaults to the current one."""
        device = self.tokens.device
        ends = self.total + torch.tensor(lengths, dtype=torch.int64, device=device).cumsum(0)
        positions = (torch.arange(length, device=device) for length in lengths if length)
        return PackedSequences(
            tokens=torch.cat([self.tokens, self.tokens.new_full((sum(lengths),), PAD_ID)]),
            positions=torch.cat([self.positions, *positions]),
            cu_seqlens=torch.cat([self.cu_seqlens, ends.to(torch.int32)]),
            sizes=np.concatenate([self.sizes, np.array(lengths, dtype=np.int64)]),
            max_length=self.max_length if max_length is None else max_length,
        )

    def to(self, device: torch.device) -> PackedSequences:
        """Copy to `device` without blocking the host."""
        return self if self.tokens.device == device else self.map(lambda tensor: to_device(tensor, device))

    def map(self, function: Callable[[Tensor], Tensor]) -> PackedSequences:
        """Apply a function to each tensor, such as a copy to another device."""
        tokens, positions, cu_seqlens = function(self.tokens), function(self.positions), function(self.cu_seqlens)
        return replace(self, tokens=tokens, positions=positions, cu_seqlens=cu_seqlens)

    def to_lists(self) -> list[list[int]]:
        """Return token lists, the inverse of `from_lists`."""
        flat, ends = self.tokens.tolist(), np.cumsum(self.sizes).tolist()
        return [flat[start:end] for start, end in pairwise([0, *ends])]


@dataclass(frozen=True)
class BatchShape:
    """A shape shared by all micro-batches; a step is compiled once for it. Sizes include padding.

    num_sentences: sentence pairs
    max_length:    maximum tokens of a sentence
    """

    src_tokens: int
    tgt_tokens: int
    num_sentences: int
    max_length: int

    def padding_pairs(self, src_tokens: int, tgt_tokens: int) -> int:
        """Return the minimum number of padding pairs, each up to `max_padding_length`, to add to this many tokens."""
        missing = max(self.src_tokens - src_tokens, self.tgt_tokens - tgt_tokens)
        return math.ceil(missing / max_padding_length(self.max_length))

    def holds(self, src_tokens: int, tgt_tokens: int, num_sentences: int) -> bool:
        """Return whether these counts fit, with a source token for each padding pair to attend to."""
        padding = self.padding_pairs(src_tokens, tgt_tokens)
        fits = src_tokens + padding <= self.src_tokens and tgt_tokens <= self.tgt_tokens
        return fits and num_sentences + padding <= self.num_sentences


@dataclass(frozen=True)
class TokenLinks:
    """Links between target and source tokens of a micro-batch, for guided alignment.

    tgt, src: (num_links,) int64, index of the target position that predicts the token, and of the source token
    counts:   (num_links,) int64, number of links of the same target token
    """

    tgt: Tensor
    src: Tensor
    counts: Tensor

    @classmethod
    def from_arrays(cls, tgt: NDArray[np.int64], src: NDArray[np.int64]) -> TokenLinks:
        """Count the links of each target token."""
        counts = np.bincount(tgt)[tgt]
        return cls(torch.from_numpy(tgt), torch.from_numpy(src), torch.from_numpy(counts))

    def repeated(self, tgt_total: int, src_total: int) -> TokenLinks:
        """Return the links of sentences that `PackedSequences.repeated` repeats, with twice the counts."""
        tgt = torch.cat([self.tgt, self.tgt + tgt_total])
        src = torch.cat([self.src, self.src + src_total])
        return TokenLinks(tgt, src, 2 * self.counts.repeat(2))

    def map(self, function: Callable[[Tensor], Tensor]) -> TokenLinks:
        """Apply a function to each tensor, such as a copy to another device."""
        return TokenLinks(function(self.tgt), function(self.src), function(self.counts))


@dataclass(frozen=True)
class Batch:
    """One micro-batch: sentence pairs for one forward and backward pass.

    src:     source sentences, each followed by EOS
    tgt:     decoder input, each sentence preceded by BOS
    labels:  (tgt.total,) int64, target sentences, each followed by EOS
    padding: number of ignored labels at the end; they are PAD_ID
    links:   links between labels and source tokens; None without guided alignment
    """

    src: PackedSequences
    tgt: PackedSequences
    labels: Tensor
    padding: int = 0
    links: TokenLinks | None = None

    @classmethod
    def from_lists(cls, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Batch:
        """Pack pairs of token lists without BOS and EOS, on the CPU."""
        src = PackedSequences.from_lists([[*source, EOS_ID] for source in sources])
        tgt = PackedSequences.from_lists([[BOS_ID, *target] for target in targets])
        labels = PackedSequences.from_lists([[*target, EOS_ID] for target in targets]).tokens
        return cls(src, tgt, labels)

    @property
    def num_sentences(self) -> int:
        """Number of sentence pairs."""
        return self.src.num_sentences

    @property
    def tgt_tokens(self) -> int:
        """Number of labels without padding, EOS included."""
        return self.labels.shape[0] - self.padding

    def repeated(self) -> Batch:
        """Return all sentences twice, with the labels once; see `PackedSequences.repeated`."""
        links = None if self.links is None else self.links.repeated(self.tgt.total, self.src.total)
        return replace(self, src=self.src.repeated(), tgt=self.tgt.repeated(), links=links)

    def pad_to_shape(self, shape: BatchShape) -> Batch:
        """Pad to `shape` with pairs of pad tokens, then with empty pairs."""
        counts = self.src.total, self.tgt.total, self.num_sentences
        assert shape.holds(*counts), f"{shape} does not hold {counts}"
        pairs = shape.padding_pairs(self.src.total, self.tgt.total)
        empty = [0] * (shape.num_sentences - self.num_sentences - pairs)
        src_padding = shape.src_tokens - self.src.total
        tgt_padding = shape.tgt_tokens - self.tgt.total
        return replace(
            self,
            src=self.src.append_padding(_split_evenly(src_padding, pairs) + empty, shape.max_length),
            tgt=self.tgt.append_padding(_split_evenly(tgt_padding, pairs) + empty, shape.max_length),
            labels=torch.cat([self.labels, self.labels.new_full((tgt_padding,), PAD_ID)]),
            padding=self.padding + tgt_padding,
        )

    def pad_to_multiple(self, step: int) -> Batch:
        """Append padding pairs until each side has a multiple of `step` tokens, to limit the matmul shapes.

        `labels` are unchanged: decoder output after the last label is ignored. Returns this batch if its sentences are
        too short, or too unequal in length, for such padding.
        """
        src, tgt = self.src, self.tgt
        src_padding, tgt_padding = -src.total % step, -tgt.total % step
        pairs = max(math.ceil(src_padding / src.max_length), math.ceil(tgt_padding / tgt.max_length))
        if pairs == 0:
            return self
        # Each padding pair needs a token to attend to on both sides.
        if src_padding < pairs:
            src_padding += math.ceil(pairs / step) * step
        if tgt_padding < pairs:
            tgt_padding += math.ceil(pairs / step) * step
        if src_padding > pairs * src.max_length or tgt_padding > pairs * tgt.max_length:
            return self
        return replace(
            self,
            src=src.append_padding(_split_evenly(src_padding, pairs)),
            tgt=tgt.append_padding(_split_evenly(tgt_padding, pairs)),
        )

    def to(self, device: torch.device) -> Batch:
        """Copy to `device` without blocking the host."""
        return self if self.labels.device == device else self.map(lambda tensor: to_device(tensor, device))

    def map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """Apply a function to each tensor, such as a copy to another device."""
        src, tgt, labels = self.src.map(function), self.tgt.map(function), function(self.labels)
        links = None if self.links is None else self.links.map(function)
        return replace(self, src=src, tgt=tgt, labels=labels, links=links)


def _split_evenly(tokens: int, sentences: int) -> list[int]:
    """Return lengths of `sentences` sentences with `tokens` tokens in total, as equal as possible."""
    return [tokens * (i + 1) // sentences - tokens * i // sentences for i in range(sentences)]
