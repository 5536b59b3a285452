"""Search with few batch sizes, compared with the model that it wraps."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nmt.inference.padded import PaddedModel, padded_size
from nmt.models import TranslationModel, build_model
from nmt.packing.packed import PackedSequences
from nmt.recipe import ModelRecipe
from nmt.special_ids import BOS_ID, EOS_ID

VOCAB = 19
SIZES = {"d_model": 8, "num_encoder_layers": 1, "num_decoder_layers": 2, "dropout": 0.0}
TRANSFORMER: dict[str, object] = {"d_ff": 12, "num_heads": 2}


def make_model(**options: object) -> TranslationModel:
    torch.manual_seed(0)
    return build_model(ModelRecipe.model_validate(SIZES | options), VOCAB, VOCAB).double().eval().requires_grad_(False)


def random_sources(rng: random.Random, count: int) -> PackedSequences:
    return PackedSequences.from_lists(
        [[*rng.choices(range(4, VOCAB), k=rng.randint(0, 9)), EOS_ID] for _ in range(count)]
    )


def random_integers(rng: random.Random, rows: int, beam: int, values: range) -> Tensor:
    return torch.tensor([rng.choices(values, k=beam) for _ in range(rows)])


def test_there_are_few_sizes() -> None:
    sizes = [padded_size(count) for count in range(1, 129)]
    assert sizes[:8] == list(range(1, 9))
    assert all(count <= size <= 1.25 * count for count, size in enumerate(sizes, 1))
    assert len(set(sizes)) == 4 + 4 * 5  # 1 to 4, and four up to each of 8, 16, 32, 64 and 128
    assert [padded_size(size) for size in sizes] == sizes


@pytest.mark.slow
@pytest.mark.parametrize("options", [TRANSFORMER, {"architecture": "gru"}], ids=["Transformer", "GRU"])
@settings(max_examples=8)
@given(seed=st.integers(0, 10**6), sentences=st.integers(1, 40), beam=st.integers(1, 4))
def test_steps_equal_those_of_the_model(options: dict[str, object], seed: int, sentences: int, beam: int) -> None:
    rng, model = random.Random(seed), make_model(**options)
    padded, src = PaddedModel(model), random_sources(rng, sentences)
    expected_state, state = model.start(src, beam), padded.start(src, beam)
    tokens, left = torch.full((sentences, beam), BOS_ID), sentences
    for _ in range(20):
        expected, found = model.step(tokens, expected_state), padded.step(tokens, state)
        torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-6)
        if left > 1 and rng.random() < 0.5:
            kept = rng.sample(range(left), k=rng.randint(max(1, left - 3), left))
            left = len(kept)
            expected_state.select(torch.tensor(kept))
            state.select(torch.tensor(kept))
        beam_index = random_integers(rng, left, beam, range(beam))
        expected_state.reorder(beam_index)
        state.reorder(beam_index)
        tokens = random_integers(rng, left, beam, range(4, VOCAB))


def test_a_shrinking_batch_has_few_sizes() -> None:
    rng, model = random.Random(1), make_model(**TRANSFORMER)
    state = PaddedModel(model).start(random_sources(rng, 64), 2)
    sizes = set()
    for left in range(64, 0, -1):
        state.select(torch.arange(left))
        sizes.add(len(state.order))
    assert len(sizes) == 4 + 4 * 4  # 1 to 4, and four up to each of 8, 16, 32 and 64


def test_caches_of_idle_rows_stay_small() -> None:
    rng, model, beam = random.Random(2), make_model(**TRANSFORMER, max_positions=80), 5
    padded = PaddedModel(model)
    state = padded.start(random_sources(rng, 16), beam)
    state.select(torch.arange(13))
    assert len(state.order) == 14
    steps = 64
    for _ in range(steps):
        padded.step(random_integers(rng, 13, beam, range(4, VOCAB)), state)
        state.reorder(torch.zeros(13, beam, dtype=torch.int64))
    # Hypotheses that continue the first one share a slot per step. Without compaction, the width is steps * beam.
    assert state.inner.slots.width < steps + 16 * beam + beam
