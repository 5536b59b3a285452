"""What heads attend to: weights against the model's own output, and measures of hand-made attention."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from nmt.heads import behavior
from nmt.heads.behavior import Behavior, measure_behavior
from nmt.heads.masks import AttentionId, Head, all_heads, attentions
from nmt.heads.pairs import Pairs
from nmt.heads.weights import Reader, reading_weights
from nmt.model.multi_head import CrossAttention, SelfAttention
from nmt.model.relative import RelativePositions
from nmt.model.transformer import Transformer
from nmt.packing.packed import PackedSequences
from tests.heads.test_importance import CPU, PAIRS, POSITIONS, random_model

ENCODER, DECODER, CROSS = AttentionId("encoder", 0), AttentionId("decoder", 0), AttentionId("cross", 0)


@pytest.mark.parametrize("positions", POSITIONS)
def test_the_weights_explain_the_output_of_every_attention_layer(positions: str) -> None:
    """Weights times values, without the padding, are what W_O receives."""
    model = random_model(positions=positions)
    batch = PAIRS.batches(CPU)[0][1]
    inputs: dict[AttentionId, tuple[Any, ...]] = {}
    heads: dict[AttentionId, Tensor] = {}
    found: dict[AttentionId, tuple[Tensor, PackedSequences, PackedSequences]] = {}
    for key, attention in attentions(model).items():
        attention.register_forward_pre_hook(lambda _, args, key=key: inputs.update({key: args}))
        attention.out.register_forward_pre_hook(lambda _, args, key=key: heads.update({key: args[0]}))
    with torch.no_grad(), reading_weights(model, lambda key, *one: found.update({key: one})):
        model(batch.src, batch.tgt)
    assert found.keys() == attentions(model).keys()
    for key, (weights, queries, keys) in found.items():
        values = values_of(attentions(model)[key], inputs[key]).split(keys.lengths.tolist())
        outputs = heads[key].split(queries.lengths.tolist())
        for sentence, (value, output) in enumerate(zip(values, outputs, strict=True)):
            own = weights[sentence, :, : len(output), : len(value)].double()
            torch.testing.assert_close(own.sum(dim=-1), torch.ones_like(own[..., 0]), atol=1e-6, rtol=0)
            result = torch.einsum("hqk,khd->qhd", own, value)
            relative = getattr(attentions(model)[key], "relative", None)
            if isinstance(relative, RelativePositions):
                position = torch.arange(len(value))
                result = result + torch.einsum("hqk,qkd->qhd", own, relative.vectors(position - position[:, None])[1])
            torch.testing.assert_close(result.flatten(1), output, atol=1e-6, rtol=1e-5)


def values_of(attention: SelfAttention | CrossAttention, inputs: tuple[Any, ...]) -> Tensor:
    """The values of all keys, (total, num_heads, d_head)."""
    if isinstance(attention, CrossAttention):
        return attention.split_heads(attention.kv(inputs[1]), 2)[:, 1]
    return attention.split_heads(attention.qkv(inputs[0]), 3)[:, 2]


def measure(
    monkeypatch: pytest.MonkeyPatch, pairs: Pairs, choose: dict[AttentionId, Any], model: Transformer | None = None
) -> dict[Head, Behavior]:
    """Behavior of heads that attend from each query equally to the keys `choose[attention](query, number of keys)`."""

    @contextmanager
    def hand_made(_: Transformer, read: Reader) -> Iterator[None]:
        batches = (batch for _, batch in pairs.batches(CPU))

        def read_hand_made(*_: object) -> None:
            batch = next(batches)
            for key, chosen in choose.items():
                queries = batch.src if key.kind == "encoder" else batch.tgt
                keys = batch.tgt if key.kind == "decoder" else batch.src
                weights = torch.zeros(queries.num_sentences, 1, queries.max_length, keys.max_length)
                lengths = zip(queries.lengths.tolist(), keys.lengths.tolist(), strict=True)
                for sentence, (num_queries, num_keys) in enumerate(lengths):
                    for query in range(num_queries):
                        chosen_keys = chosen(query, num_keys)
                        weights[sentence, 0, query, chosen_keys] = 1 / len(chosen_keys)
                read(key, weights, queries, keys)

        hook = network.register_forward_pre_hook(read_hand_made)
        yield
        hook.remove()

    network = model or random_model()
    monkeypatch.setattr(behavior, "reading_weights", hand_made)
    return measure_behavior(network, pairs, CPU)


TEXT = Pairs(sources=[[5, 6, 7, 8], [5, 6, 9]], targets=[[5, 6, 7, 8], [5, 6, 9]])


def test_attention_to_the_previous_token_is_recognized(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = {key: lambda query, _: [max(query - 1, 0)] for key in (ENCODER, DECODER)}
    found = measure(monkeypatch, TEXT, choose)
    for key in (ENCODER, DECODER):
        # The first of 5 and of 4 source tokens attends to itself. In the decoder, BOS is not counted.
        head, same = found[Head(key, 0)], 2 / 9 if key == ENCODER else 0.0
        assert (head.previous, head.entropy) == (1.0, 0.0)
        assert head.same == pytest.approx(same)
        assert head.role == "previous token"
    assert found[Head(ENCODER, 0)].next == 0.0
    assert found[Head(DECODER, 0)].next is None
    assert found[Head(ENCODER, 0)].distance == pytest.approx(7 / 9)
    assert found[Head(DECODER, 0)].boundary == pytest.approx(2 / 7)  # BOS, from the first tokens


def test_attention_to_the_next_token_and_to_the_boundary_is_recognized(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measure(monkeypatch, TEXT, {ENCODER: lambda query, keys: [min(query + 1, keys - 1)]})[Head(ENCODER, 0)]
    assert (found.next, found.previous, found.role) == (1.0, 0.0, "next token")
    found = measure(monkeypatch, TEXT, {CROSS: lambda _, keys: [keys - 1]})[Head(CROSS, 0)]
    assert (found.boundary, found.rare, found.distance, found.role) == (1.0, 0.0, None, "boundary")
    found = measure(monkeypatch, TEXT, {DECODER: lambda *_: [0]})[Head(DECODER, 0)]
    assert (found.boundary, found.role) == (1.0, "boundary")
    found = measure(monkeypatch, TEXT, {CROSS: lambda _, keys: [0, keys - 1]})[Head(CROSS, 0)]
    assert (found.boundary, found.role) == (0.5, "boundary")


def test_uniform_attention_has_the_entropy_of_the_uniform_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measure(monkeypatch, TEXT, {ENCODER: lambda _, keys: list(range(keys))})[Head(ENCODER, 0)]
    assert found.entropy == pytest.approx((5 * math.log(5) + 4 * math.log(4)) / 9)
    assert found.boundary == pytest.approx((5 * 0.2 + 4 * 0.25) / 9)


def test_attention_to_rare_tokens_is_recognized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens 7, 8 and 9 occur once, 5 and 6 twice; before a rare token, the decoder sees only 5 and 6."""
    found = measure(monkeypatch, TEXT, {ENCODER: lambda *_: [2], DECODER: lambda query, _: [min(query, 3)]})
    assert (found[Head(ENCODER, 0)].rare, found[Head(ENCODER, 0)].role) == (1.0, "rare tokens")
    assert found[Head(DECODER, 0)].rare == 1.0


