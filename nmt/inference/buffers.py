"""Static buffers for CUDA graphs: tensors of a search with fixed addresses and few distinct shapes.

`DecoderState` allocates its tensors during search; static buffers of all shapes share memory (`Arena`), which every
search reuses. A step reads its slots and positions from the device (`Buffers.slots`, `Buffers.positions`).

The KV cache is a ring buffer: each step overwrites the oldest slots. All sentences write to the same slots, even if
they started at different steps; the mask hides the slots of other hypotheses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nmt.kv_cache.cache import heads_first
from nmt.kv_cache.state import DecoderState, LayerState
from nmt.recipe import ModelRecipe

_HIDDEN = float("-inf")
_MIN_CAPACITY = 64
_MIN_SRC_LEN = 16
_INTEGERS = ("tokens", "positions", "slots")

Sizes = dict[str, tuple[int, ...]]


class Shape(NamedTuple):
    """Sizes of a step, rounded up to reduce the number of distinct graphs.

    batch:    maximum number of sentences
    beam:     hypotheses of each sentence
    capacity: slots of the KV cache; each step uses one per hypothesis
    src_len:  slots of the cross-attention cache
    """

    batch: int
    beam: int
    capacity: int
    src_len: int

    @classmethod
    def at_least(cls, batch: int, beam: int, capacity: int, src_len: int) -> Shape:
        """Round up to powers of two, so memory at least doubles when it grows."""
        batch, capacity, src_len = (1 << (size - 1).bit_length() for size in (batch, capacity, src_len))
        return cls(batch, beam, max(_MIN_CAPACITY, capacity), max(_MIN_SRC_LEN, src_len))


class StaticCache:
    """An `nmt.kv_cache.cache.Cache` of fixed size and address.

    stored: (2, batch, num_heads, capacity, d_head), zeros in unused slots
    slots:  (beam,) int64, on the device, slots of the current step
    """

    def __init__(self, stored: Tensor, slots: Tensor) -> None:
        self.stored, self._slots = stored, slots

    def append(self, keys_values: Tensor) -> Tensor:
        """See `Cache.append`."""
        return self.stored.index_copy_(3, self._slots, heads_first(keys_values))

    def distances(self) -> Tensor:
        """See `Cache.distances`."""
        raise NotImplementedError("buffers do not record the step of a slot; see `can_capture`")


@dataclass
class Buffers:
    """Inputs and outputs of a step in one shape. The contents of unused rows are undefined.

    tokens:      (batch, beam) int64, last token of each hypothesis
    positions:   (batch,) int64, steps that each sentence has taken
    slots:       (beam,) int64, slots of the KV cache for the current step
    hidden:      (batch, beam, d_model), output of the step
    memory_mask: (batch, 1, 1, src_len), as in `DecoderState`
    mask:        (batch, 1, beam, capacity), as in `DecoderState`
    layers:      caches of each decoder layer
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    hidden: Tensor
    memory_mask: Tensor
    mask: Tensor
    layers: list[LayerState[StaticCache]]

    def __post_init__(self) -> None:
        beam = len(self.slots)
        self._diagonal = self.mask.new_full((beam, beam), _HIDDEN).fill_diagonal_(0.0)

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], num_layers: int) -> Buffers:
        """Build buffers from tensors named as in `tensor_sizes`."""
        layers = [
            LayerState(StaticCache(tensors.pop(f"cache {layer}"), tensors["slots"]), tensors.pop(f"memory {layer}"))
            for layer in range(num_layers)
        ]
        return cls(**tensors, layers=layers)

    def extend(self, hypotheses: int) -> Tensor:
        """See `DecoderStepState.extend`: from now on each hypothesis attends to its slot of the current step."""
        assert hypotheses == len(self.slots), "every step computes every hypothesis"
        return self.mask.index_copy_(3, self.slots, self._diagonal.expand(len(self.mask), 1, -1, -1))

    def clear(self) -> None:
        """Reset to the state before the first step, without any sentence."""
        caches = [tensor for layer in self.layers for tensor in (layer.cache.stored, layer.memory)]
        for tensor in (self.tokens, self.positions, *caches):
            tensor.zero_()
        self.mask.fill_(_HIDDEN)
        self.memory_mask.fill_(_HIDDEN)
        torch.arange(len(self.slots), out=self.slots)

    def insert(self, sentences: DecoderState, rows: Tensor) -> None:
        """Overwrite rows (sentences,) with the initial states of new sentences."""
        for layer, new_layer in zip(self.layers, sentences.layers, strict=True):
            # Masked slots must be finite, because 0 * NaN is NaN.
            layer.cache.stored.index_fill_(1, rows, 0.0)
            _copy_rows(layer.memory, 1, rows, new_layer.memory, 0.0)
        _copy_rows(self.memory_mask, 0, rows, sentences.memory_mask, _HIDDEN)
        self.mask.index_fill_(0, rows, _HIDDEN)
        self.positions.index_fill_(0, rows, 0)

    def copy_from(self, source: Buffers, rows: Tensor, ring_end: int, steps: int) -> None:
        """Copy the state of rows (sentences,) of `source` to the first rows. The memory of both may overlap.

        ring_end: slot after the last one of `source`, modulo its capacity
        steps:    at least the number of steps of each row
        """
        beam = len(self.slots)
        slots = torch.arange(ring_end - steps * beam, ring_end, device=rows.device) % source.mask.shape[3]
        for layer, source_layer in zip(self.layers, source.layers, strict=True):
            _copy(layer.cache.stored, source_layer.cache.stored.index_select(1, rows).index_select(3, slots), 0.0)
            _copy(layer.memory, source_layer.memory.index_select(1, rows), 0.0)
        _copy(self.mask, source.mask.index_select(0, rows).index_select(3, slots), _HIDDEN)
        _copy(self.memory_mask, source.memory_mask.index_select(0, rows), _HIDDEN)
        _copy(self.positions, source.positions.index_select(0, rows), 0)
        self.tokens.zero_()
        torch.arange(steps * beam, (steps + 1) * beam, out=self.slots)

    def advance(self, rows: Tensor) -> None:
        """Move to the next step after rows (sentences,) have taken one."""
        self.positions.index_add_(0, rows, torch.ones_like(rows))
        self.slots.add_(len(self.slots)).remainder_(self.mask.shape[3])


