"""Constraints against exhaustive enumeration."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.packing.packed import PackedSequences
from nmt.search.beam_search import beam_search
from nmt.search.options import SearchOptions
from tests.search.reference_search import Task, best_outputs
from tests.search.test_search import Prefix, TableModel, assert_same, random_table, search, source_of

WORDS = range(4, 6)


outputs = st.lists(st.sampled_from(list(WORDS)), max_size=3).map(tuple)


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    lengths=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    min_tokens=st.integers(0, 5),
    min_ratio=st.sampled_from([0.0, 0.5, 1.5]),
    max_ratio=st.sampled_from([math.inf, 0.5, 1.0]),
    no_repeat=st.integers(0, 3),
    forbidden=st.lists(outputs.filter(len), max_size=2).map(tuple),
    prefix=outputs,
)
def test_exhaustive_beam_finds_the_optimum_under_constraints(
    seed: int,
    lengths: list[int],
    min_tokens: int,
    min_ratio: float,
    max_ratio: float,
    no_repeat: int,
    forbidden: tuple[Prefix, ...],
    prefix: Prefix,
) -> None:
    table = random_table(seed, len(WORDS))
    options = SearchOptions(
        beam_size=2**5,
        n_best=3,
        max_extra_tokens=1,
        max_length_ratio=max_ratio,
        min_tokens=min_tokens,
        min_length_ratio=min_ratio,
        no_repeat_ngram=no_repeat,
        forbidden=forbidden,
    )
    sources = [source_of(length, name) for name, length in enumerate(lengths)]
    prefixes = [prefix if sentence % 2 == 0 else () for sentence in range(len(sources))]
    found = beam_search(TableModel(table), PackedSequences.from_lists(sources), options, prefixes)
    for source, own, hypotheses in zip(sources, prefixes, found, strict=True):
        assert_same(hypotheses, best_outputs(Task(table, source, options, own)), table, source)


def test_greedy_search_respects_constraints() -> None:
    """4 is always the most probable token; it must not repeat, and 5 must not follow it."""

    def table(_source: Prefix, _prefix: Prefix) -> list[float]:
        probabilities = [0.0, 0.0, 0.0, 0.05, 0.5, 0.3, 0.15]
        return [math.log(p) if p else -math.inf for p in probabilities]

    options = SearchOptions(beam_size=1, max_extra_tokens=0, min_tokens=3, no_repeat_ngram=1, forbidden=((4, 5),))
    [[found]] = search(table, [source_of(3, 0)], options)
    assert found.tokens == [4, 6, 5]
    assert found.log_prob == pytest.approx(math.log(0.5 * 0.15 * 0.3 * 0.05))


def test_a_prefix_may_be_longer_than_the_limit() -> None:
    options = SearchOptions(beam_size=2, max_extra_tokens=0)
    table = random_table(3, 2)
    prefixes = [(4, 5, 5, 4, 4)]
    [[found]] = beam_search(TableModel(table), PackedSequences.from_lists([source_of(1, 0)]), options, prefixes)
    assert found.tokens == [4, 5, 5, 4, 4]
    assert torch.isfinite(torch.tensor(found.token_log_probs)).all()
