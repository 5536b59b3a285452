"""The tensors of a search at addresses that stay, of few sizes, as a recorded step of the decoder wants them.

`DecoderState` makes its tensors as it goes; these are made once for each size and filled anew by every search. What a
step needs to know of its number it reads from the device (`Buffers.where`, `Buffers.positions`).

The past is a ring: a step takes the places that have not been used for longest. All sentences take the same, whenever
they have begun; which of them are a hypothesis's own, its bias tells.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nmt.model.cache import DecoderState, LayerState, heads_first
from nmt.recipe import ModelRecipe

_HIDDEN = float("-inf")
_LEAST_PLACES = 64
_LEAST_SRC_LEN = 16

Sizes = dict[str, tuple[int, ...]]


class Shape(NamedTuple):
    """The sizes of a step, rounded up, so that there are few of them and each serves often.

    rows:    at least as many as there are sentences
    beam:    hypotheses of each
    places:  of the past; each step takes one for each hypothesis
    src_len: places of the memory
    """

    rows: int
    beam: int
    places: int
    src_len: int

    @classmethod
    def holding(cls, sentences: int, beam: int, places: int, src_len: int) -> Shape:
        """The smallest that has room for so much: powers of two, so that memory that is outgrown at least doubles."""
        rows, places, src_len = (1 << (size - 1).bit_length() for size in (sentences, places, src_len))
        return cls(rows, beam, max(_LEAST_PLACES, places), max(_LEAST_SRC_LEN, src_len))


class StaticCache:
    """Keys and values of one attention as `KeyValueCache` has them, but all of one size and at an address that stays.

    stored: (2, rows, num_heads, places, d_head), zeros where nothing has been put yet
    where:  (beam,) int64, on the device, the places of the step
    """

    def __init__(self, stored: Tensor, where: Tensor) -> None:
        self.stored, self._where = stored, where

    def append(self, keys_values: Tensor) -> Tensor:
        """See `Cache.append`."""
        return self.stored.index_copy_(3, self._where, heads_first(keys_values))

    def distances(self) -> Tensor:
        """See `Cache.distances`."""
        raise NotImplementedError("sentences of one batch begin at different steps; see `can_capture`")


@dataclass
class Buffers:
    """All that a step reads and writes, in one shape. What a row beyond those in use holds, nobody reads.

    tokens:      (rows, beam) int64, the last ones
    positions:   (rows,) int64, the steps that each has taken
    where:       (beam,) int64, the places of the past that the step fills
    hidden:      (rows, beam, d_model), what the step gives
    memory_mask: (rows, 1, 1, src_len) and
    mask:   (rows, 1, beam, places), as in `DecoderState`
    layers:      their pasts and memories
    """

    tokens: Tensor
    positions: Tensor
    where: Tensor
    hidden: Tensor
    memory_mask: Tensor
    mask: Tensor
    layers: list[LayerState[StaticCache]]

    def __post_init__(self) -> None:
        beam = len(self.where)
        self._own = self.mask.new_full((beam, beam), _HIDDEN).fill_diagonal_(0.0)

    @classmethod
    def of(cls, tensors: dict[str, Tensor], num_layers: int) -> Buffers:
        """The tensors by the names of `tensor_sizes`."""
        where = tensors["where"]
        layers = [
            LayerState(StaticCache(tensors.pop(f"cache {layer}"), where), tensors.pop(f"memory {layer}"))
            for layer in range(num_layers)
        ]
        return cls(**tensors, layers=layers)

    def extend(self, hypotheses: int) -> Tensor:
        """See `StepState.extend`: each hypothesis of the beam sees a place of its own from now on."""
        assert hypotheses == len(self.where), "every hypothesis takes every step"
        own = self._own.expand(len(self.mask), 1, -1, -1)
        return self.mask.index_copy_(3, self.where, own)

    def clear(self) -> None:
        """As before the first step of a search, without any sentence."""
        of_layers = [part for layer in self.layers for part in (layer.cache.stored, layer.memory)]
        for part in (self.tokens, self.positions, *of_layers):
            part.zero_()
        self.mask.fill_(_HIDDEN)
        self.memory_mask.fill_(_HIDDEN)
        torch.arange(len(self.where), out=self.where)

    def put(self, sentences: DecoderState, rows: Tensor) -> None:
        """Sentences before their first step, in these rows, (sentences,); what these hold is forgotten."""
        for own, other in zip(self.layers, sentences.layers, strict=True):
            # What no bias lets through must still be a number: 0 times what is none is none.
            own.cache.stored.index_fill_(1, rows, 0.0)
            _put_rows(own.memory, (1, rows), 3, other.memory, 0.0)
        _put_rows(self.memory_mask, (0, rows), 3, sentences.memory_mask, _HIDDEN)
        self.mask.index_fill_(0, rows, _HIDDEN)
        self.positions.index_fill_(0, rows, 0)

    def take(self, source: Buffers, rows: Tensor, end: int, steps: int) -> None:
        """Go on with some rows of others, (sentences,), which become the first; what lies there may lie here too.

        end: the place of the ring where the next step of `source` would begin; steps: the most that a row has taken
        """
        beam = len(self.where)
        places = torch.arange(end - steps * beam, end, device=rows.device) % source.mask.shape[3]
        for own, other in zip(self.layers, source.layers, strict=True):
            _put(own.cache.stored, other.cache.stored.index_select(1, rows).index_select(3, places), 0.0)
            _put(own.memory, other.memory.index_select(1, rows), 0.0)
        _put(self.mask, source.mask.index_select(0, rows).index_select(3, places), _HIDDEN)
        _put(self.memory_mask, source.memory_mask.index_select(0, rows), _HIDDEN)
        _put(self.positions, source.positions.index_select(0, rows), 0)
        self.tokens.zero_()
        torch.arange(steps * beam, (steps + 1) * beam, out=self.where)

    def advance(self, rows: Tensor) -> None:
        """After a step: these rows, (sentences,), have taken it, and the next takes other places."""
        self.positions.index_add_(0, rows, torch.ones_like(rows))
        self.where.add_(len(self.where)).remainder_(self.mask.shape[3])


def _put(target: Tensor, values: Tensor, elsewhere: float) -> None:
    """Put values into the corner of a tensor at which all indices are 0, and one number everywhere else."""
    target.fill_(elsewhere)
    target[tuple(slice(size) for size in values.shape)] = values


def _put_rows(target: Tensor, where: tuple[int, Tensor], dim: int, values: Tensor, elsewhere: float) -> None:
    """Put values into some rows of a tensor that may be longer in `dim`, and one number behind them.

    where: the dimension of the rows, and which they are, (sentences,)
    """
    target.index_fill_(*where, elsewhere)
    target.narrow(dim, 0, values.shape[dim]).index_copy_(*where, values)


def tensor_sizes(recipe: ModelRecipe, shape: Shape) -> Sizes:
    """The sizes of all tensors of `Buffers`, those of layers by their numbers."""
    rows, beam, places, src_len = shape
    num_heads, d_head = recipe.num_heads, recipe.head_width
    sizes: Sizes = {
        "tokens": (rows, beam),
        "positions": (rows,),
        "where": (beam,),
        "hidden": (rows, beam, recipe.d_model),
        "memory_mask": (rows, 1, 1, src_len),
        "mask": (rows, 1, beam, places),
    }
    for layer in range(recipe.num_decoder_layers):
        sizes[f"cache {layer}"] = (2, rows, num_heads, places, d_head)
        sizes[f"memory {layer}"] = (2, rows, num_heads, src_len, d_head)
    return sizes


class Arena:
    """Memory of which tensors of changing sizes are made. Each begins at an address that stays while there is room."""

    def __init__(self, like: Tensor) -> None:
        """Of the type and device of a tensor; tokens and places are int64."""
        self._numbers, self._integers = like.new_empty(0), like.new_empty(0, dtype=torch.int64)
        self._memory: dict[str, Tensor] = {}

    def holds(self, sizes: Sizes) -> bool:
        """Whether there is room for tensors of these sizes."""
        return not any(self._too_small(sizes))

    def make_room(self, sizes: Sizes) -> None:
        """Leave memory that is too small to those who still hold it, and take more."""
        for name, count in self._too_small(sizes):
            self._memory.pop(name, None)  # before there is more, so that both need not fit
            like = self._integers if name in ("tokens", "positions", "where") else self._numbers
            self._memory[name] = like.new_empty(count)

    def tensors(self, sizes: Sizes) -> dict[str, Tensor]:
        """The tensors, for which there is room."""
        return {name: self._memory[name][: math.prod(size)].view(size) for name, size in sizes.items()}

    def _too_small(self, sizes: Sizes) -> Iterator[tuple[str, int]]:
        for name, count in [(name, math.prod(size)) for name, size in sizes.items()]:
            if name not in self._memory or len(self._memory[name]) < count:
                yield name, count
