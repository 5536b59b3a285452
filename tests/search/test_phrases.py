"""The automaton against a scan of the whole output."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nmt.search.phrases import PhraseMatcher
from tests.search.reference_search import begun, count

words = st.integers(0, 3)


@pytest.mark.slow
@given(
    phrases=st.lists(st.lists(words, max_size=4).map(tuple), min_size=1, max_size=6, unique=True).map(sorted),
    output=st.lists(st.integers(-1, 4), max_size=30).map(tuple),
)
def test_matched_prefix_lengths_equal_the_reference(phrases: list[tuple[int, ...]], output: tuple[int, ...]) -> None:
    matcher = PhraseMatcher(phrases, torch.device("cpu"))
    node = torch.zeros(1, dtype=torch.int64)
    for length, token in enumerate(output, start=1):
        node = matcher.step(node, torch.tensor([token]))
        found = matcher.matched(node, torch.arange(len(phrases)))
        assert found.tolist() == [begun(phrase, output[:length]) for phrase in phrases]


def test_nested_phrases_are_all_matched() -> None:
    phrases = [(1, 2, 3, 4), (2, 3), (3,), (3, 1)]
    numbers = torch.arange(len(phrases))
    matcher, node, seen = PhraseMatcher(phrases, torch.device("cpu")), torch.zeros(1, dtype=torch.int64), []
    for token in (1, 2, 3, 1):
        node = matcher.step(node, torch.tensor([token]))
        seen.append((matcher.matched(node, numbers) == matcher.lengths).tolist())
    assert seen == [[False] * 4, [False] * 4, [False, True, True, False], [False, False, False, True]]


def test_the_reference_counts_overlapping_occurrences() -> None:
    assert count((1, 1), (1, 1, 1)) == 2
