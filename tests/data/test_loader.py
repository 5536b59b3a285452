"""Training batches: their contents, resuming, the split over ranks, and the prefetching thread."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nmt.data.epoch_plan import plan_epoch
from nmt.data.loader import _PREFETCHED_UPDATES, DataPosition, MicroBatch, TrainingBatches, Update, make_batch
from nmt.data.store import PairStore, PairWriter, Side, token_dtype
from nmt.packing.shapes import UpdateStatistics
from nmt.recipe import TrainRecipe
from nmt.special_ids import BOS_ID, EOS_ID

RECIPE = TrainRecipe(batch_tokens=60, micro_batch_tokens=20)
Sentences = list[list[int]]


@pytest.fixture
def data(tmp_path: Path) -> Iterator[tuple[PairStore, Sentences, Sentences]]:
    random = np.random.default_rng(0)
    src, tgt = ([random.integers(4, 99, random.integers(0, 12)).tolist() for _ in range(40)] for _ in range(2))
    with PairWriter(tmp_path, "train", {"src": token_dtype(100), "tgt": token_dtype(100)}) as writer:
        sides: dict[Side, list[list[int]]] = {"src": src, "tgt": tgt}
        for side, sentences in sides.items():
            flat = np.array([token for sentence in sentences for token in sentence])
            writer.append(side, flat, np.array([len(sentence) for sentence in sentences]))
    yield PairStore(tmp_path, "train"), src, tgt


def test_batches_have_bos_and_eos(data: tuple[PairStore, Sentences, Sentences]) -> None:
    store, src, tgt = data
    for ids in ([0], [5, 3, 3, 39], list(range(40))):
        batch = make_batch(store, np.array(ids))
        assert batch.src.to_lists() == [[*src[i], EOS_ID] for i in ids]
        assert batch.tgt.to_lists() == [[BOS_ID, *tgt[i]] for i in ids]
        assert batch.labels.tolist() == [token for i in ids for token in (*tgt[i], EOS_ID)]
        assert batch.labels.dtype == batch.src.tokens.dtype == torch.int64
        assert batch.src.positions.tolist() == [position for i in ids for position in range(len(src[i]) + 1)]


def pairs_of(update: Update) -> list[tuple[list[int], list[int]]]:
    """Return the pairs of one rank."""
    batches = [part.batch for part in update.micro_batches if not part.is_empty]
    return [pair for b in batches for pair in zip(b.src.to_lists(), b.tgt.to_lists(), strict=True)]


def test_every_epoch_has_every_pair(data: tuple[PairStore, Sentences, Sentences]) -> None:
    store, src, tgt = data
    with TrainingBatches(store, RECIPE, seed=1) as batches:
        first = next(batches)
        updates = [first, *islice(batches, 3 * first.updates_in_epoch - 1)]
    for epoch in (0, 1):
        mine = [update for update in updates if update.epoch == epoch]
        assert [update.index for update in mine] == list(range(mine[0].updates_in_epoch))
        seen = [pair for update in mine for pair in pairs_of(update)]
        assert sorted(seen) == sorted(([*s, EOS_ID], [BOS_ID, *t]) for s, t in zip(src, tgt, strict=True))
        assert sorted(i for update in mine for i in update.sentence_ids) == list(range(40))
    for update in updates:
        named = [([*src[i], EOS_ID], [BOS_ID, *tgt[i]]) for i in update.sentence_ids]
        assert sorted(named) == sorted(pairs_of(update))
        assert update.tgt_tokens == sum(part.batch.tgt_tokens for part in update.micro_batches) <= 60
        assert [part.number for part in update.micro_batches] == list(range(len(update.micro_batches)))


@pytest.mark.parametrize("world_size", [1, 2])
def test_fixed_shape_changes_no_update(data: tuple[PairStore, Sentences, Sentences], world_size: int) -> None:
    store, _, _ = data
    needs = UpdateStatistics.from_lengths(store.src.lengths, store.tgt.lengths, batch_tokens=60)
    shape, limit = needs.shape(20), needs.src_tokens
    with TrainingBatches(store, RECIPE, seed=1, src_batch_tokens=limit) as batches:
        plain = list(islice(batches, 12))
    assert all(src_tokens_of(update) <= limit for update in plain)
    with TrainingBatches(store, RECIPE, seed=1) as batches:
        assert any(src_tokens_of(update) > limit for update in islice(batches, 12))
    shared = []
    for rank in range(world_size):
        options: dict[str, Any] = {"rank": rank, "world_size": world_size, "src_batch_tokens": limit, "shape": shape}
        with TrainingBatches(store, RECIPE, seed=1, **options) as batches:
            shared.append(list(islice(batches, 12)))
    for before, *after in zip(plain, *shared, strict=True):
        parts = [part.batch for update in after for part in update.micro_batches]
        sizes = {(b.src.total, b.tgt.total, len(b.labels), b.num_sentences, b.tgt.max_length) for b in parts}
        assert sizes == {(shape.src_tokens, shape.tgt_tokens, shape.tgt_tokens, shape.num_sentences, shape.max_length)}
        counted = [part.batch for update in after for part in update.micro_batches if not part.is_empty]
        assert sum(batch.tgt_tokens for batch in counted) == before.tgt_tokens
        seen = [pair for update in after for pair in pairs_of(update) if pair[1][:1] == [BOS_ID]]
        assert sorted(seen) == sorted(pairs_of(before))


def src_tokens_of(update: Update) -> int:
    return sum(len(src) for src, _ in pairs_of(update))


def micro_batch_values(micro_batches: list[MicroBatch]) -> list[tuple[int, bool, list[int]]]:
    return [(micro.number, micro.is_empty, micro.batch.labels.tolist()) for micro in micro_batches]


def as_values(update: Update) -> tuple[object, ...]:
    ids, contents = update.sentence_ids.tolist(), micro_batch_values(update.micro_batches)
    counts = update.updates_in_epoch, update.tgt_tokens
    return (update.epoch, update.index, update.next, *counts, ids, pairs_of(update), contents)


def test_resume_from_any_position(data: tuple[PairStore, Sentences, Sentences]) -> None:
    store, _, _ = data
    with TrainingBatches(store, RECIPE, seed=3) as batches:
        updates = list(islice(batches, 20))
    whole, starts = [as_values(update) for update in updates], [DataPosition(), *(update.next for update in updates)]
    assert {position.epoch for position in starts} >= {0, 1}
    for start in (0, 1, 7, 13):
        # Checkpoints of early versions have no pair count.
        for position in (starts[start], replace(starts[start], pair=0)):
            with TrainingBatches(store, RECIPE, seed=3, start=position) as batches:
                assert [as_values(update) for update in islice(batches, 5)] == whole[start : start + 5]


def test_resume_with_another_batch_size(data: tuple[PairStore, Sentences, Sentences]) -> None:
    store, _, _ = data
    with TrainingBatches(store, RECIPE, seed=3) as batches:
        before = list(islice(batches, 3))
    smaller = RECIPE.model_copy(update={"batch_tokens": 35})
    with TrainingBatches(store, smaller, seed=3, start=before[-1].next) as batches:
        after = list(takewhile(lambda update: update.epoch == 0, batches))
    assert sorted(i for update in (*before, *after) for i in update.sentence_ids) == list(range(len(store)))
    assert max(update.tgt_tokens for update in before) > 35 >= max(update.tgt_tokens for update in after)
    assert [update.index for update in after] == list(range(3, 3 + len(after)))
    assert after[-1].next == DataPosition(1)


def test_resume_after_the_last_update_starts_the_next_epoch(data: tuple[PairStore, Sentences, Sentences]) -> None:
    store, _, _ = data
    with TrainingBatches(store, RECIPE, seed=3) as batches:
        last = next(batches).updates_in_epoch
    with TrainingBatches(store, RECIPE, seed=3, start=DataPosition(0, last, len(store))) as batches:
        first = next(batches)
    assert (first.epoch, first.index) == (1, 0)


def test_the_last_update_is_the_same_from_any_position(data: tuple[PairStore, Sentences, Sentences]) -> None:
    """Epochs have the number of updates of the current one, as an estimate."""
    store, _, _ = data
    recipe = RECIPE.model_copy(update={"max_epochs": 3})
    with TrainingBatches(store, recipe, seed=3) as batches:
        updates = list(islice(batches, 3))
        expected = 3 * updates[0].updates_in_epoch
        assert batches.last_update(0) == expected
    with TrainingBatches(store, recipe, seed=3, start=updates[-1].next) as batches:
        assert batches.last_update(3) == expected
    with TrainingBatches(store, recipe, seed=3, start=DataPosition(2)) as batches:
        assert batches.last_update(50) == 50 + next(batches).updates_in_epoch
    for limited in (recipe, RECIPE):
        with TrainingBatches(store, limited.model_copy(update={"max_steps": 5}), seed=3) as batches:
            assert batches.last_update(0) == 5


@pytest.mark.parametrize("multiple", [None, 12])
@pytest.mark.parametrize("world_size", [1, 2, 3, 6])
def test_updates_are_balanced_over_ranks(
    world_size: int, multiple: int | None, data: tuple[PairStore, Sentences, Sentences]
) -> None:
    store, _, _ = data
    by_rank: list[list[Update]] = []
    for rank in range(world_size):
        options: dict[str, Any] = {"rank": rank, "world_size": world_size, "multiple": multiple}
        with TrainingBatches(store, RECIPE, seed=1, **options) as batches:
            by_rank.append(list(islice(batches, 9)))
    with TrainingBatches(store, RECIPE, seed=1, multiple=multiple) as batches:
        alone = list(islice(batches, 9))
    for update, *parts in zip(alone, *by_rank, strict=True):
        assert {part.tgt_tokens for part in parts} == {update.tgt_tokens}
        assert {tuple(part.sentence_ids) for part in parts} == {tuple(update.sentence_ids)}
        assert sorted(pair for part in parts for pair in pairs_of(part)) == sorted(pairs_of(update))
        # All ranks have the same number of micro-batches. An empty one has one pair of empty sentences.
        assert len({len(part.micro_batches) for part in parts}) == 1
        micros = sorted((micro for part in parts for micro in part.micro_batches), key=lambda micro: micro.number)
        assert [micro.number for micro in micros] == list(range(len(micros)))
        assert len(micros) % (multiple or world_size) == 0
        for batch in (micro.batch for micro in micros if micro.is_empty):
            assert (batch.src.to_lists(), batch.tgt.to_lists()) == ([[EOS_ID]], [[BOS_ID]])
        if multiple:  # the same split, hence the same dropout
            assert micro_batch_values(micros) == micro_batch_values(update.micro_batches)


def test_updates_follow_the_plan(data: tuple[PairStore, Sentences, Sentences]) -> None:
    store, src, _ = data
    plan = plan_epoch(store.src.lengths, store.tgt.lengths, batch_tokens=60, micro_batch_tokens=20, seed=5, epoch=2)
    with TrainingBatches(store, RECIPE, seed=5, start=DataPosition(2)) as batches:
        for k in range(len(plan)):
            update = next(batches)
            assert update.sentence_ids.tolist() == plan.sentences(k).tolist()
            expected = [[[*src[i], EOS_ID] for i in ids] for ids in plan.micro_batches(k)]
            assert [part.batch.src.to_lists() for part in update.micro_batches] == expected


def batch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "batches"]


def test_prefetching_is_bounded_and_stops_at_close(
    data: tuple[PairStore, Sentences, Sentences], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _, _ = data
    prepared: list[int] = []
    prepare = TrainingBatches._update

    def prepare_and_count(batches: TrainingBatches, epoch: int, index: int, updates_before: int) -> Update:
        prepared.append(index)
        return prepare(batches, epoch, index, updates_before)

    monkeypatch.setattr(TrainingBatches, "_update", prepare_and_count)
    batches = TrainingBatches(store, RECIPE, seed=1)
    limit = _PREFETCHED_UPDATES + 1  # the last one waits for a slot of the queue
    deadline = time.monotonic() + 60
    while len(prepared) < limit and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.05)  # time to exceed the limit
    assert len(prepared) == limit
    assert len(batch_threads()) == 1
    batches.close()
    batches.close()
    assert batch_threads() == []
    assert list(batches) == []


def test_reader_errors_reach_the_consumer(
    data: tuple[PairStore, Sentences, Sentences], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _, _ = data

    def fail(ids: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(store.src, "gather", fail)
    batches = TrainingBatches(store, RECIPE, seed=1)
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)
    assert batch_threads() == []


@pytest.mark.gpu
def test_batches_for_a_gpu_are_pinned(data: tuple[PairStore, Sentences, Sentences]) -> None:
    store, _, _ = data
    with TrainingBatches(store, RECIPE, seed=1, device=torch.device("cuda")) as batches:
        batch = next(batches).micro_batches[0].batch
    assert all(tensor.is_pinned() for tensor in (batch.src.tokens, batch.tgt.cu_seqlens, batch.labels))
