"""Packed sentences, compared with Python lists."""

import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nmt.packing.packed import Batch, BatchShape, PackedSequences
from nmt.special_ids import PAD_ID

sentences_strategy = st.lists(st.lists(st.integers(0, 65_535), max_size=9), max_size=9)
EXAMPLES = [
    [],
    [[]],
    [[], [], []],
    [[5]],
    [[7, 8, 9], [], [4], [1, 2]],
    [[], [3, 3], []],
]
DEVICES = ["meta", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.slow
@given(sentences_strategy)
def test_repeated_sentences_equal_a_repeated_list(sentences: list[list[int]]) -> None:
    repeated, expected = PackedSequences.from_lists(sentences).repeated(), PackedSequences.from_lists(sentences * 2)
    for name in ("tokens", "positions", "cu_seqlens", "sizes"):
        np.testing.assert_array_equal(getattr(repeated, name), getattr(expected, name), strict=True)
    assert repeated.max_length == expected.max_length


@pytest.mark.slow
@given(sentences_strategy)
def test_to_lists_inverts_from_lists(sentences: list[list[int]]) -> None:
    assert PackedSequences.from_lists(sentences).to_lists() == sentences


@given(sentences_strategy)
@pytest.mark.slow
def test_fields_equal_their_definitions(sentences: list[list[int]]) -> None:
    packed = PackedSequences.from_lists(sentences)
    assert packed.tokens.tolist() == [token for sentence in sentences for token in sentence]
    assert packed.positions.tolist() == [position for sentence in sentences for position in range(len(sentence))]
    assert packed.cu_seqlens.tolist() == [sum(map(len, sentences[:count])) for count in range(len(sentences) + 1)]
    assert packed.lengths.tolist() == [len(sentence) for sentence in sentences]
    assert packed.max_length == max(map(len, sentences), default=0)
    assert packed.total == sum(map(len, sentences))
    assert packed.num_sentences == len(sentences)
    assert packed.sizes.tolist() == [len(sentence) for sentence in sentences]


@pytest.mark.slow
@given(sentences_strategy)
def test_padding_mask_hides_padding_only(sentences: list[list[int]]) -> None:
    packed = PackedSequences.from_lists(sentences)
    minus_infinity = float("-inf")
    assert packed.padding_mask.tolist() == [
        [0.0 if column < len(sentence) else minus_infinity for column in range(packed.one_per_row.width)]
        for sentence in sentences
    ]


@pytest.mark.parametrize("sentences", EXAMPLES)
def test_fields_have_their_types(sentences: list[list[int]]) -> None:
    packed = PackedSequences.from_lists(sentences)
    assert packed.tokens.dtype == packed.positions.dtype == packed.lengths.dtype == torch.int64
    assert packed.cu_seqlens.dtype == torch.int32
    assert packed.sizes.dtype == np.int64
    assert packed.padding_mask.dtype == torch.float32
    assert isinstance(packed.max_length, int)


@pytest.mark.parametrize("sentences", EXAMPLES)
@pytest.mark.parametrize("token_type", [np.uint16, np.int32, np.int64])
def test_from_arrays_accepts_any_integer_type(sentences: list[list[int]], token_type: type) -> None:
    tokens: np.ndarray = np.array([token for sentence in sentences for token in sentence], dtype=token_type)
    lengths = np.array([len(sentence) for sentence in sentences], dtype=np.int64)
    packed = PackedSequences.from_arrays(tokens, lengths)
    assert packed.to_lists() == sentences
    assert packed.tokens.dtype == torch.int64


@pytest.mark.parametrize("chosen", [[], [0], [3, 1, 0], [1], [2, 2]])
def test_selected_sentences_equal_a_list_of_them(chosen: list[int]) -> None:
    sentences = [[7, 8, 9], [], [4], [1, 2]]
    found = PackedSequences.from_lists(sentences).select(chosen)
    expected = PackedSequences.from_lists([sentences[number] for number in chosen])
    for name in ("tokens", "positions", "cu_seqlens", "sizes"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), strict=True)
    assert found.max_length == expected.max_length


