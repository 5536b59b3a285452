"""Adam, compared with its definition and with torch, and saving its state by name."""

import subprocess
import sys
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

from nmt.errors import UserError
from nmt.recipe import TrainRecipe
from nmt.train.optimizer import Adam, build_optimizer, load_optimizer_tensors, optimizer_tensors


def quadratic_steps(recipe: TrainRecipe, steps: int, rate: float) -> tuple[nn.Linear, Adam]:
    torch.manual_seed(0)
    layer = nn.Linear(3, 2, dtype=torch.float64)
    optimizer = build_optimizer(layer, recipe)
    for step in range(steps):
        optimizer.zero_grad()
        (layer.weight.pow(2).sum() * (step + 1) + layer.bias.sum()).backward()
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
    return layer, optimizer


def test_adam_follows_the_paper() -> None:
    """Kingma and Ba 2015, algorithm 1, with the betas and the epsilon of Vaswani et al. 2017, section 5.3."""
    recipe = TrainRecipe()
    assert recipe.adam_betas == (0.9, 0.98)
    assert recipe.adam_epsilon == 1e-9
    torch.manual_seed(0)
    w = nn.Linear(3, 2, dtype=torch.float64).weight.detach().clone()
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    for t in range(1, 5):
        g = 2 * w * t
        m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g * g
        w = w - 0.01 * (m / (1 - 0.9**t)) / ((v / (1 - 0.98**t)).sqrt() + 1e-9)
    layer, _ = quadratic_steps(recipe, 4, 0.01)
    torch.testing.assert_close(layer.weight.detach(), w, rtol=1e-12, atol=1e-12)


def test_adamw_decays_matrices_only() -> None:
    plain, _ = quadratic_steps(TrainRecipe(optimizer="adamw"), 1, 0.01)
    decayed, _ = quadratic_steps(TrainRecipe(optimizer="adamw", weight_decay=0.5), 1, 0.01)
    torch.manual_seed(0)
    start = nn.Linear(3, 2, dtype=torch.float64).weight.detach()
    torch.testing.assert_close(plain.weight - decayed.weight, 0.01 * 0.5 * start, rtol=1e-9, atol=1e-12)
    assert torch.equal(plain.bias, decayed.bias)


@pytest.mark.parametrize(
    "recipe", [TrainRecipe(), TrainRecipe(optimizer="adamw", weight_decay=0.1)], ids=["adam", "adamw"]
)
def test_updates_equal_those_of_torch_bit_for_bit(recipe: TrainRecipe) -> None:
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 3), nn.LayerNorm(3))
    ours[2].bias.requires_grad_(False)
    torchs = deepcopy(ours)
    options: dict[str, Any] = {"betas": recipe.adam_betas, "eps": recipe.adam_epsilon, "fused": True}
    if recipe.optimizer == "adam":
        reference: torch.optim.Optimizer = torch.optim.Adam(torchs.parameters(), **options)
    else:
        matrices = [parameter for parameter in torchs.parameters() if parameter.ndim == 2]
        others = [parameter for parameter in torchs.parameters() if parameter.ndim == 1]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        reference = torch.optim.AdamW(groups, **options)
    optimizer = build_optimizer(ours, recipe)
    for step in range(1, 6):
        for model, one in ((ours, optimizer), (torchs, reference)):
            one.zero_grad()
            if step == 3:  # without the other parameters
                model.get_parameter("1.weight").pow(2).sum().backward()
            else:
                model(torch.tensor([step, 2])).pow(2).sum().backward()
            for group in one.param_groups:
                group["lr"] = 0.01 / step
            one.step()
        assert all(map(torch.equal, ours.parameters(), torchs.parameters()))
    states = reference.state
    for parameter, other in zip(ours.parameters(), torchs.parameters(), strict=True):
        assert optimizer.state.get(parameter, {}).keys() == states[other].keys()
        assert all(torch.equal(value, states[other][key]) for key, value in optimizer.state.get(parameter, {}).items())


def test_a_skipped_step_changes_nothing() -> None:
    layer, optimizer = quadratic_steps(TrainRecipe(), 2, 0.01)
    weight, state = layer.weight.detach().clone(), optimizer_tensors(optimizer, layer)
    optimizer.step(skip=torch.tensor(1.0))
    assert torch.equal(layer.weight, weight)
    after = optimizer_tensors(optimizer, layer)
    assert all(torch.equal(state[name], after[name]) for name in state)
    optimizer.step(skip=torch.tensor(0.0))
    assert not torch.equal(layer.weight, weight)


@pytest.mark.slow
def test_a_step_does_not_import_the_compiler() -> None:
    code = "import tests.train.test_optimizer as t, sys; t.quadratic_steps(t.TrainRecipe(), 1, 0.1); "
    loaded = "print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code + loaded], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_named_state_loads_into_a_new_optimizer() -> None:
    layer, optimizer = quadratic_steps(TrainRecipe(), 3, 0.01)
    saved = optimizer_tensors(optimizer, layer)
    assert {"exp_avg/weight", "exp_avg_sq/bias", "step/weight"} <= saved.keys()
    fresh = build_optimizer(layer, TrainRecipe())
    assert optimizer_tensors(fresh, layer) == {}
    load_optimizer_tensors(fresh, layer, saved)
    again = optimizer_tensors(fresh, layer)
    assert all(torch.equal(saved[name], again[name]) for name in saved)
    for one in (optimizer, fresh):  # saving and loading copy: a checkpoint is written during later updates
        one.step()
    later = optimizer_tensors(optimizer, layer)
    assert all(torch.equal(saved[name], again[name]) and not torch.equal(saved[name], later[name]) for name in saved)


def test_state_of_another_model_is_rejected() -> None:
    layer, optimizer = quadratic_steps(TrainRecipe(), 1, 0.01)
    saved = optimizer_tensors(optimizer, layer)
    other = nn.Linear(4, 2)
    with pytest.raises(UserError, match="matches no parameter"):
        load_optimizer_tensors(build_optimizer(other, TrainRecipe()), other, saved)
