"""Prepacked models against plain ones, in every precision."""

import math
import platform

import pytest
import torch

from nmt.inference.prepacked import PrepackedLinear, prepack
from nmt.model.transformer import Transformer
from nmt.packing.packed import PackedSequences
from nmt.recipe import ModelRecipe
from nmt.special_ids import BOS_ID

VOCAB = 53
SRC = PackedSequences.from_lists([[5, 6, 7, 8, 9, 3], [11, 3], [20, 21, 22, 23, 3]])
TGT = PackedSequences.from_lists([[BOS_ID, 9, 8], [BOS_ID, 7, 30, 31, 12], [BOS_ID]])
RECIPE = ModelRecipe(
    d_model=32, d_ff=48, num_heads=4, num_encoder_layers=2, num_decoder_layers=2, max_positions=20, output_bias=True
)


def two_models(dtype: torch.dtype, kind: type[PrepackedLinear] = PrepackedLinear) -> tuple[Transformer, Transformer]:
    """Two models with the same perturbed weights; the second is prepacked."""
    models = []
    for _ in range(2):
        torch.manual_seed(3)
        model = Transformer(RECIPE, VOCAB, VOCAB).eval().requires_grad_(False)
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
        models.append(model.to(dtype))
    prepack(models[1], kind)
    return models[0], models[1]


# fp32: sums of 48 numbers in a different order; bf16: 8 significant bits through four layers.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 0.0), (torch.float32, 2e-5), (torch.bfloat16, 0.1)], ids=str
)
def test_forward_and_steps_equal_those_of_the_plain_model(dtype: torch.dtype, tolerance: float) -> None:
    plain, prepacked = two_models(dtype)
    outputs = [model.logits(model(SRC, TGT)) for model in (plain, prepacked)]
    torch.testing.assert_close(*outputs, rtol=0.0, atol=tolerance)
    states = [model.start(SRC, 3) for model in (plain, prepacked)]
    tokens = torch.full((3, 3), BOS_ID)
    for step in range(12):
        pair = [model.step(tokens, state) for model, state in zip((plain, prepacked), states, strict=True)]
        torch.testing.assert_close(*pair, rtol=0.0, atol=tolerance)
        tokens = torch.randint(4, VOCAB, (3, 3), generator=torch.Generator().manual_seed(step))
        for state in states:
            state.reorder(torch.tensor([[0, 0, 1], [2, 1, 0], [1, 1, 1]]))
    some, hidden = torch.tensor([4, 50, 7]), torch.randn(2, 3, 32).to(dtype)
    assert torch.equal(prepacked.logits_of(some)(hidden), plain.logits_of(some)(hidden))  # for a shortlist
    attentions = [model.cross_attention(SRC, TGT) for model in (plain, prepacked)]
    for expected, found in zip(*attentions, strict=True):
        torch.testing.assert_close(found, expected, rtol=0.0, atol=tolerance)


def test_fp16_log_probabilities_are_float32_within_rounding() -> None:
    """Each of 8 roundings in each of 10 sub-layers changes a vector by at most 2^-11 of its length, in any direction.

    Norms keep lengths, and independent errors add in quadrature: a hidden vector is off by sqrt(80) 2^-11 of its
    length. The projection of this error onto a row of weights is 1 / sqrt(d_model) of it: the error of a logit. A
    log-probability is a difference of two logits. Five times its error is allowed.
    """
    (plain, _), (_, half) = two_models(torch.float32), two_models(torch.float16)
    hidden = plain(SRC, TGT)
    lengths = hidden.norm(dim=1).max() * plain.output.weight.norm(dim=1).max()
    tolerance = 5 * math.sqrt(2 * 80 / RECIPE.d_model) * 2.0**-11 * float(lengths)
    exact, rounded = plain.log_probs(hidden), half.log_probs(half(SRC, TGT))
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, exact, rtol=0.0, atol=tolerance)
    assert not torch.equal(rounded, exact)
    states = [model.start(SRC, 3) for model in (plain, half)]
    assert {state.layers[0].memory.dtype for state in states} == {torch.float32, torch.float16}
    tokens = torch.full((3, 3), BOS_ID)
    for step in range(12):
        exact, rounded = (model.step(tokens, state) for model, state in zip((plain, half), states, strict=True))
        assert rounded.dtype == torch.float32
        torch.testing.assert_close(rounded, exact, rtol=0.0, atol=tolerance)
        tokens = torch.randint(4, VOCAB, (3, 3), generator=torch.Generator().manual_seed(step))
    assert {layer.cache.stored.dtype for layer in states[1].layers} == {torch.float16}


@pytest.mark.parametrize("has_amx", [True, False])
def test_bf16_cached_attention_matches_fp32(monkeypatch: pytest.MonkeyPatch, has_amx: bool) -> None:
    monkeypatch.setattr("torch.cpu._is_amx_tile_supported", lambda: has_amx)
    plain, _ = two_models(torch.float32)
    model, _ = two_models(torch.bfloat16)
    states = [one.start(SRC, 3) for one in (plain, model)]
    tokens = torch.full((3, 3), BOS_ID)
    for step in range(4):
        expected, got = (one.step(tokens, state) for one, state in zip((plain, model), states, strict=True))
        torch.testing.assert_close(got, expected, rtol=0.0, atol=0.1)
        tokens = torch.randint(4, VOCAB, (3, 3), generator=torch.Generator().manual_seed(step))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors may not support blocked weights")
def test_fp32_is_blocked_on_a_cpu_and_float64_is_not() -> None:
    layer = torch.nn.Linear(16, 24)
    assert PrepackedLinear(layer.weight, layer.bias).is_blocked
    layer.double()
    assert not PrepackedLinear(layer.weight, layer.bias).is_blocked


def test_the_input_may_have_any_number_of_rows() -> None:
    plain = torch.nn.Linear(16, 24)
    packed = PrepackedLinear(plain.weight, plain.bias)
    for shape in ((1, 16), (7, 16), (3, 5, 16), (0, 16)):
        x = torch.randn(shape)
        torch.testing.assert_close(packed(x), plain(x).detach(), rtol=0.0, atol=1e-5)


def test_prepacking_twice_is_an_error() -> None:
    _, prepacked = two_models(torch.float32)
    with pytest.raises(AssertionError, match="the model is already prepacked"):
        prepack(prepacked)
