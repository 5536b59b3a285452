"""Adam, and its state as named tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from nmt.checkpoint import Tensors
from nmt.errors import UserError
from nmt.recipe import TrainRecipe


class Adam:
    """Adam (Kingma and Ba 2015), or AdamW with decoupled weight decay (Loshchilov and Hutter 2019).

    Runs torch's fused kernel: one pass over parameters, gradients and moments. Equals `torch.optim.Adam` with
    `fused=True`, which imports the compiler of torch at its first use; this takes longer than the first update.

    param_groups: parameters with their learning rate `lr` and `weight_decay`, as in torch
    state:        `step`, `exp_avg` and `exp_avg_sq` of each parameter, from its first update on
    """

    def __init__(
        self, groups: Iterable[dict[str, Any]], *, betas: tuple[float, float], epsilon: float, decoupled: bool
    ) -> None:
        """Optimize groups of `params` and `weight_decay`. decoupled: weight decay as in AdamW"""
        self.param_groups = [{"lr": 0.0, **group} for group in groups]
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {}
        self._betas, self._epsilon, self._decoupled = betas, epsilon, decoupled

    def zero_grad(self) -> None:
        """Free the gradients."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @torch.no_grad()
    def step(self, skip: Tensor | None = None) -> None:
        """Update all parameters that have a gradient. skip: 1 if the kernel must change nothing, else 0; shape ()"""
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            states = [self._state_of(parameter) for parameter in parameters]
            adam(
                parameters,
                [parameter.grad for parameter in parameters],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                max_exp_avg_sqs=[],
                state_steps=[state["step"] for state in states],
                fused=True,
                found_inf=skip,
                amsgrad=False,
                beta1=self._betas[0],
                beta2=self._betas[1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=self._epsilon,
                maximize=False,
                decoupled_weight_decay=self._decoupled,
            )

    def _state_of(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        if parameter not in self.state:
            self.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),  # where the kernel needs it
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        return self.state[parameter]


def build_optimizer(model: nn.Module, recipe: TrainRecipe) -> Adam:
    """Return the optimizer of a recipe; the updater sets the learning rate."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    is_adamw = recipe.optimizer == "adamw"
    groups = [{"params": parameters, "weight_decay": 0.0}]
    if is_adamw:
        matrices = [parameter for parameter in parameters if parameter.ndim >= 2]
        others = [parameter for parameter in parameters if parameter.ndim < 2]
        groups = [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return Adam(groups, betas=recipe.adam_betas, epsilon=recipe.adam_epsilon, decoupled=is_adamw)


def optimizer_tensors(optimizer: Adam, model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the optimizer state on the host, named `<state>/<parameter>`; empty before the first update."""
    return {
        f"{key}/{name}": value.detach().to("cpu", copy=True)
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(optimizer: Adam, model: nn.Module, tensors: Tensors) -> None:
    """Load the state from `optimizer_tensors`; raises UserError if it belongs to another model."""
    parameters = dict(model.named_parameters())
    for full_name, tensor in tensors.items():
        key, _, name = full_name.partition("/")
        if name not in parameters or (tensor.ndim and tensor.shape != parameters[name].shape):
            raise UserError(
                f"the optimizer state {full_name} matches no parameter of this model; resume with the same recipe"
            )
        state = optimizer.state.setdefault(parameters[name], {})
        state[key] = tensor.clone().to(parameters[name].device)  # the fused kernel needs `step` there too
