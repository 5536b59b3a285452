"""What of a training step is compiled, and whether its micro-batches have one shape.

One graph of model and loss, with static shapes, is what a GPU runs fastest: no kernel is prepared for shapes that may
come, and the host, which only starts what the graph says, keeps ahead. It takes attention that needs nothing of the
host, which is torch's varlen kernel alone, and one process: exchanging gradients while the backward pass still runs
needs a graph in pieces. Everything else is compiled layer by layer, where all encoder layers share one graph and all
decoder layers another: on a CPU a compilation of the whole took about 50 s, which a short run never earns back.

CUDA graphs are left out. Those of torch.compile (`mode="reduce-overhead"`) write what they give, gradients among it, to
the same memory at every run, while an update of several micro-batches adds up just these gradients; and a step of
thousands of tokens keeps a GPU busy for longer than its kernels take to start.
"""

from __future__ import annotations

from typing import assert_never

import torch

from nmt.devices.precision import ComputeType, torch_dtype
from nmt.model.attention import choose_kernel
from nmt.model.transformer import Transformer
from nmt.processes.distributed import World
from nmt.recipe import Recipe


def is_one_graph(recipe: Recipe, world: World, precision: ComputeType) -> bool:
    """Whether model and loss are compiled as one graph, which needs micro-batches of one shape."""
    train, model = recipe.train, recipe.model
    query = torch.empty(0, model.head_width, dtype=torch_dtype(precision), device=world.device)
    traceable = choose_kernel(query, model.attention_dropout) == "varlen" and not train.rdrop
    traceable = traceable and model.positions != "relative"  # which no such kernel has
    return train.compile and train.shapes != "packed" and world.size == 1 and traceable


def has_fixed_shapes(recipe: Recipe, world: World, precision: ComputeType) -> bool:
    """Whether all micro-batches have one shape."""
    match recipe.train.shapes:
        case "auto":
            return is_one_graph(recipe, world, precision)
        case "fixed":
            return True
        case "packed":
            return False
        case _:
            assert_never(recipe.train.shapes)


def compile_layers(model: Transformer) -> None:
    """Compile layer by layer, for micro-batches of any size."""
    for layer in (*model.encoder.layers, *model.decoder.layers):
        layer.compile(dynamic=True)
