"""Shallow fusion against enumeration of all outputs, and with continuous batching."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.packing.packed import PackedSequences
from nmt.recipe import DecodeRecipe
from nmt.recipe.decoding import LengthPenalty
from nmt.search.beam_search import beam_search
from nmt.search.fusion import Fusion
from nmt.search.options import SearchOptions
from nmt.search.sampling import sample
from nmt.special_ids import EOS_ID
from tests.search.test_bias import weights_table
from tests.search.test_continuous_batching import RefillableTableModel
from tests.search.test_search import (
    NEG_INF,
    Prefix,
    Table,
    TableModel,
    all_outputs,
    alphas,
    assert_same,
    penalties,
    random_table,
    source_of,
)

LM_SOURCE = (5, EOS_ID)


def fused_table(table: Table, language_model: Table, weight: float) -> Table:
    """log p(token | source, prefix) + weight * log p_lm(token | prefix); impossible if either is."""

    def log_probs(source: Prefix, prefix: Prefix) -> list[float]:
        both = zip(table(source, prefix), language_model(LM_SOURCE, prefix), strict=True)
        return [NEG_INF if NEG_INF in pair else pair[0] + weight * pair[1] for pair in both]

    return log_probs


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    words=st.integers(1, 3),
    lengths=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    n_best=st.integers(1, 5),
    penalty=penalties,
    alpha=alphas,
    zeros=st.sampled_from((0.0, 0.3)),
    weight=st.sampled_from((0.1, 0.5, 2.0)),
)
def test_fusion_finds_the_best_of_all_outputs(
    seed: int,
    words: int,
    lengths: list[int],
    n_best: int,
    penalty: LengthPenalty,
    alpha: float,
    zeros: float,
    weight: float,
) -> None:
    table, language_model = random_table(seed, words, zeros), random_table(seed + 1, words, zeros)
    fused = fused_table(table, language_model, weight)
    options = SearchOptions(max(5, words**4), n_best, penalty, alpha, max_extra_tokens=1)
    sources = [source_of(length, name) for name, length in enumerate(lengths)]
    model = Fusion(TableModel(table), TableModel(language_model), weight, LM_SOURCE)
    found = beam_search(model, PackedSequences.from_lists(sources), options)
    for source, own in zip(sources, found, strict=True):
        assert_same(own, all_outputs(fused, source, options)[:n_best], fused, source)


def test_the_language_model_changes_the_best_output() -> None:
    """The model prefers token 4, the language model token 5: 0.6 * 0.2^2 < 0.4 * 0.8^2."""
    model = TableModel(weights_table({(): {4: 0.6, 5: 0.4}}, {EOS_ID: 1.0}))
    language_model = TableModel(weights_table({(): {4: 0.2, 5: 0.8}}, {EOS_ID: 1.0}))
    src = PackedSequences.from_lists([(7, EOS_ID)])
    [[alone]] = beam_search(model, src, SearchOptions())
    assert alone.tokens == [4]
    assert alone.log_prob == pytest.approx(math.log(0.6), rel=1e-5)
    [[fused]] = beam_search(Fusion(model, language_model, 2.0, LM_SOURCE), src, SearchOptions())
    assert fused.tokens == [5]
    assert fused.log_prob == pytest.approx(math.log(0.4) + 2 * math.log(0.8), rel=1e-5)


def test_fusion_with_continuous_batching_gives_the_same_outputs() -> None:
    table, language_model = random_table(1, 5), random_table(2, 5)
    src = PackedSequences.from_lists([source_of(length, name) for name, length in enumerate((4, 2, 3, 1, 4, 0, 2))])
    options = SearchOptions(beam_size=3, n_best=2, max_extra_tokens=2)
    models = RefillableTableModel(table), RefillableTableModel(language_model)
    together = beam_search(Fusion(*models, 0.3, LM_SOURCE), src, options, batch_size=3)
    alone = beam_search(Fusion(TableModel(table), TableModel(language_model), 0.3, LM_SOURCE), src, options)
    assert len(models[0].encoded) > 1
    assert models[1].encoded == [[len(LM_SOURCE)] * len(sizes) for sizes in models[0].encoded]
    assert together == alone


def test_samples_have_the_sum_of_the_log_probabilities() -> None:
    table, language_model = random_table(3, 4), random_table(4, 4)
    fused = fused_table(table, language_model, 0.7)
    source = source_of(3, 0)
    options = SearchOptions(beam_size=5, n_best=5, max_extra_tokens=2)
    model = Fusion(TableModel(table), TableModel(language_model), 0.7, LM_SOURCE)
    (samples,) = sample(model, PackedSequences.from_lists([source]), options, DecodeRecipe(sampling=True))
    for one in samples:
        steps = [fused(source, tuple(one.tokens[:i]))[token] for i, token in enumerate([*one.tokens, EOS_ID])]
        assert one.token_log_probs == pytest.approx(steps, rel=1e-5)