def test_from_arrays_copies_the_tokens() -> None:
    tokens = np.array([1, 2, 3], dtype=np.int64)
    packed = PackedSequences.from_arrays(tokens, np.array([3]))
    tokens[:] = 0
    assert packed.to_lists() == [[1, 2, 3]]


def test_from_arrays_checks_the_total() -> None:
    with pytest.raises(AssertionError, match="add up"):
        PackedSequences.from_arrays(np.arange(5), np.array([2, 2]))


@pytest.mark.parametrize("device_name", DEVICES)
def test_to_moves_every_tensor(device_name: str) -> None:
    device = torch.device(device_name)
    moved = PackedSequences.from_lists([[7, 8, 9], [], [4]]).to(device)
    found = moved.attention_rows(moved, causal=True)
    tensors = [moved.tokens, moved.positions, moved.cu_seqlens, moved.padding_mask, moved.lengths]
    tensors += [found.mask, found.keys.tokens, found.keys.slots, *moved.one_per_row.head_rows(2)]
    assert {tensor.device.type for tensor in tensors} == {device.type}
    assert moved.max_length == 3
    if device_name != "meta":
        assert moved.to_lists() == [[7, 8, 9], [], [4]]


def test_to_the_same_device_returns_the_same_object() -> None:
    packed = PackedSequences.from_lists([[1, 2]])
    assert packed.to(torch.device("cpu")) is packed


@pytest.mark.parametrize("device_name", DEVICES)
def test_a_batch_counts_its_pairs_and_moves_every_side(device_name: str) -> None:
    batch = Batch(
        src=PackedSequences.from_lists([[5, 3], [3]]),
        tgt=PackedSequences.from_lists([[2, 6, 7], [2]]),
        labels=torch.tensor([6, 7, 3, 3]),
    )
    assert (batch.num_sentences, batch.tgt_tokens) == (2, 4)
    moved = batch.to(torch.device(device_name))
    assert {moved.src.tokens.device.type, moved.tgt.tokens.device.type, moved.labels.device.type} == {device_name}


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=20), st.sampled_from([1, 8, 64])
)
@pytest.mark.slow
def test_pad_to_multiple_keeps_the_pairs(lengths: list[tuple[int, int]], step: int) -> None:
    src = PackedSequences.from_lists([[5] * length for length, _ in lengths])
    tgt = PackedSequences.from_lists([[6] * length for _, length in lengths])
    batch = Batch(src, tgt, labels=tgt.tokens)
    padded = batch.pad_to_multiple(step)
    assert padded.labels is batch.labels
    for before, after in ((src, padded.src), (tgt, padded.tgt)):
        lists = after.to_lists()
        assert lists[: len(lengths)] == before.to_lists()
        assert all(0 < len(padding) <= before.max_length for padding in lists[len(lengths) :])
        expected = PackedSequences.from_lists(lists)
        assert after.positions.tolist() == expected.positions.tolist()
        assert after.cu_seqlens.tolist() == expected.cu_seqlens.tolist()
        assert (after.max_length, after.cu_seqlens.dtype) == (expected.max_length, expected.cu_seqlens.dtype)
        if padded is not batch:
            assert after.total % step == 0
    assert padded.src.num_sentences == padded.tgt.num_sentences


