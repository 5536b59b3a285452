"""Compilation of the training step.

On one GPU, model and loss become one static graph. No kernel handles dynamic shapes, and the host only launches the
kernels, so this should be fastest, but its speed has not been measured yet. It requires attention without
sentence lengths on the host (varlen), and a single process, because overlapping the all-reduce with the backward pass
splits the graph. Otherwise, layers are compiled separately, which takes less time than compiling the whole model:
encoder layers share one graph and decoder layers another.

CUDA graphs are not used. With `mode="reduce-overhead"`, torch.compile overwrites the gradients that micro-batches
accumulate, and kernels for thousands of tokens hide the launch overhead anyway.
"""

from __future__ import annotations

import torch

from nmt.devices.precision import ComputeType, torch_dtype
from nmt.model.attention import choose_kernel
from nmt.model.transformer import Transformer
from nmt.models import TranslationModel
from nmt.processes.distributed import World
from nmt.recipe import Recipe
from nmt.train.guidance import Guidance


def is_one_graph(recipe: Recipe, world: World, precision: ComputeType) -> bool:
    """Return whether model and loss are compiled as one graph, for micro-batches of one shape."""
    train, model = recipe.train, recipe.model
    query = torch.empty(0, model.head_width, dtype=torch_dtype(precision), device=world.device)
    # Relative positions need padded rows.
    uses_varlen = model.positions != "relative" and choose_kernel(query, model.attention_dropout) == "varlen"
    has_plain_loss = not train.rdrop and not train.guided_alignment
    return train.compile and train.shapes != "packed" and world.size == 1 and uses_varlen and has_plain_loss


def has_fixed_shapes(recipe: Recipe, world: World, precision: ComputeType) -> bool:
    """Return whether all micro-batches have one shape."""
    shapes = recipe.train.shapes
    return is_one_graph(recipe, world, precision) if shapes == "auto" else shapes == "fixed"


def compile_layers(model: TranslationModel, guidance: Guidance | None, backend: str = "inductor") -> None:
    """Compile each layer of a Transformer for micro-batches of any size; the recipe rejects other architectures.

    The layer that guided alignment trains is not compiled: its loss reads the inputs of the layer's cross-attention.
    """
    assert isinstance(model, Transformer), "the recipe rejects train.compile for other architectures"
    decoder = list(model.decoder.layers)
    if guidance is not None:
        del decoder[guidance.attention.layer]
    for layer in (*model.encoder.layers, *decoder):
        layer.compile(dynamic=True, backend=backend)
