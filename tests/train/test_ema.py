"""The EMA, compared with its formula in float64, and swapping it with the parameters."""

import pytest
import torch
from torch import nn

from nmt.train.ema import ExponentialMovingAverage


def test_average_follows_its_formula() -> None:
    model = nn.Linear(3, 2)
    average = ExponentialMovingAverage(model, decay=0.4)  # the maximum, which limits the formula from update 6 on
    expected = {name: weight.detach().double() for name, weight in model.named_parameters()}
    random = torch.Generator().manual_seed(3)
    for step in range(1, 12):
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(torch.randn(weight.shape, generator=random))
        decay = min(0.4, (1 + step) / (10 + step))
        for name, weight in model.named_parameters():
            expected[name] = decay * expected[name] + (1 - decay) * weight.detach().double()
        average.update(step)
    for name, tensor in average.tensors().items():
        torch.testing.assert_close(tensor.double(), expected[name], rtol=1e-6, atol=1e-6)


def test_parameters_are_restored_bit_for_bit() -> None:
    model = nn.Linear(4, 4)
    average = ExponentialMovingAverage(model, decay=0.9)
    with torch.no_grad():
        model.weight.mul_(1.7)
    average.update(1)
    own, averaged = model.weight.detach().clone(), average.tensors()["weight"]
    with pytest.raises(KeyError), average.applied():
        assert torch.equal(model.weight, averaged)
        raise KeyError("even then")
    assert torch.equal(model.weight, own)
    assert torch.equal(average.tensors()["weight"], averaged)
    assert not torch.equal(own, averaged)
