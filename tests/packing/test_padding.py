"""Padded rows, compared with Python loops."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.packing.padding import one_per_row, padded_width, row_width, shared_rows

CPU = torch.device("cpu")
pairs_strategy = st.lists(st.tuples(st.integers(1, 90), st.integers(1, 90)), min_size=1, max_size=40)
pairs_with_empty_queries = st.lists(st.tuples(st.integers(0, 90), st.integers(1, 90)), min_size=1, max_size=40)


def sides(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    queries, keys = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return queries, keys


@pytest.mark.slow
@given(pairs_strategy)
def test_both_sides_of_a_sentence_are_contiguous_in_the_same_row(pairs: list[tuple[int, int]]) -> None:
    queries, keys = sides(pairs)
    found = shared_rows(queries, keys, causal=False, device=CPU)
    rows = []
    for lengths, layout in ((queries, found.queries), (keys, found.keys)):
        slots = layout.slots.split(lengths.tolist())
        rows.append([int(slot[0]) // layout.width for slot in slots])
        for slot, row in zip(slots, rows[-1], strict=True):
            assert slot.tolist() == list(range(int(slot[0]), int(slot[0]) + len(slot)))
            assert int(slot[-1]) // layout.width == row
        assert len(set(layout.slots.tolist())) == lengths.sum()  # slots are unique
        assert layout.tokens.flatten()[layout.slots].tolist() == list(range(lengths.sum()))
    assert rows[0] == rows[1]


@pytest.mark.slow
@settings(max_examples=40)
@given(pairs_with_empty_queries, st.booleans())
def test_a_query_attends_to_the_keys_of_its_own_sentence(pairs: list[tuple[int, int]], causal: bool) -> None:
    queries, keys = sides(pairs)
    if causal:
        keys = queries
    found = shared_rows(queries, keys, causal=causal, device=CPU)
    query_ends, key_ends = np.cumsum(queries), np.cumsum(keys)
    for query, slot in enumerate(found.queries.slots.tolist()):
        sentence = int(np.searchsorted(query_ends, query, side="right"))
        row, column = divmod(slot, found.queries.width)
        visible = (found.mask[row, 0, column] == 0).nonzero()[:, 0] + row * found.keys.width
        first = int(key_ends[sentence] - keys[sentence])
        last = query + 1 if causal else int(key_ends[sentence])
        assert visible.tolist() == found.keys.slots[first:last].tolist()
    assert set(found.mask.unique().tolist()) <= {0.0, -math.inf}
    assert (found.mask == 0).any(dim=-1).all()  # padding queries too, or softmax is NaN


@given(pairs_strategy)
@pytest.mark.slow
def test_rows_have_little_padding(pairs: list[tuple[int, int]]) -> None:
    queries, _ = sides(pairs)
    found = shared_rows(queries, queries, causal=True, device=CPU).queries
    assert found.width == row_width(int(queries.max()))
    filled = np.bincount(found.slots.numpy() // found.width, minlength=len(found.tokens))
    assert all(filled > 0)
    assert sum(filled <= found.width // 2) <= 1  # two half-empty rows would be merged


@pytest.mark.parametrize(("queries", "keys"), [([0, 3], [64, 5]), ([0], [5]), ([0, 0], [64, 64]), ([], [])])
def test_a_row_without_queries_has_no_softmax_over_nothing(queries: list[int], keys: list[int]) -> None:
    found = shared_rows(np.array(queries, dtype=np.int64), np.array(keys, dtype=np.int64), causal=False, device=CPU)
    assert (found.mask == 0).any(dim=-1).all()
    assert found.mask.shape == (len(keys), 1, found.queries.width, found.keys.width)


def test_many_short_sentences_share_few_rows() -> None:
    lengths = np.random.default_rng(1).integers(5, 30, 200)
    found = shared_rows(lengths, np.maximum(lengths - 2, 1), causal=False, device=CPU)
    assert lengths.sum() / found.queries.tokens.numel() > 0.85


def test_widths_are_multiples_of_16() -> None:
    assert [row_width(longest) for longest in (0, 1, 64, 65, 80, 81)] == [0, 64, 64, 80, 80, 96]
    assert [padded_width(longest) for longest in (0, 1, 16, 17, 81)] == [0, 16, 16, 32, 96]


@pytest.mark.slow
@given(st.lists(st.integers(0, 9), max_size=9))
def test_one_per_row_repeats_the_last_token(lengths: list[int]) -> None:
    found = one_per_row(np.array(lengths, dtype=np.int64), CPU)
    starts = np.cumsum(lengths) - lengths
    assert found.tokens.shape == (len(lengths), padded_width(max(lengths, default=0)))
    for row, start, length in zip(found.tokens.tolist(), starts, lengths, strict=True):
        if length:
            assert row == [start + min(column, length - 1) for column in range(found.width)]


def test_head_rows_find_each_head_of_each_token() -> None:
    lengths = np.array([3, 70, 2])
    layout = shared_rows(lengths, lengths, causal=False, device=CPU).queries
    packed = torch.randn(75, 4, 5)
    pad_index, unpad_index = layout.head_rows(4)
    padded = packed.reshape(-1, 5)[pad_index]
    assert torch.equal(padded[unpad_index].view(75, 4, 5), packed)
    by_slot = padded.view(-1, 4, layout.width, 5).transpose(1, 2).reshape(-1, 4, 5)
    assert torch.equal(by_slot[layout.slots], packed)
