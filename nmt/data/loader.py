"""Training batches: a thread prefetches the pairs of each update and adds BOS and EOS."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nmt.data.epoch_plan import EpochPlan, Ids, plan_epoch
from nmt.data.mixture import Mixture
from nmt.data.sampling import SampledEpochs
from nmt.data.store import PairStore, SideStore
from nmt.packing.packed import Batch, BatchShape, PackedSequences, TokenLinks
from nmt.recipe import TrainRecipe
from nmt.special_ids import BOS_ID, EOS_ID

# Enough to hide a slow read, and few enough to save memory.
_PREFETCHED_UPDATES = 4

# Other ranks may still read the previous epoch, but are never this many updates behind.
_MAX_UPDATES_BEHIND = 256


@dataclass(frozen=True)
class DataPosition:
    """Position in the training text: the next update of an epoch, and the number of pairs before it."""

    epoch: int = 0
    update: int = 0
    pair: int = 0


@dataclass(frozen=True)
class MicroBatch:
    """The pairs of one forward and backward pass.

    number:   index in the update, over all ranks
    is_empty: whether this is a placeholder that gives every rank the same number of passes; its loss is ignored
    """

    number: int
    batch: Batch
    is_empty: bool


@dataclass(frozen=True)
class Update:
    """The data of one optimizer update on one rank. Counts are over all ranks.

    epoch, index:     epoch, and update within it, both from 0
    updates_in_epoch: number of updates of this epoch
    micro_batches:    micro-batches of this rank; the same number on every rank
    tgt_tokens:       target tokens, including EOS
    sentence_ids:     (num_sentences,) indices of the pairs in the store, in the order of the epoch
    next:             position after this update
    """

    epoch: int
    index: int
    updates_in_epoch: int
    micro_batches: list[MicroBatch]
    tgt_tokens: int
    sentence_ids: Ids
    next: DataPosition


def make_batch(store: PairStore, ids: NDArray[np.integer[Any]], links: SideStore | None = None) -> Batch:
    """Return the pairs `ids` `(num_sentences,)` of a store as a batch on the CPU, with BOS and EOS.

    links: alignment links of all pairs of the store, see `pack_links`
    """
    src, src_lengths = store.src.gather(ids)
    tgt, tgt_lengths = store.tgt.gather(ids)
    src_ends, tgt_ends = np.cumsum(src_lengths), np.cumsum(tgt_lengths)
    return Batch(
        src=PackedSequences.from_arrays(np.insert(src, src_ends, EOS_ID), src_lengths + 1),
        tgt=PackedSequences.from_arrays(np.insert(tgt, tgt_ends - tgt_lengths, BOS_ID), tgt_lengths + 1),
        labels=torch.from_numpy(np.insert(tgt, tgt_ends, EOS_ID).astype(np.int64)),
        links=None if links is None else _token_links(links, ids, tgt_lengths + 1, src_lengths + 1),
    )


def pack_links(links: NDArray[np.integer[Any]]) -> NDArray[np.uint32]:
    """Return (source, target) token positions `(num_links, 2)` as stored: source * 2^16 + target, `(num_links,)`."""
    return (links[:, 0] * (1 << 16) + links[:, 1]).astype(np.uint32)


def _token_links(
    links: SideStore, ids: NDArray[np.integer[Any]], tgt_lengths: NDArray[np.int64], src_lengths: NDArray[np.int64]
) -> TokenLinks:
    packed, counts = links.gather(ids)
    tgt_starts = np.repeat(np.cumsum(tgt_lengths) - tgt_lengths, counts)
    src_starts = np.repeat(np.cumsum(src_lengths) - src_lengths, counts)
    return TokenLinks.from_arrays(tgt_starts + (packed & 0xFFFF), src_starts + (packed >> 16))


def empty_batch() -> Batch:
    """Return a batch with one pair of empty sentences, on the CPU."""
    return Batch.from_lists([[]], [[]])


class TrainingBatches:
    """Endless iterator over the updates of a run, from any position, prefetched by a thread.

    Rank `rank` of `world_size` gets micro-batches `rank`, `rank + world_size`, ... of each update; their number is a
    multiple of `multiple` (default: `world_size`). Batches are in CPU memory, pinned if `device` is a GPU. The
    iterator raises errors of the thread. Use it as a context manager, or call `close`, to stop the thread.

    epochs:           sampled text per epoch, used instead of `store`; closed with the batches
    links:            alignment links of the pairs of `store`, for guided alignment
    src_batch_tokens: maximum source tokens of an update; None for no limit
    shape:            shape to which every micro-batch is padded; None for no padding
    """

    def __init__(
        self,
        store: PairStore,
        recipe: TrainRecipe,
        *,
        seed: int,
        start: DataPosition | None = None,
        rank: int = 0,
        world_size: int = 1,
        multiple: int | None = None,
        device: torch.device | None = None,
        mixture: Mixture | None = None,
        epochs: SampledEpochs | None = None,
        links: SideStore | None = None,
        src_batch_tokens: int | None = None,
        shape: BatchShape | None = None,
    ) -> None:
        assert len(store) > 0, "the store must not be empty"
        assert isinstance(recipe.micro_batch_tokens, int), "micro_batch_tokens must be resolved"
        self._store = store
        self._epochs = epochs
        self._links = links
        self._shape = shape
        self._rank, self._world_size = rank, world_size
        multiple = multiple or world_size
        assert multiple % world_size == 0, "every rank must get the same number of micro-batches"
        self._plan_pairs = partial(
            plan_epoch,
            batch_tokens=recipe.batch_tokens,
            src_batch_tokens=src_batch_tokens,
            micro_batch_tokens=recipe.micro_batch_tokens,
            seed=seed,
            mixture=mixture,
            shape=shape,
            multiple=multiple,
        )
        self._pin = device is not None and device.type == "cuda"
        start = start or DataPosition()
        try:
            self._plan = self._plan_epoch(start.epoch, start.pair)
            if start.update and not start.pair:  # checkpoints of early versions have no pair count
                self._plan = self._plan_epoch(start.epoch, int(self._plan.starts[start.update]))
        except BaseException:
            self._close_epochs()
            raise
        self._updates_left = len(self._plan)  # of the first epoch
        self._updates_in_epoch = start.update + len(self._plan)
        self._epochs_after = None if recipe.max_epochs is None else recipe.max_epochs - start.epoch - 1
        self._max_steps = recipe.max_steps
        self._recent_epochs = deque([start.epoch], maxlen=_MAX_UPDATES_BEHIND)
        self._queue: queue.Queue[Update | BaseException] = queue.Queue(_PREFETCHED_UPDATES)
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._prefetch, args=(start.epoch, start.update), name="batches", daemon=True
        )
        self._thread.start()

    def last_update(self, step: int) -> int:
        """Return the number of the last update, an estimate if `max_epochs` ends training.

        step: number of updates before the first one of this iterator
        """
        if self._epochs_after is None:
            return self._max_steps
        return min(self._max_steps, step + self._updates_left + self._epochs_after * self._updates_in_epoch)

    def __iter__(self) -> Iterator[Update]:
        return self

    def __next__(self) -> Update:
        if self._stopped.is_set():
            raise StopIteration
        item = self._queue.get()
        if isinstance(item, BaseException):
            self.close()
            raise item
        self._recent_epochs.append(item.epoch)
        if self._epochs is not None:
            self._epochs.remove_before(self._recent_epochs[0])
        return item

    def __enter__(self) -> TrainingBatches:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the thread and end the iteration."""
        self._stopped.set()
        self._close_epochs()
        while self._thread.is_alive():
            # Unblock the thread if the queue is full.
            try:
                self._queue.get(timeout=0.01)
            except queue.Empty:
                self._thread.join(timeout=0.01)

    def _close_epochs(self) -> None:
        if self._epochs is not None:
            self._epochs.close()

    def _plan_epoch(self, epoch: int, first_pair: int = 0) -> EpochPlan:
        if self._epochs is not None:
            self._store = self._epochs.store(epoch)
        return self._plan_pairs(self._store.src.lengths, self._store.tgt.lengths, epoch=epoch, first_pair=first_pair)

    def _prefetch(self, epoch: int, updates_before: int) -> None:
        try:
            while True:
                for index in range(len(self._plan)):
                    self._queue.put(self._update(epoch, index, updates_before))
                    if self._stopped.is_set():
                        return
                epoch, updates_before = epoch + 1, 0
                self._plan = self._plan_epoch(epoch)
        except BaseException as error:  # raised in the consumer, which would otherwise wait forever
            self._queue.put(error)

    def _update(self, epoch: int, index: int, updates_before: int) -> Update:
        """Return update `index` of the plan, which starts after `updates_before` updates of the epoch."""
        parts = self._plan.micro_batches(index)
        following = DataPosition(epoch, updates_before + index + 1, int(self._plan.starts[index + 1]))
        if index + 1 == len(self._plan):
            following = DataPosition(epoch + 1)
        numbers = range(self._rank, len(parts), self._world_size)
        return Update(
            epoch=epoch,
            index=updates_before + index,
            updates_in_epoch=updates_before + len(self._plan),
            next=following,
            micro_batches=[self._micro_batch(number, parts[number]) for number in numbers],
            tgt_tokens=self._plan.tgt_tokens(index),
            sentence_ids=self._plan.sentences(index),
        )

    def _micro_batch(self, number: int, ids: Ids) -> MicroBatch:
        is_empty = len(ids) == 0
        batch = empty_batch() if is_empty else make_batch(self._store, ids, self._links)
        if self._shape is not None:
            batch = batch.pad_to_shape(self._shape)
        if self._pin:  # copies from pinned memory to a GPU are asynchronous
            batch = batch.map(torch.Tensor.pin_memory)
        return MicroBatch(number, batch, is_empty)
