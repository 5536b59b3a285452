"""Variants of the architecture, compared with their equations in float64: packed, stepwise and prepacked."""

from typing import Any

import pytest
import torch

from nmt.inference.captured import CapturedModel, EagerRecorder, can_capture
from nmt.inference.prepacked import PrepackedLinear, prepack
from nmt.inference.quantized import QuantizedLinear, supports_int8
from nmt.model.transformer import Transformer
from nmt.models import build_model
from nmt.packing.packed import PackedSequences
from nmt.recipe import ModelRecipe
from nmt.special_ids import BOS_ID
from tests.model.plain_model import PlainModel
from tests.model.test_transformer import SRC, TGT, VOCAB, double_model, tiny

VARIANTS: list[dict[str, object]] = [
    {},
    {"norm": "rms"},
    {"norm": "rms", "norm_order": "pre"},
    {"activation": "swiglu"},
    {"positions": "learned"},
    {"positions": "rotary"},
    {"positions": "rotary", "d_head": 6, "norm_order": "pre"},
    {"positions": "relative", "max_distance": 2},
    {"positions": "relative", "d_head": 6, "norm_order": "pre"},
    {"d_head": 6},
    {"d_head": 3, "num_heads": 5},
    {"num_encoder_heads": 1},
    {"num_encoder_heads": 3, "d_head": 4, "positions": "relative", "max_distance": 2},
]
# Without variants of layers that do not depend on the cache: normalization and activation.
STEP_VARIANTS = [variant for variant in VARIANTS if not variant.keys() & {"norm", "activation"}]


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_packed_sentences_equal_the_equations(variant: dict[str, object]) -> None:
    model = double_model(tiny(**variant))
    ours = model.logits(model(PackedSequences.from_lists(SRC), PackedSequences.from_lists(TGT)))
    plain = PlainModel(model)
    expected = torch.cat([plain.logits(src, tgt) for src, tgt in zip(SRC, TGT, strict=True)])
    torch.testing.assert_close(ours, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("variant", STEP_VARIANTS, ids=str)
@pytest.mark.parametrize("is_captured", [False, True], ids=["cache", "buffers"])
def test_steps_of_search_equal_the_equations(
    variant: dict[str, object], is_captured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hypotheses are reordered at each step, a sentence leaves, and slots of pruned hypotheses are removed."""
    monkeypatch.setattr("nmt.kv_cache.state._COMPACTION_INTERVAL", 3)
    model = double_model(tiny(**variant)).eval().requires_grad_(False)
    if is_captured and not can_capture(model):
        pytest.skip("steps with relative positions are not recorded")
    stepper: Any = CapturedModel(model, EagerRecorder()) if is_captured else model
    plain, generator = PlainModel(model), torch.Generator().manual_seed(4)
    live, beam = [0, 1, 2, 3], 2
    state = stepper.start(PackedSequences.from_lists(SRC), beam)
    histories = torch.full((4, beam, 1), BOS_ID)
    for step in range(10):
        hidden = stepper.advance(histories[..., -1], state)
        expected = [
            [plain.logits(SRC[b], histories[i, j].tolist())[-1] for j in range(beam)] for i, b in enumerate(live)
        ]
        torch.testing.assert_close(
            model.logits(hidden), torch.stack([torch.stack(one) for one in expected]), rtol=1e-11, atol=1e-11
        )
        if step == 3:
            kept = torch.tensor([3, 0, 2])
            state.select(kept)
            histories, live = histories[kept], [live[i] for i in kept.tolist()]
        beam_index = torch.randint(0, beam, (len(live), beam), generator=generator)
        state.reorder(beam_index)
        histories = histories.gather(1, beam_index[..., None].expand_as(histories))
        histories = torch.cat([histories, torch.randint(4, VOCAB, (len(live), beam, 1), generator=generator)], dim=2)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize(("kind", "tolerance"), [(PrepackedLinear, 1e-4), (QuantizedLinear, 0.1)])
def test_prepacked_weights_give_the_same_logits_within_rounding(
    variant: dict[str, object], kind: type[PrepackedLinear], tolerance: float
) -> None:
    if kind is QuantizedLinear and not supports_int8(torch.device("cpu")):
        pytest.skip("this processor has no AVX-512-VNNI")
    model = double_model(tiny(**variant)).float().eval().requires_grad_(False)
    src, tgt = PackedSequences.from_lists(SRC), PackedSequences.from_lists(TGT)
    expected = model.logits(model(src, tgt))
    torch.testing.assert_close(prepack(model, kind).logits(model(src, tgt)), expected, rtol=0.0, atol=tolerance)


def test_default_options_give_the_parameters_and_outputs_of_earlier_versions() -> None:
    """Values computed before the variants existed, when initial weights were twice as large."""
    torch.manual_seed(0)
    model = Transformer(tiny(), VOCAB, VOCAB).double()
    for weight in model.parameters():
        factor = 2 if weight.dim() > 1 else 1
        weight.data.mul_(factor).add_(torch.randn_like(weight) * 0.1)
    sizes = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    layer = {
        "attention.qkv.weight": (48, 16),
        "attention.qkv.bias": (48,),
        "attention.out.weight": (16, 16),
        "attention.out.bias": (16,),
        "attention_residual.norm.weight": (16,),
        "attention_residual.norm.bias": (16,),
    }
    cross = {
        "cross_attention.q.weight": (16, 16),
        "cross_attention.q.bias": (16,),
        "cross_attention.kv.weight": (32, 16),
        "cross_attention.kv.bias": (32,),
        "cross_attention.out.weight": (16, 16),
        "cross_attention.out.bias": (16,),
        "cross_attention_residual.norm.weight": (16,),
        "cross_attention_residual.norm.bias": (16,),
    }
    feed_forward = {
        "feed_forward.inner.weight": (24, 16),
        "feed_forward.inner.bias": (24,),
        "feed_forward.outer.weight": (16, 24),
        "feed_forward.outer.bias": (16,),
        "feed_forward_residual.norm.weight": (16,),
        "feed_forward_residual.norm.bias": (16,),
    }
    stacks = {"encoder": layer | feed_forward, "decoder": layer | cross | feed_forward}
    expected = {
        f"{stack}.layers.{i}.{name}": size
        for stack, own in stacks.items()
        for i in (0, 1)
        for name, size in own.items()
    }
    assert sizes == {"output.weight": (VOCAB, 16), **expected}
    assert list(sizes)[:2] == ["output.weight", "encoder.layers.0.attention.qkv.weight"]
    logits = model.logits(model(PackedSequences.from_lists(SRC), PackedSequences.from_lists(TGT)))
    # Random numbers may differ in the last bits of float32 between processors.
    torch.testing.assert_close(
        logits[::5, 3].tolist(), [-0.583772, 1.544155, -0.764893, 0.785811, 0.997402], rtol=0.0, atol=1e-5
    )


GRU = ModelRecipe(architecture="gru", d_model=16, num_encoder_layers=2, num_decoder_layers=2, output_bias=True)


@pytest.mark.parametrize("recipe", [*(tiny(**variant) for variant in VARIANTS), tiny(output_bias=True), GRU])
def test_every_parameter_is_initialized(recipe: ModelRecipe) -> None:
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    try:
        model = build_model(recipe, VOCAB, VOCAB)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(bool(weight.isfinite().all()) for weight in model.parameters())


def test_gate_matrices_are_initialized_separately() -> None:
    model = Transformer(tiny(d_model=256, d_ff=512, activation="swiglu"), VOCAB, VOCAB)
    weight = model.encoder.layers[0].feed_forward.inner.weight
    bound = (6 / (256 + 512)) ** 0.5 / 2  # half of Xavier uniform
    assert 0.99 * bound < weight[:512].abs().max() <= bound
    assert 0.99 * bound < weight[512:].abs().max() <= bound
