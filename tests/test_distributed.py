"""Devices that are there and are not; a world of one."""

import pytest
import torch

from nmt.distributed import choose_device, start_world
from nmt.recipe import UserError


def test_auto_finds_a_device_and_cpu_is_always_there() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", ["cuda:99", "gpu", "mps", "cuda:x"])
def test_a_device_that_is_not_there_is_one_line(name: str) -> None:
    with pytest.raises(UserError) as caught:
        choose_device(name)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_alone_every_exchange_is_the_identity() -> None:
    with start_world("cpu") as world:
        assert (world.rank, world.size, world.is_first) == (0, 1, True)
        assert world.sum(torch.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]
        assert world.max(7) == 7
        world.barrier()