def test_the_rarest_token_occurs_least_in_its_side_of_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the sources, token 6 occurs three times, but in one sentence; 5 occurs twice. An empty source has no token."""
    text = Pairs(sources=[[6, 6, 6, 5], [5], []], targets=[[5, 5, 5, 6], [6], [5]])
    last, first = (lambda _, keys: [max(keys - 2, 0)]), (lambda *_: [0])
    found = measure(monkeypatch, text, {ENCODER: last, CROSS: last})
    assert (found[Head(ENCODER, 0)].rare, found[Head(CROSS, 0)].rare) == (1.0, 1.0)
    assert measure(monkeypatch, text, {ENCODER: first})[Head(ENCODER, 0)].rare == pytest.approx(2 / 7)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("at", ["output", "input"])
def test_attention_to_translations_agrees_with_the_statistical_aligner(
    monkeypatch: pytest.MonkeyPatch, reverse: bool, at: str
) -> None:
    """The id of a target token is that of its source token plus 5, in the same order.

    A tag precedes the source. It gets as much attention as the word, but does not count. An empty source has no link.
    """
    sentences = [[5, 6, 7], [7, 5, 6], [6, 7, 5], [5, 7], [6, 5], []]
    targets = [[token + 5 for token in sentence] or [10] for sentence in sentences]
    pairs = Pairs([[4, *one] for one in sentences], [one[::-1] for one in targets] if reverse else targets, 1, reverse)

    def choose(query: int, keys: int) -> list[int]:
        words, target = keys - 2, query if at == "output" else query - 1
        return [0, 1 + (words - 1 - target if reverse else target)] if 0 <= target < words else [keys - 1]

    found = measure(monkeypatch, pairs, {CROSS: choose})[Head(CROSS, 0)]
    assert (found.alignment, found.at, found.role) == (1.0, at, "alignment")


def test_every_head_of_a_model_is_measured() -> None:
    model = random_model().float()
    found = measure_behavior(model, PAIRS, CPU)
    assert found.keys() == set(all_heads(model))
    for head, one in found.items():
        assert (one.alignment is None) == (head.attention.kind != "cross")
        assert (one.distance is None) == (head.attention.kind == "cross")
        assert one.entropy is not None and one.entropy > 0
