"""Constraints of greedy search and of long prefixes. `test_all_options` compares constraints with enumeration."""

import math

import pytest
import torch

from nmt.packing.packed import PackedSequences
from nmt.search.beam_search import beam_search
from nmt.search.options import SearchOptions
from tests.search.test_search import Prefix, TableModel, random_table, search, source_of


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
