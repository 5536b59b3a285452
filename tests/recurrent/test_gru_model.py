"""The GRU model, compared with its equations in float64: packed, stepwise, prepacked and recomputed."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from nmt.alignment.attention import attention_maps
from nmt.inference.prepacked import PrepackedLinear, prepack
from nmt.inference.quantized import QuantizedLinear, supports_int8
from nmt.model.transformer import Transformer
from nmt.models import TranslationModel
from nmt.packing.packed import Batch, PackedSequences
from nmt.recipe import ModelRecipe
from nmt.recurrent import layers
from nmt.recurrent.model import GruModel
from nmt.recurrent.time_major import TimeMajor
from nmt.search.beam_search import beam_search
from nmt.search.ensemble import Ensemble
from nmt.search.options import SearchOptions
from nmt.search.restricted import restrict
from nmt.special_ids import BOS_ID, EOS_ID, PAD_ID
from nmt.train.loss import TrainingLoss
from tests.recurrent.plain_gru import PlainGru

VOCAB = 13
SRC = [[5, 6, 7, 8, EOS_ID], [EOS_ID], [10, 11, 12, 4, 5, 6, EOS_ID], [9, EOS_ID]]
TGT = [[BOS_ID, 5, 6], [BOS_ID, 7, 8, 9, 10], [BOS_ID], [BOS_ID, 4, 4, 4]]

VARIANTS: list[dict[str, object]] = [
    {},
    {"attention": "multiplicative"},
    {"input_feeding": True, "num_decoder_layers": 1},
    {"attention": "multiplicative", "input_feeding": True, "num_encoder_layers": 1},
    {"num_encoder_layers": 3, "num_decoder_layers": 1, "tied_embeddings": "decoder"},
    {"tied_embeddings": "none"},
]


def build(**changes: object) -> GruModel:
    """Build a model whose biases are not zero, because zeros would hide mistakes."""
    options: dict[str, object] = {"architecture": "gru", "d_model": 16, "dropout": 0.2, "max_positions": 32}
    options |= {"num_encoder_layers": 2, "num_decoder_layers": 2}
    torch.manual_seed(1)
    model = GruModel(ModelRecipe.model_validate(options | changes), VOCAB, VOCAB)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.normal_(std=0.5)
    return model


def double(model: GruModel) -> GruModel:
    return model.double().eval().requires_grad_(False)


def packed(sentences: list[list[int]]) -> PackedSequences:
    return PackedSequences.from_lists(sentences)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_packed_sentences_equal_the_equations(variant: dict[str, object]) -> None:
    model = double(build(**variant))
    ours = model.logits(model(packed(SRC), packed(TGT)))
    plain = PlainGru(model)
    expected = torch.cat([plain.logits(src, tgt) for src, tgt in zip(SRC, TGT, strict=True)])
    torch.testing.assert_close(ours, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_steps_of_search_equal_the_equations(variant: dict[str, object]) -> None:
    """Hypotheses are reordered at each step, and a sentence leaves."""
    model = double(build(**variant))
    plain, generator = PlainGru(model), torch.Generator().manual_seed(4)
    live, beam = [0, 1, 2, 3], 2
    state = model.start(packed(SRC), beam)
    histories = torch.full((4, beam, 1), BOS_ID)
    for step in range(6):
        log_probs = model.step(histories[..., -1], state)
        logits = [[plain.logits(SRC[b], histories[i, j].tolist())[-1] for j in range(beam)] for i, b in enumerate(live)]
        expected = torch.stack([torch.stack(one) for one in logits]).log_softmax(-1)
        torch.testing.assert_close(log_probs, expected, rtol=1e-11, atol=1e-11)
        if step == 3:
            kept = torch.tensor([3, 0, 2])
            state.select(kept)
            histories, live = histories[kept], [live[i] for i in kept.tolist()]
        beam_index = torch.randint(0, beam, (len(live), beam), generator=generator)
        state.reorder(beam_index)
        histories = histories.gather(1, beam_index[..., None].expand_as(histories))
        histories = torch.cat([histories, torch.randint(4, VOCAB, (len(live), beam, 1), generator=generator)], dim=2)


@pytest.mark.parametrize("variant", VARIANTS[:4], ids=str)
def test_attention_weights_equal_the_equations(variant: dict[str, object]) -> None:
    model = double(build(**variant))
    plain = PlainGru(model)
    pairs = [(src[:-1], tgt[1:]) for src, tgt in zip(SRC, TGT, strict=True)]
    for (src, tgt), ours in zip(pairs, attention_maps(model, pairs, torch.device("cpu")), strict=True):
        _, weights = plain.outputs([*src, EOS_ID], [BOS_ID, *tgt])
        assert ours.shape == (2, 1, 1, len(tgt), len(src) + 1)
        for position, rows in enumerate((weights[:-1], weights[1:])):
            torch.testing.assert_close(torch.from_numpy(ours[position, 0, 0]), rows, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("variant", VARIANTS[:4], ids=str)
def test_weights_of_links_equal_the_equations(variant: dict[str, object]) -> None:
    """Links for guided alignment, in the first sentence and to the only source token of the second."""
    model = double(build(**variant))
    src, tgt = packed(SRC), packed(TGT)
    links = torch.tensor([1, 1]), torch.tensor([0, 2])  # target positions, source tokens
    hidden, log_weights = model.forward_with_log_weights(src, tgt, links)
    torch.testing.assert_close(hidden, model(src, tgt), rtol=1e-11, atol=1e-11)
    _, weights = PlainGru(model).outputs(SRC[0], TGT[0])
    torch.testing.assert_close(log_weights, weights[1, [0, 2]].log(), rtol=1e-11, atol=1e-11)
    only_token = tgt.cu_seqlens[1:2].long() + 1, src.cu_seqlens[1:2].long()
    torch.testing.assert_close(
        model.forward_with_log_weights(src, tgt, only_token)[1], torch.zeros(1, dtype=torch.float64)
    )


@pytest.mark.parametrize("variant", VARIANTS[:3], ids=str)
def test_gradients_equal_finite_differences(variant: dict[str, object]) -> None:
    """Along one random direction of all parameters."""
    model = build(**variant).double().eval()
    tgt = packed(TGT)
    batch = Batch(packed(SRC), tgt, labels=tgt.tokens.flip(0))
    loss_of = TrainingLoss(model, 0.1)
    loss_of(batch)[0].backward()
    torch.manual_seed(5)
    directions = [torch.randn_like(parameter) for parameter in model.parameters()]
    slope = sum(
        float((p.grad * d).sum()) for p, d in zip(model.parameters(), directions, strict=True) if p.grad is not None
    )

    def loss_at(step: float) -> float:
        with torch.no_grad():
            for parameter, direction in zip(model.parameters(), directions, strict=True):
                parameter.add_(direction, alpha=step)
            value = float(loss_of(batch)[0])
            for parameter, direction in zip(model.parameters(), directions, strict=True):
                parameter.sub_(direction, alpha=step)
        return value

    assert (loss_at(1e-6) - loss_at(-1e-6)) / 2e-6 == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize("variant", VARIANTS[:4], ids=str)
def test_recomputed_activations_give_the_same_gradients(variant: dict[str, object]) -> None:
    gradients: list[list[Tensor]] = []
    for recompute in (False, True):
        model = build(**variant).train()
        model.use_activation_checkpointing(recompute)
        tgt = packed(TGT)
        torch.manual_seed(2)
        TrainingLoss(model, 0.1)(Batch(packed(SRC), tgt, labels=tgt.tokens.flip(0)))[0].backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
        assert len(gradients[-1]) == len(list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("variant", VARIANTS[:4], ids=str)
def test_padding_pairs_do_not_change_the_gradient(variant: dict[str, object]) -> None:
    """Pairs of pad tokens, and pairs without tokens."""
    gradients: list[list[Tensor]] = []
    for padding in ([], [2, 1, 0, 0]):
        model = build(**variant).double().eval()
        src, tgt = packed(SRC), packed(TGT)
        labels = torch.cat([tgt.tokens.flip(0), torch.full((sum(padding),), PAD_ID)])
        batch = Batch(src.append_padding(padding), tgt.append_padding(padding), labels, sum(padding))
        TrainingLoss(model, 0.1)(batch)[0].backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    for expected, ours in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS[:3], ids=str)
def test_beam_search_finds_what_enumeration_finds(variant: dict[str, object]) -> None:
    """With a beam at least as large as the number of prefixes, search is exact."""
    model = build(**variant).double().eval()
    longest, tokens = 3, range(EOS_ID + 1, EOS_ID + 4)
    options = SearchOptions(beam_size=64, n_best=5, length_penalty="none", max_tokens=longest, max_extra_tokens=longest)
    allowed = torch.zeros(len(SRC), VOCAB, dtype=torch.bool)
    allowed[:, [EOS_ID, *tokens]] = True
    found = beam_search(restrict(model, allowed), packed(SRC), options)
    plain = PlainGru(model)
    outputs = [one for length in range(longest + 1) for one in itertools.product(tokens, repeat=length)]
    for source, hypotheses in zip(SRC, found, strict=True):
        scores = {}
        for output in outputs:
            logits = plain.logits(source, [BOS_ID, *output])
            logits[:, ~allowed[0]] = -math.inf
            log_probs = logits.log_softmax(-1)
            scores[output] = float(sum(row[token] for row, token in zip(log_probs, (*output, EOS_ID), strict=True)))
        best = sorted(scores, key=lambda output: -scores[output])[:5]
        assert [tuple(hypothesis.tokens) for hypothesis in hypotheses] == best
        assert [hypothesis.log_prob for hypothesis in hypotheses] == pytest.approx([scores[o] for o in best], rel=1e-5)


def test_an_ensemble_with_a_transformer_is_the_mean_of_both() -> None:
    sizes = {"d_model": 16, "d_ff": 24, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1}
    other = Transformer(ModelRecipe.model_validate(sizes), VOCAB, VOCAB).eval()
    members: list[TranslationModel] = [build().eval(), other]
    options = SearchOptions(beam_size=3, length_penalty="none", max_extra_tokens=3)
    found = [best[0] for best in beam_search(Ensemble(members), packed(SRC), options)]
    tgt = [[BOS_ID, *hypothesis.tokens] for hypothesis in found]
    with torch.inference_mode():
        log_probs = [model.log_probs(model(packed(SRC), packed(tgt))) for model in members]
    mean = (log_probs[0].exp() + log_probs[1].exp()) / 2
    rows = mean.log().split(list(map(len, tgt)))
    for hypothesis, row in zip(found, rows, strict=True):
        labels = torch.tensor([*hypothesis.tokens, EOS_ID])
        assert hypothesis.log_prob == pytest.approx(float(row.gather(1, labels[:, None]).sum()), rel=1e-4)


@pytest.mark.parametrize(("kind", "tolerance"), [(PrepackedLinear, 1e-5), (QuantizedLinear, 0.05)])
def test_prepacked_weights_give_the_same_logits_within_rounding(kind: type[PrepackedLinear], tolerance: float) -> None:
    if kind is QuantizedLinear and not supports_int8(torch.device("cpu")):
        pytest.skip("this processor has no AVX-512-VNNI")
    model = build().eval().requires_grad_(False)
    src, tgt = packed(SRC), packed(TGT)
    expected = model.logits(model(src, tgt))
    torch.testing.assert_close(prepack(model, kind).logits(model(src, tgt)), expected, rtol=0.0, atol=tolerance)


@pytest.mark.parametrize("variant", VARIANTS[:4], ids=str)
def test_16_bit_search_and_training_run(variant: dict[str, Any]) -> None:
    src, tgt = packed(SRC), packed(TGT)
    model = build(**variant).train()
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = TrainingLoss(model, 0.1)(Batch(src, tgt, labels=tgt.tokens.flip(0)))
    loss.backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())
    exact = build(**variant).eval()
    rounded = build(**variant).eval().to(torch.bfloat16)
    with torch.inference_mode():
        start = torch.full((len(SRC), 1), BOS_ID)
        expected, ours = (one.step(start, one.start(src, 1)) for one in (exact, rounded))
        (weights,) = rounded.cross_attention(src, tgt)
    torch.testing.assert_close(ours, expected, rtol=0.0, atol=0.1)
    assert weights.dtype == torch.float32


def test_time_major_rows_are_ordered_by_position_then_length() -> None:
    rows = TimeMajor.of(packed([[1, 2], [], [3, 4, 5], [6]]))
    assert rows.batch_sizes.tolist() == [3, 2, 1]
    assert rows.sentences.tolist() == [2, 0, 3]
    tokens = torch.tensor([1, 2, 3, 4, 5, 6])[:, None]
    assert rows.from_packed(tokens)[:, 0].tolist() == [3, 1, 6, 4, 2, 5]
    assert torch.equal(rows.to_packed(rows.from_packed(tokens)), tokens)


@pytest.mark.parametrize("input_feeding", [False, True])
def test_layers_bypass_autocast_that_would_run_them_in_fp16(
    monkeypatch: pytest.MonkeyPatch, input_feeding: bool
) -> None:
    monkeypatch.setattr(layers, "_FP16_AUTOCAST", ("cpu",))
    model = build(input_feeding=input_feeding).eval()
    dtypes: set[torch.dtype] = set()
    for module in model.modules():
        if isinstance(module, torch.nn.GRU):
            module.register_forward_hook(lambda _, inputs, outputs: dtypes.add(outputs[1].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model(packed(SRC), packed(TGT))
    assert dtypes == {torch.float32}
    torch.testing.assert_close(hidden.float(), model(packed(SRC), packed(TGT)), atol=0.05, rtol=0.05)
    dtypes.clear()
    with torch.autocast("cpu", torch.float16):  # training in fp16 scales the loss
        model(packed(SRC), packed(TGT))
    assert torch.float16 in dtypes