def test_pad_to_multiple_pads_typical_batches() -> None:
    src = PackedSequences.from_lists([[5] * (10 + i % 7) for i in range(100)])
    tgt = PackedSequences.from_lists([[6] * (9 + i % 9) for i in range(100)])
    padded = Batch(src, tgt, labels=tgt.tokens).pad_to_multiple(64)
    assert src.total % 64, "the source needs padding"
    assert (padded.src.total % 64, padded.tgt.total % 64) == (0, 0)
    assert padded.src.total < src.total + 2 * 64


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=20),
    st.integers(0, 200),
    st.integers(0, 200),
    st.integers(0, 9),
)
def test_pad_to_shape_keeps_the_pairs(
    lengths: list[tuple[int, int]], more_src: int, more_tgt: int, more_sentences: int
) -> None:
    src = PackedSequences.from_lists([[5] * length for length, _ in lengths])
    tgt = PackedSequences.from_lists([[6] * length for _, length in lengths])
    batch = Batch(src, tgt, labels=tgt.tokens)
    longest = 1 + max(src.max_length, tgt.max_length)
    padding = max(-(-more_src // longest), -(-more_tgt // longest))
    more_src = max(more_src, padding)  # a source token for each padding pair
    shape = BatchShape(src.total + more_src, tgt.total + more_tgt, len(lengths) + padding + more_sentences, longest)
    fixed = batch.pad_to_shape(shape)
    assert (fixed.src.total, fixed.tgt.total, fixed.num_sentences) == (
        shape.src_tokens,
        shape.tgt_tokens,
        shape.num_sentences,
    )
    assert fixed.tgt.num_sentences == shape.num_sentences
    assert (fixed.tgt_tokens, fixed.padding) == (tgt.total, more_tgt)
    assert fixed.labels.tolist() == tgt.tokens.tolist() + [PAD_ID] * more_tgt
    for before, after in ((src, fixed.src), (tgt, fixed.tgt)):
        lists = after.to_lists()
        assert lists[: len(lengths)] == before.to_lists()
        expected = PackedSequences.from_lists(lists)
        assert after.positions.tolist() == expected.positions.tolist()
        assert after.cu_seqlens.tolist() == expected.cu_seqlens.tolist()
        assert after.sizes.tolist() == expected.sizes.tolist()
        assert expected.max_length <= after.max_length == longest
        assert (after.cu_seqlens.dtype, after.positions.dtype) == (torch.int32, torch.int64)
    padding_pairs = zip(fixed.src.to_lists()[len(lengths) :], fixed.tgt.to_lists()[len(lengths) :], strict=True)
    assert all(source or not target for source, target in padding_pairs), "target tokens need a source token"


def test_padding_sentences_are_short() -> None:
    """One padding sentence of 200 tokens would widen all rows of attention."""
    side = PackedSequences.from_lists([[5, 6, 7]] * 4)
    batch = Batch(src=side, tgt=side, labels=side.tokens)
    fixed = batch.pad_to_shape(BatchShape(src_tokens=212, tgt_tokens=112, num_sentences=9, max_length=257))
    assert fixed.src.sizes.tolist() == [3] * 4 + [50] * 4 + [0]
    assert fixed.tgt.sizes.tolist() == [3] * 4 + [25] * 4 + [0]


def test_pad_to_shape_checks_the_capacity() -> None:
    side = PackedSequences.from_lists([[5] * 8, [5] * 4])
    batch = Batch(side, side, labels=side.tokens)
    for counts in ((11, 20, 9), (20, 11, 9), (12, 20, 9), (20, 20, 2)):
        with pytest.raises(AssertionError, match="does not hold"):
            batch.pad_to_shape(BatchShape(*counts, max_length=8))
    assert batch.pad_to_shape(BatchShape(13, 20, 3, max_length=8)).src.total == 13


def test_copies_of_a_padded_batch_keep_its_shape() -> None:
    side = PackedSequences.from_lists([[5] * 8, [5] * 4])
    fixed = Batch(side, side, labels=side.tokens).pad_to_shape(BatchShape(20, 24, 5, max_length=8))
    moved = fixed.to(torch.device("meta"))
    assert (moved.padding, moved.tgt_tokens, moved.src.max_length, moved.num_sentences) == (12, 12, 8, 5)
    padded = fixed.pad_to_multiple(16)
    assert (padded.padding, padded.tgt_tokens, padded.tgt.total) == (12, 12, 32)


def test_attention_rows_are_cached_without_reference_cycles() -> None:
    first, second = (PackedSequences.from_lists([[5] * n for n in (2, 3)]) for _ in range(2))
    assert first.attention_rows(first, causal=True) is first.attention_rows(first, causal=True)
    assert first.attention_rows(first, causal=False) is not first.attention_rows(first, causal=True)
    across = first.attention_rows(second, causal=False)
    assert across is first.attention_rows(second, causal=False)
    assert across is not first.attention_rows(first, causal=False)
    reference = weakref.ref(second)
    second.attention_rows(second, causal=False)
    first.attention_rows(first, causal=False)
    del second
    assert reference() is None  # at once, without garbage collection
