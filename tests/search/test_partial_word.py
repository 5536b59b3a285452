"""Prefixes that end within a word, against exhaustive enumeration."""

import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.packing.packed import PackedSequences
from nmt.search.beam_search import beam_search
from nmt.search.options import SearchOptions
from nmt.search.partial_word import PartialWordModel
from nmt.special_ids import EOS_ID
from nmt.text.spelling import Spelling
from tests.search.test_search import (
    Prefix,
    Scored,
    Table,
    TableModel,
    assert_same,
    random_table,
    reference_limit,
    reference_penalty,
    source_of,
)

SPELLED = [b"", b"", b"", b"", b"a", b"ab", b"b"]
WORDS = range(4, len(SPELLED))


def best_spelled(table: Table, source: Prefix, options: SearchOptions, prefix: Prefix, text: bytes) -> list[Scored]:
    found: list[Scored] = []
    for length in range(len(prefix), reference_limit(source, options) + 1):
        for rest in product(WORDS, repeat=length - len(prefix)):
            tokens = (*prefix, *rest)
            if b"".join(SPELLED[token] for token in rest).startswith(text):
                log_prob = math.fsum(table(source, tokens[:i])[token] for i, token in enumerate((*tokens, EOS_ID)))
                found.append((log_prob / reference_penalty(length + 1, options), log_prob, tokens))
    return sorted(found, reverse=True)[: options.n_best]


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    prefixes=st.lists(st.lists(st.sampled_from(WORDS), max_size=1).map(tuple), min_size=3, max_size=3),
    texts=st.lists(st.sampled_from((b"", b"a", b"ab", b"ba", b"aba", b"bb")), min_size=3, max_size=3),
)
def test_a_beam_that_drops_nothing_finds_the_best_outputs_with_the_text(
    seed: int, prefixes: list[Prefix], texts: list[bytes]
) -> None:
    table = random_table(seed, len(WORDS))
    sources = [source_of(length, name) for name, length in enumerate((2, 1, 2))]
    options = SearchOptions(beam_size=100, n_best=3, max_extra_tokens=2, stop="exact")
    model = PartialWordModel(TableModel(table), Spelling(SPELLED), prefixes, texts)
    found = beam_search(model, PackedSequences.from_lists(sources), options, prefixes)
    for hypotheses, source, prefix, text in zip(found, sources, prefixes, texts, strict=True):
        assert_same(hypotheses, best_spelled(table, source, options, prefix, text), table, source)


def test_agreeing_tokens_are_prefixes_or_extensions_of_the_text() -> None:
    spelled = [b"", b"x", b"a", b"ab", b"abc", b"b", b"a", b"", b"ac", b"abd"]
    for text in (b"a", b"ab", b"abcd", b"c", b"x"):
        expected = [i for i, own in enumerate(spelled) if own and (own.startswith(text) or text.startswith(own))]
        assert sorted(Spelling(spelled).agreeing(text)) == expected
