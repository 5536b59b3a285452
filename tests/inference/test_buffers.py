"""The sizes and the memory of tensors that stay where they are."""

import torch

from nmt.inference.buffers import Arena, Shape, tensor_sizes
from nmt.recipe import ModelRecipe


def test_shapes_are_few_and_hold_what_they_must() -> None:
    assert Shape.holding(1, 1, 1, 1) == Shape(1, 1, 64, 16)
    assert Shape.holding(5, 3, 65, 32) == Shape(8, 3, 128, 32)
    assert Shape.holding(128, 4, 512, 48) == Shape(128, 4, 512, 64)


def test_memory_is_taken_where_there_is_too_little_and_else_stays() -> None:
    recipe = ModelRecipe(d_model=16, num_heads=2, num_decoder_layers=1)
    wide, high, both = (
        tensor_sizes(recipe, Shape(*shape)) for shape in ((2, 3, 64, 32), (4, 3, 64, 16), (4, 3, 64, 32))
    )
    arena = Arena(torch.zeros(1, dtype=torch.bfloat16))
    assert not arena.holds(wide)
    arena.make_room(wide)
    assert arena.holds(wide) and not arena.holds(high)
    first = arena.tensors(wide)
    arena.make_room(high)
    assert arena.holds(wide) and arena.holds(high) and not arena.holds(both)
    second, again = arena.tensors(high), arena.tensors(wide)
    for name, tensor in second.items():
        assert tensor.is_contiguous() and tuple(tensor.shape) == high[name]
        assert tensor.dtype == (torch.int64 if name in ("tokens", "positions", "where") else torch.bfloat16)
        fitted = name in ("where", "memory_mask", "memory 0")
        assert (tensor.data_ptr() == first[name].data_ptr()) == fitted
        assert tensor.data_ptr() == again[name].data_ptr()
    assert len({tensor.data_ptr() for tensor in second.values()}) == len(second)