def _copy(target: Tensor, values: Tensor, fill: float) -> None:
    """Copy values to the first indices of every dimension and fill the rest."""
    target.fill_(fill)
    target[tuple(slice(size) for size in values.shape)] = values


def _copy_rows(target: Tensor, dim: int, rows: Tensor, values: Tensor, fill: float) -> None:
    """Copy values to rows of dimension `dim`, and fill the rest of these rows. Dimension 3 (src_len) may be longer."""
    target.index_fill_(dim, rows, fill)
    target.narrow(3, 0, values.shape[3]).index_copy_(dim, rows, values)


def tensor_sizes(recipe: ModelRecipe, shape: Shape) -> Sizes:
    """Return the sizes of all tensors of `Buffers`; names of layer tensors end with the number of the layer."""
    batch, beam, capacity, src_len = shape
    num_heads, d_head = recipe.num_heads, recipe.head_width
    sizes: Sizes = {
        "tokens": (batch, beam),
        "positions": (batch,),
        "slots": (beam,),
        "hidden": (batch, beam, recipe.d_model),
        "memory_mask": (batch, 1, 1, src_len),
        "mask": (batch, 1, beam, capacity),
    }
    for layer in range(recipe.num_decoder_layers):
        sizes[f"cache {layer}"] = (2, batch, num_heads, capacity, d_head)
        sizes[f"memory {layer}"] = (2, batch, num_heads, src_len, d_head)
    return sizes


class Arena:
    """Memory for tensors of varying sizes, each at an address that changes only when its memory grows."""

    def __init__(self, like: Tensor) -> None:
        """like: tensor with the device and floating dtype; tokens, positions and slots are int64."""
        self._like = like
        self._memory: dict[str, Tensor] = {}

    def fits(self, sizes: Sizes) -> bool:
        """Return whether the memory is large enough."""
        return all(name in self._memory and math.prod(size) <= len(self._memory[name]) for name, size in sizes.items())

    def grow(self, sizes: Sizes) -> None:
        """Replace memory that is too small. Tensors in use keep theirs alive.

        If this runs out of memory, the arena becomes empty: a part of the tensors could leave too little memory for
        even a small batch.
        """
        try:
            for name, size in sizes.items():
                if not self.fits({name: size}):
                    self._memory.pop(name, None)  # frees it before the larger one is allocated
                    dtype = torch.int64 if name in _INTEGERS else self._like.dtype
                    self._memory[name] = self._like.new_empty(math.prod(size), dtype=dtype)
        except (RuntimeError, MemoryError):
            self._memory.clear()
            raise

    def tensors(self, sizes: Sizes) -> dict[str, Tensor]:
        """Return tensors of these sizes, which must fit."""
        return {name: self._memory[name][: math.prod(size)].view(size) for name, size in sizes.items()}
