"""Shapes and memory of static buffers."""

from typing import Any

import pytest
import torch
from torch import Tensor

from nmt.inference.buffers import Arena, Shape, tensor_sizes
from nmt.recipe import ModelRecipe


def test_shapes_are_rounded_up() -> None:
    assert Shape.at_least(1, 1, 1, 1) == Shape(1, 1, 64, 16)
    assert Shape.at_least(5, 3, 65, 32) == Shape(8, 3, 128, 32)
    assert Shape.at_least(128, 4, 512, 48) == Shape(128, 4, 512, 64)


def test_running_out_of_memory_keeps_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of the tensors could leave too little memory for even a small batch."""
    recipe = ModelRecipe(d_model=16, num_heads=2, num_decoder_layers=2)
    small, large = (tensor_sizes(recipe, Shape(batch, 3, 64, 32)) for batch in (2, 64))
    arena = Arena(torch.zeros(1))
    arena.grow(small)
    allocate, left = torch.Tensor.new_empty, [5]

    def new_empty(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        left[0] -= 1
        if left[0] < 0:
            raise torch.OutOfMemoryError("no")
        return allocate(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "new_empty", new_empty)
    with pytest.raises(torch.OutOfMemoryError):
        arena.grow(large)
    assert not arena._memory


def test_memory_moves_only_when_it_grows() -> None:
    recipe = ModelRecipe(d_model=16, num_heads=2, num_decoder_layers=1)
    wide, high, both = (
        tensor_sizes(recipe, Shape(*shape)) for shape in ((2, 3, 64, 32), (4, 3, 64, 16), (4, 3, 64, 32))
    )
    arena = Arena(torch.zeros(1, dtype=torch.bfloat16))
    assert not arena.fits(wide)
    arena.grow(wide)
    assert arena.fits(wide) and not arena.fits(high)
    first = arena.tensors(wide)
    arena.grow(high)
    assert arena.fits(wide) and arena.fits(high) and not arena.fits(both)
    second, again = arena.tensors(high), arena.tensors(wide)
    for name, tensor in second.items():
        assert tensor.is_contiguous() and tuple(tensor.shape) == high[name]
        assert tensor.dtype == (torch.int64 if name in ("tokens", "positions", "slots") else torch.bfloat16)
        fitted = name in ("slots", "memory_mask", "memory 0")  # not larger than in the first shape
        assert (tensor.data_ptr() == first[name].data_ptr()) == fitted
        assert tensor.data_ptr() == again[name].data_ptr()
    assert len({tensor.data_ptr() for tensor in second.values()}) == len(second)
