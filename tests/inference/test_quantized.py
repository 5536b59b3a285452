"""8-bit matmuls against 64-bit integers, and independence of rows."""

import numpy as np
import pytest
import torch

from nmt.inference.prepacked import PrepackedLinear
from nmt.inference.quantized import QuantizedLinear, supports_int8
from nmt.special_ids import BOS_ID
from tests.inference.test_prepacked import SRC, TGT, VOCAB, two_models

pytestmark = pytest.mark.skipif(not supports_int8(torch.device("cpu")), reason="this processor has no AVX-512-VNNI")


def integers_and_scales(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantize like `QuantizedLinear`, in float32: the maximum of each row becomes 127."""
    largest = np.abs(rows).max(axis=1, keepdims=True)
    return np.rint(rows * (np.float32(127) / largest)).astype(np.int64), largest.astype(np.float64) / 127


def quantized(layer: torch.nn.Linear) -> QuantizedLinear:
    return QuantizedLinear(layer.weight, layer.bias)


@pytest.mark.parametrize(("rows", "inner", "outer"), [(1, 16, 8), (7, 48, 33), (130, 512, 96), (64, 4_096, 64)])
def test_integer_sums_are_exact(rows: int, inner: int, outer: int) -> None:
    torch.manual_seed(rows)
    layer, x = torch.nn.Linear(inner, outer), torch.randn(rows, inner)
    # Equal values of one sign give the largest possible sum.
    x[0], layer.weight.data[0] = 1.0, 1.0
    given, x_scales = integers_and_scales(x.numpy())
    largest = layer.weight.detach().abs().amax(dim=1, keepdim=True)
    weights = (layer.weight.detach() / largest * 127).round().numpy().astype(np.int64)
    expected = (given @ weights.T) * x_scales * (largest.numpy().astype(np.float64).T / 127)
    got = quantized(layer)(x).numpy()
    # Only the float32 operations after the sum round: three factors and the bias.
    np.testing.assert_allclose(
        got, expected + layer.bias.detach().numpy(), rtol=1e-6, atol=2e-6 * np.abs(expected).max()
    )


def test_rows_are_bit_identical_in_every_batch() -> None:
    torch.manual_seed(1)
    linear = quantized(torch.nn.Linear(64, 64))
    x = torch.randn(70, 64) * torch.logspace(-3, 3, 70)[:, None]
    together = linear(x)
    for count in (1, 2, 17, 64):
        assert torch.equal(linear(x[:count]), together[:count])
    assert torch.equal(linear(x.view(7, 10, 64)), together.view(7, 10, 64))
    assert linear(x[:0]).shape == (0, 64)


def test_rows_of_zeros_give_the_bias_and_nan_stays_in_its_row() -> None:
    layer = torch.nn.Linear(32, 24)
    x = torch.randn(5, 32)
    x[1], x[2], x[3, 4] = 0.0, 1e-41, float("nan")
    got = quantized(layer)(x)
    torch.testing.assert_close(got[1:3], layer.bias.detach().expand(2, -1), rtol=0.0, atol=1e-30)
    assert got[3].isnan().all()
    torch.testing.assert_close(got[[0, 4]], layer(x[[0, 4]]).detach(), rtol=0.0, atol=0.05)
    layer.weight.data[2] = 0.0
    assert torch.equal(quantized(layer)(x[:3])[:, 2], layer.bias[2].detach().expand(3))


def test_int8_model_is_close_to_fp32() -> None:
    plain, model = two_models(torch.float32, QuantizedLinear)
    assert not any(type(module) is PrepackedLinear for module in model.modules())
    outputs = [one.logits(one(SRC, TGT)) for one in (plain, model)]
    spread = outputs[0].std()
    assert 0.0 < (outputs[0] - outputs[1]).square().mean().sqrt() < 0.05 * spread
    states = [one.start(SRC, 3) for one in (plain, model)]
    tokens = torch.full((3, 3), BOS_ID)
    for step in range(6):
        expected, got = (one.step(tokens, state) for one, state in zip((plain, model), states, strict=True))
        assert 0.0 < (expected - got).square().mean().sqrt() < 0.05 * spread
        tokens = torch.randint(4, VOCAB, (3, 3), generator=torch.Generator().manual_seed(step))
