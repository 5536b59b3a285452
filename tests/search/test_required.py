"""Required phrases: every beam size, positions, and limits."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.packing.packed import PackedSequences
from nmt.search.beam_search import beam_search
from nmt.search.hypothesis import Hypothesis
from nmt.search.options import SearchOptions
from nmt.special_ids import EOS_ID
from tests.search.reference_search import count
from tests.search.test_search import Prefix, TableModel, random_table, source_of

phrases = st.lists(st.integers(4, 8), min_size=1, max_size=4).map(tuple)


def search_required(
    seed: int, words: int, required: list[list[list[Prefix]]], options: SearchOptions, length: int = 3
) -> list[list[Hypothesis]]:
    sources = [source_of(length, name) for name in range(len(required))]
    model = TableModel(random_table(seed, words))
    return beam_search(model, PackedSequences.from_lists(sources), options, None, required)


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    beam_size=st.integers(1, 6),
    groups=st.integers(1, 2),
    extra=st.integers(0, 6),
    required=st.lists(st.lists(st.lists(phrases, min_size=1, max_size=3), max_size=4), min_size=1, max_size=3),
)
def test_outputs_of_every_beam_size_have_the_required_phrases(
    seed: int, beam_size: int, groups: int, extra: int, required: list[list[list[Prefix]]]
) -> None:
    options = SearchOptions(beam_size * groups, 1, max_extra_tokens=extra, beam_groups=groups)
    for own, hypotheses in zip(required, search_required(seed, 5, required, options), strict=True):
        [found] = hypotheses
        assert all(any(count(phrase, tuple(found.tokens)) for phrase in phrases) for phrases in own)
        shortest = [min(map(len, phrases)) for phrases in set(map(frozenset, own))]
        assert len(found.tokens) <= max(3 + extra, sum(shortest))


def test_phrases_may_share_tokens() -> None:
    """The most probable output with both phrases is 4 5 6, in which they overlap."""

    def table(_source: Prefix, prefix: Prefix) -> list[float]:
        likely = {(): 4, (4,): 5, (4, 5): 6}.get(prefix, 3)
        return [math.log(0.95 if token == likely else 0.01) for token in range(8)]

    src, options = PackedSequences.from_lists([source_of(3, 0)]), SearchOptions(beam_size=6)
    for required in ([(4, 5), (5, 6)], [(4, 5, 6), (5,), (5, 6)], [(6,), (6,), (4, 5)]):
        [[found]] = beam_search(TableModel(table), src, options, None, [[[phrase] for phrase in required]])
        assert found.tokens == [4, 5, 6]


def test_the_most_probable_alternative_is_chosen() -> None:
    """Both forms are improbable; the longer one is less so."""

    def table(_source: Prefix, prefix: Prefix) -> list[float]:
        weights = dict.fromkeys(range(3, 10), 0.001)
        likely = {(): 4, (4,): 5, (4, 5): 3, (4, 5, 7): 8, (4, 5, 7, 8): 3}.get(prefix, 3)
        weights |= {7: 0.05, likely: 0.9}
        return [-math.inf] * 3 + [math.log(weights[token]) for token in range(3, 10)]

    src, options = PackedSequences.from_lists([source_of(3, 0)]), SearchOptions(beam_size=4, length_penalty="none")
    [[found]] = beam_search(TableModel(table), src, options, None, [[[(9,), (7, 8)]]])
    assert found.tokens == [4, 5, 7, 8]
    [[found]] = beam_search(TableModel(table), src, options, None, [[[(9,)]]])
    assert 9 in found.tokens and 8 not in found.tokens


def test_a_large_beam_places_a_phrase_at_its_most_probable_position() -> None:
    """9 is improbable, but least so after 4 5."""

    def table(_source: Prefix, prefix: Prefix) -> list[float]:
        weights = dict.fromkeys(range(3, 10), 0.001)
        path = (4, 5, 6, 7)
        if prefix == (4, 5):
            weights[9] = 0.05
        rest = tuple(token for token in prefix if token != 9)
        weights[path[len(rest)] if rest == path[: len(rest)] and len(rest) < 4 else 3] = 0.9
        return [-math.inf] * 3 + [math.log(weights[token]) for token in range(3, 10)]

    src = PackedSequences.from_lists([source_of(4, 0)])
    [[found]] = beam_search(TableModel(table), src, SearchOptions(beam_size=4), None, [[[(9,)]]])
    assert found.tokens == [4, 5, 9, 6, 7]


def test_the_limit_grows_for_phrases_up_to_max_tokens() -> None:
    required: list[list[list[Prefix]]] = [[[(4, 5), (4, 5, 6, 7)], [(6, 7)], [(8,)]]]
    [[found]] = search_required(1, 5, required, SearchOptions(beam_size=2, max_extra_tokens=0), length=1)
    assert len(found.tokens) == 5
    [[found]] = search_required(1, 5, required, SearchOptions(beam_size=2, max_extra_tokens=0, max_tokens=5), length=1)
    assert len(found.tokens) == 5
    assert search_required(1, 5, required, SearchOptions(beam_size=2, max_tokens=4), length=1) == [[]]


def test_phrases_both_required_and_forbidden_have_no_output() -> None:
    options = SearchOptions(beam_size=3, n_best=3, forbidden=((5, 6),), max_extra_tokens=1)
    found = search_required(2, 5, [[[(4, 5, 6)]], [[(5,)], [(6,)]], [[(4, 5, 6), (7, 8)]]], options)
    assert found[0] == []
    assert found[1] and all({5, 6} <= set(h.tokens) and not count((5, 6), tuple(h.tokens)) for h in found[1])
    assert found[2] and all(count((7, 8), tuple(h.tokens)) for h in found[2])


@pytest.mark.parametrize("seed", range(5))
def test_a_prefix_can_satisfy_a_phrase(seed: int) -> None:
    src, options = PackedSequences.from_lists([source_of(1, 0)]), SearchOptions(beam_size=2, max_extra_tokens=0)
    model = TableModel(random_table(seed, 5))
    [[found]] = beam_search(model, src, options, [(4, 5, 6)], [[[(5, 6, 7)], [(4, 5)]]])
    assert found.tokens[:3] == [4, 5, 6]
    assert count((5, 6, 7), tuple(found.tokens))


def test_exhaustive_beam_finds_the_optimum_with_phrases() -> None:
    """A large beam against enumeration of outputs of up to five tokens; phrases overlap and have alternatives."""
    table, words, max_tokens = random_table(8, 3), (4, 5, 6), 5
    required: list[list[Prefix]] = [[(4, 5)], [(5, 4, 5), (6, 6)], [(6,), (5, 5, 5)]]
    scored = []
    for length in range(max_tokens + 1):
        for tokens in itertools.product(words, repeat=length):
            if all(any(count(phrase, tokens) for phrase in phrases) for phrases in required):
                steps = [table(source_of(3, 0), tokens[:i])[token] for i, token in enumerate((*tokens, EOS_ID))]
                scored.append((sum(steps), tokens))
    options = SearchOptions(
        beam_size=len(words) ** max_tokens, n_best=5, length_penalty="none", max_extra_tokens=2, max_tokens=max_tokens
    )
    [found] = beam_search(TableModel(table), PackedSequences.from_lists([source_of(3, 0)]), options, None, [required])
    assert [tuple(h.tokens) for h in found] == [tokens for _, tokens in sorted(scored, reverse=True)[:5]]
