"""The optimizer, and its state as named tensors."""

from __future__ import annotations

from typing import Any, assert_never

import torch
from torch import Tensor, nn

from nmt.checkpoint import Tensors
from nmt.recipe import TrainRecipe, UserError


def build_optimizer(model: nn.Module, recipe: TrainRecipe) -> torch.optim.Optimizer:
    """Adam (Kingma and Ba 2015) or AdamW (Loshchilov and Hutter 2019), fused; the updater sets the learning rate."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    options: dict[str, Any] = {"lr": 0.0, "betas": recipe.adam_betas, "eps": recipe.adam_epsilon, "fused": True}
    match recipe.optimizer:
        case "adam":
            return torch.optim.Adam(parameters, **options)
        case "adamw":
            matrices = [parameter for parameter in parameters if parameter.ndim >= 2]
            others = [parameter for parameter in parameters if parameter.ndim < 2]
            groups = [
                {"params": matrices, "weight_decay": recipe.weight_decay},
                {"params": others, "weight_decay": 0.0},
            ]
            return torch.optim.AdamW(groups, **options)
        case _:
            assert_never(recipe.optimizer)


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the optimizer state on the host, named `<state>/<parameter>`; empty before the first update."""
    return {
        f"{key}/{name}": value.detach().to("cpu", copy=True)
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Tensors) -> None:
    """Load the state from `optimizer_tensors`; raises UserError if it belongs to another model."""
    parameters = dict(model.named_parameters())
    for full_name, tensor in tensors.items():
        key, _, name = full_name.partition("/")
        if name not in parameters or (tensor.ndim and tensor.shape != parameters[name].shape):
            raise UserError(
                f"the optimizer state {full_name} matches no parameter of this model; resume with the same recipe"
            )
        # The fused kernel needs Adam's step counter on the device of the parameter.
        optimizer.state[parameters[name]][key] = tensor.clone().to(parameters[name].device)
