"""The whole model, compared with torch.nn.Transformer, with single sentences, and by its gradients."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.kv_cache.state import DecoderState
from nmt.model import attention, dropout, relative
from nmt.model.layers import sinusoids
from nmt.model.multi_head import CrossAttention, SelfAttention
from nmt.model.transformer import Transformer
from nmt.packing.packed import PackedSequences
from nmt.packing.padding import padded_width
from nmt.recipe import ModelRecipe
from nmt.special_ids import BOS_ID

VOCAB = 29


def tiny(**changes: object) -> ModelRecipe:
    sizes = {
        "d_model": 16,
        "d_ff": 24,
        "num_heads": 4,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "dropout": 0.0,
    }
    return ModelRecipe.model_validate(sizes | {"max_positions": 40} | changes)


def double_model(recipe: ModelRecipe, seed: int = 0) -> Transformer:
    torch.manual_seed(seed)
    model = Transformer(recipe, VOCAB, VOCAB).double()
    for parameter in model.parameters():  # biases and norms differ from 0 and 1
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    return model


def random_sentences(lengths: list[int], seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(4, VOCAB, (length,), generator=generator).tolist() for length in lengths]


SRC = random_sentences([5, 1, 9, 3], seed=1)
TGT = [[BOS_ID, *rest] for rest in random_sentences([3, 6, 0, 8], seed=2)]


# --- An independent reference: torch.nn.Transformer with the same weights, padded, with masks -----------------------


def copy_attention(source: SelfAttention | CrossAttention, target: nn.MultiheadAttention) -> None:
    projections = [source.qkv] if isinstance(source, SelfAttention) else [source.q, source.kv]
    target.in_proj_weight.data = torch.cat([projection.weight for projection in projections]).detach().clone()
    target.in_proj_bias.data = torch.cat([projection.bias for projection in projections]).detach().clone()
    target.out_proj.weight.data = source.out.weight.detach().clone()
    target.out_proj.bias.data = source.out.bias.detach().clone()


def torch_reference(model: Transformer) -> nn.Transformer:
    recipe = model.recipe
    pre = recipe.norm_order == "pre"
    options: dict[str, Any] = {
        "activation": recipe.activation,
        "batch_first": True,
        "norm_first": pre,
        "dtype": torch.float64,
    }
    sizes = (recipe.d_model, recipe.num_heads, recipe.d_ff, 0.0)

    def final() -> nn.LayerNorm | None:
        return nn.LayerNorm(recipe.d_model, dtype=torch.float64) if pre else None

    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(*sizes, **options), recipe.num_encoder_layers, final(), enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(*sizes, **options), recipe.num_decoder_layers, final())
    reference = nn.Transformer(  # before copying the weights: the constructor reinitializes them
        recipe.d_model, recipe.num_heads, custom_encoder=encoder, custom_decoder=decoder, batch_first=True
    )
    pairs: list[tuple[nn.Module, Any]] = []
    for layer, theirs in zip(model.encoder.layers, encoder.layers, strict=True):
        copy_attention(layer.attention, theirs.self_attn)
        pairs += [(layer.feed_forward.inner, theirs.linear1), (layer.feed_forward.outer, theirs.linear2)]
        pairs += [(layer.attention_residual.norm, theirs.norm1), (layer.feed_forward_residual.norm, theirs.norm2)]
    for ours, theirs in zip(model.decoder.layers, decoder.layers, strict=True):
        copy_attention(ours.attention, theirs.self_attn)
        copy_attention(ours.cross_attention, theirs.multihead_attn)
        pairs += [(ours.feed_forward.inner, theirs.linear1), (ours.feed_forward.outer, theirs.linear2)]
        pairs += [(ours.attention_residual.norm, theirs.norm1), (ours.cross_attention_residual.norm, theirs.norm2)]
        pairs += [(ours.feed_forward_residual.norm, theirs.norm3)]
    if pre:
        pairs += [(model.encoder.norm, encoder.norm), (model.decoder.norm, decoder.norm)]
    for own, other in pairs:
        other.load_state_dict(own.state_dict())
    return reference


def reference_logits(model: Transformer, reference: nn.Transformer, weight: Tensor) -> list[Tensor]:
    def padded(sentences: list[list[int]]) -> tuple[Tensor, Tensor]:
        tokens = nn.utils.rnn.pad_sequence([torch.tensor(s) for s in sentences], batch_first=True)
        lengths = torch.tensor([len(s) for s in sentences])
        return tokens, torch.arange(tokens.shape[1]) >= lengths[:, None]

    def embed(tokens: Tensor) -> Tensor:
        d_model = model.recipe.d_model
        return F.embedding(tokens, weight) * math.sqrt(d_model) + sinusoids(tokens.shape[1], d_model).double()

    (src, src_padding), (tgt, tgt_padding) = padded(SRC), padded(TGT)
    causal = torch.ones(tgt.shape[1], tgt.shape[1]).triu(1).bool()
    out = reference(
        embed(src),
        embed(tgt),
        tgt_mask=causal,
        src_key_padding_mask=src_padding,
        memory_key_padding_mask=src_padding,
        tgt_key_padding_mask=tgt_padding,
    )
    return [F.linear(row[: len(sentence)], weight) for row, sentence in zip(out, TGT, strict=True)]


@pytest.mark.parametrize("norm_order", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_outputs_and_gradients_equal_torch_nn_transformer(norm_order: str, activation: str) -> None:
    model = double_model(tiny(norm_order=norm_order, activation=activation))
    reference = torch_reference(model)
    weight = model.output.weight.detach().clone().requires_grad_(True)

    ours = model.logits(model(PackedSequences.from_lists(SRC), PackedSequences.from_lists(TGT)))
    theirs = torch.cat(reference_logits(model, reference, weight))
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)

    direction = torch.randn_like(ours)
    (ours * direction).sum().backward()
    (theirs * direction).sum().backward()
    torch.testing.assert_close(model.output.weight.grad, weight.grad, rtol=1e-10, atol=1e-10)
    for mine, other in zip(model.decoder.layers, reference.decoder.layers, strict=True):
        torch.testing.assert_close(
            mine.feed_forward.inner.weight.grad, other.linear1.weight.grad, rtol=1e-9, atol=1e-10
        )
        q, kv = mine.cross_attention.q.weight.grad, mine.cross_attention.kv.weight.grad
        assert q is not None and kv is not None
        grads = torch.cat([q, kv])
        torch.testing.assert_close(grads, other.multihead_attn.in_proj_weight.grad, rtol=1e-9, atol=1e-10)
    for layer, other in zip(model.encoder.layers, reference.encoder.layers, strict=True):
        torch.testing.assert_close(
            layer.attention.qkv.bias.grad, other.self_attn.in_proj_bias.grad, rtol=1e-9, atol=1e-10
        )
        torch.testing.assert_close(
            layer.attention_residual.norm.weight.grad, other.norm1.weight.grad, rtol=1e-9, atol=1e-10
        )


# --- Packed rows, masks, search ---------------------------------------------------------------------------------------


def test_packed_sentences_equal_single_sentences() -> None:
    model = double_model(tiny())
    together = model(PackedSequences.from_lists(SRC), PackedSequences.from_lists(TGT))
    alone = [
        model(PackedSequences.from_lists([s]), PackedSequences.from_lists([t])) for s, t in zip(SRC, TGT, strict=True)
    ]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-12, atol=1e-12)


def test_gradients_respect_causality_and_sentence_boundaries() -> None:
    model = double_model(tiny())
    src, tgt = PackedSequences.from_lists(SRC), PackedSequences.from_lists(TGT)
    src_rows = model.src_embedding(src.tokens, src.positions).detach().requires_grad_(True)
    tgt_rows = model.tgt_embedding(tgt.tokens, tgt.positions).detach().requires_grad_(True)
    out = model.decoder(tgt_rows, model.encoder(src_rows, src), tgt, src)
    src_of = torch.repeat_interleave(torch.arange(4), src.lengths)
    tgt_of = torch.repeat_interleave(torch.arange(4), tgt.lengths)
    for row in range(tgt.total):
        by_src, by_tgt = torch.autograd.grad(out[row].sin().sum(), (src_rows, tgt_rows), retain_graph=True)
        same_sentence = tgt_of == tgt_of[row]
        visible = same_sentence & (tgt.positions <= tgt.positions[row])
        assert torch.equal(by_tgt.abs().sum(1) > 0, visible)
        assert torch.equal(by_src.abs().sum(1) > 0, src_of == tgt_of[row])


@pytest.mark.parametrize("norm_order", ["post", "pre"])
def test_incremental_decoding_equals_full_forward(norm_order: str) -> None:
    model = double_model(tiny(norm_order=norm_order)).eval()
    src = PackedSequences.from_lists(SRC)
    steps, beam = 20, 7  # more slots than the initial cache and mask
    tokens = torch.randint(4, VOCAB, (len(SRC), beam, steps), generator=torch.Generator().manual_seed(5))
    tokens[..., 0] = BOS_ID
    state = model.start(src, beam)
    incremental = torch.stack([model.step(tokens[..., t], state) for t in range(steps)], dim=2)
    for hypothesis in range(beam):
        tgt = PackedSequences.from_lists(tokens[:, hypothesis].tolist())
        full = torch.log_softmax(model.logits(model(src, tgt)), dim=-1).unflatten(0, (len(SRC), steps))
        torch.testing.assert_close(incremental[:, hypothesis], full, rtol=1e-11, atol=1e-11)


@pytest.mark.slow
def test_steps_after_reordering_and_selecting_equal_full_forward() -> None:
    selected = {1: [2, 0], 40: [1]}  # sentences that stay after a step
    model = double_model(tiny(max_positions=60)).eval()
    generator = torch.Generator().manual_seed(7)
    beam, live = 3, [0, 1, 2, 3]
    histories = torch.full((4, beam, 1), BOS_ID)
    state = model.start(PackedSequences.from_lists(SRC), beam)
    for step in range(50):  # more slots than the cache has when sentences are removed
        got = model.step(histories[..., -1], state)
        sources = PackedSequences.from_lists([SRC[b] for b in live for _ in range(beam)])
        full = model(sources, PackedSequences.from_lists(histories.flatten(0, 1).tolist()))
        expected = torch.log_softmax(model.logits(full), -1).unflatten(0, (len(live), beam, -1))[:, :, -1]
        torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-11)
        beam_index = torch.randint(0, beam, (len(live), beam), generator=generator)
        state.reorder(beam_index)
        histories = histories.gather(1, beam_index[..., None].expand_as(histories))
        if step in selected:
            state.select(torch.tensor(selected[step]))
            histories, live = histories[selected[step]], [live[i] for i in selected[step]]
        new = torch.randint(4, VOCAB, (len(live), beam, 1), generator=generator)
        histories = torch.cat([histories, new], dim=2)


def state_after(model: Transformer, sentences: list[int], steps: int, beam: int = 5) -> DecoderState:
    """Return the state after steps with random tokens and beam indices, which depend on the sentence alone."""
    generators = [torch.Generator().manual_seed(sentence) for sentence in sentences]
    state = model.start(PackedSequences.from_lists([SRC[sentence] for sentence in sentences]), beam)
    tokens = torch.full((len(sentences), beam), BOS_ID)
    for _ in range(steps):
        model.step(tokens, state)
        state.reorder(torch.stack([torch.randint(beam, (beam,), generator=g) for g in generators]))
        tokens = torch.stack([torch.randint(4, VOCAB, (beam,), generator=g) for g in generators])
    return state


def test_slots_of_pruned_hypotheses_are_removed() -> None:
    steps, beam = 64, 5
    state = state_after(double_model(tiny(max_positions=80)).eval(), [0, 1, 2], steps)
    slots_without_pruning = 1 + (steps - 1) * beam
    assert state.slots.width < 0.6 * slots_without_pruning
    assert state.layers[0].cache.stored.shape[3] == padded_width(state.slots.width)


@pytest.mark.slow
def test_slots_of_a_sentence_do_not_depend_on_the_batch() -> None:
    """The order in which attention sums the slots does not depend on the batch either."""
    model = double_model(tiny(max_positions=80)).eval()
    together = state_after(model, [0, 1, 2, 3], steps=40)
    for sentence in range(4):
        alone = state_after(model, [sentence], steps=40)
        width = alone.slots.width
        is_used = (together.mask == 0)[sentence]
        assert torch.equal(is_used[..., :width], (alone.mask == 0)[0, ..., :width])
        assert not is_used[..., width:].any()
        for both in zip(together.layers, alone.layers, strict=True):
            kept, expected = (layer.cache.stored[..., :width, :] for layer in both)
            torch.testing.assert_close(kept[:, sentence], expected[:, 0])


# --- Dropout ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("positions", ["sinusoidal", "relative"])
@pytest.mark.parametrize(
    ("option", "count"),
    [
        ("dropout", 2 + 2 * 2 + 3 * 2),  # embeddings; sublayers of the encoder and of the decoder (paper, section 5.4)
        ("attention_dropout", 2 + 2 * 2),
        ("activation_dropout", 2 + 2),
        ("word_dropout", 2),
    ],
)
def test_each_dropout_option_applies_to_its_layers(
    option: str, count: int, positions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied: list[float] = []

    def record(x: Tensor, p: float) -> Tensor:
        if p:
            applied.append(p)
        return x

    for module in (attention, dropout, relative):
        monkeypatch.setattr(module, "dropout", record)
    model = double_model(tiny(positions=positions, **{option: 0.25}))
    for training, expected in ((True, [0.25] * count), (False, [])):
        applied.clear()
        model.train(training)(PackedSequences.from_lists(SRC), PackedSequences.from_lists(TGT))
        assert applied == expected


def test_word_dropout_omits_embeddings_but_not_positions() -> None:
    embedding = double_model(tiny(word_dropout=0.25)).train().src_embedding
    assert isinstance(embedding.positions, Tensor)
    torch.manual_seed(1)
    tokens, positions = torch.full((2_000,), 5), torch.arange(2_000) % 8
    vectors = embedding(tokens, positions) - F.embedding(positions, embedding.positions)
    expected = embedding.weight[5] * embedding.scale / 0.75
    is_omitted = (vectors == 0).all(dim=1)
    assert is_omitted.double().mean().item() == pytest.approx(0.25, abs=0.04)
    torch.testing.assert_close(vectors[~is_omitted], expected.expand(int((~is_omitted).sum()), -1))


# --- Size and initialization -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "millions"),
    [(ModelRecipe(), 63.1), (ModelRecipe(d_model=1024, d_ff=4096, num_heads=16), 214.2)],
    ids=["base (the paper says 65 M)", "big (the paper says 213 M)"],
)
def test_parameter_counts_with_the_vocabulary_of_the_paper(recipe: ModelRecipe, millions: float) -> None:
    with torch.device("meta"):
        model = Transformer(recipe, 37_000, 37_000)
    d, f, layers = recipe.d_model, recipe.d_ff, 6
    attention, feed_forward, norm = 4 * (d * d + d), 2 * d * f + f + d, 2 * d
    encoder_layer, decoder_layer = attention + feed_forward + 2 * norm, 2 * attention + feed_forward + 3 * norm
    expected = 37_000 * d + layers * (encoder_layer + decoder_layer)
    assert model.num_parameters() == expected
    assert round(expected / 1e6, 1) == millions


@pytest.mark.parametrize(("tying", "matrices"), [("three-way", 1), ("decoder", 2), ("none", 3)])
def test_tying_shares_matrices(tying: str, matrices: int) -> None:
    model = Transformer(tiny(tied_embeddings=tying), VOCAB, VOCAB)
    weights = (model.src_embedding.weight, model.tgt_embedding.weight, model.output.weight)
    assert len(set(map(id, weights))) == matrices


def test_three_way_tying_needs_equal_vocabularies() -> None:
    with pytest.raises(ValueError, match="one vocabulary"):
        Transformer(tiny(), VOCAB, VOCAB + 1)
    assert Transformer(tiny(tied_embeddings="decoder"), VOCAB, VOCAB + 1).output.weight.shape[0] == VOCAB + 1


def test_initial_matrices_are_half_of_xavier_uniform() -> None:
    torch.manual_seed(3)
    model = Transformer(tiny(d_model=256, num_heads=4), 1000, 1000).eval()
    scaled = model.src_embedding.weight * model.src_embedding.scale
    assert scaled.std().item() == pytest.approx(0.5, rel=0.02)
    for weight, xavier in (
        (model.encoder.layers[0].feed_forward.inner.weight, math.sqrt(2 / (256 + 24))),
        (model.encoder.layers[0].attention.qkv.weight[:256], math.sqrt(2 / (256 + 256))),
        (model.decoder.layers[0].cross_attention.kv.weight[:256], math.sqrt(2 / (256 + 256))),
    ):
        assert weight.abs().max().item() <= math.sqrt(3) * xavier / 2
        assert weight.std().item() == pytest.approx(xavier / 2, rel=0.05)


def test_initial_biases_are_zero_and_positions_are_random() -> None:
    torch.manual_seed(3)
    learned = Transformer(tiny(d_model=64, positions="learned", max_positions=500, output_bias=True), 9, 9)
    biases = [weight for name, weight in learned.named_parameters() if name.endswith("bias") and "norm" not in name]
    assert len(biases) == 2 * 4 + 2 * 7 + 1 and not any(bias.any() for bias in biases)
    for embedding in (learned.src_embedding, learned.tgt_embedding):
        assert embedding.positions is not None
        assert embedding.positions.std().item() == pytest.approx(1 / 8, rel=0.03)
    relative_positions = Transformer(tiny(positions="relative", max_distance=100, d_head=50), 9, 9)
    found = relative_positions.decoder.layers[1].attention.relative
    assert found is not None
    bound = math.sqrt(6 / (201 + 50))  # Xavier uniform
    assert all(0.99 * bound < part.abs().max() <= bound for part in (found.keys, found.values))


def test_output_bias_in_training_and_search() -> None:
    plain, biased = double_model(tiny()), double_model(tiny(output_bias=True))
    biased.load_state_dict(plain.state_dict(), strict=False)
    assert biased.output.bias is not None
    src, tgt = PackedSequences.from_lists(SRC), PackedSequences.from_lists(TGT)
    expected = plain.logits(plain(src, tgt)) + biased.output.bias
    torch.testing.assert_close(biased.logits(biased(src, tgt)), expected, rtol=1e-12, atol=1e-12)
    some = torch.tensor([7, 3])
    torch.testing.assert_close(biased.logits_of(some)(biased(src, tgt)), expected[:, some], rtol=1e-12, atol=1e-12)
    first = biased.step(torch.full((len(SRC), 1), BOS_ID), biased.start(src, beam_size=1))
    starts = expected[tgt.cu_seqlens[:-1].long()].log_softmax(dim=-1)
    torch.testing.assert_close(first.squeeze(1), starts, rtol=1e-11, atol=1e-11)
