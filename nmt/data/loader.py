"""From plan and store to batches: adds the special tokens, and reads ahead in a thread."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nmt.data.packing import EpochPlan, Ids, Mixture, plan_epoch
from nmt.data.sampling import SampledEpochs
from nmt.data.store import PairStore
from nmt.packed import Batch, BatchShape, PackedSequences
from nmt.recipe import TrainRecipe
from nmt.special_ids import BOS_ID, EOS_ID

# Updates that wait ready: enough to ride out a slow read, little enough to cost no memory worth counting.
_UPDATES_AHEAD = 4

# Other processes may still read an epoch that this one has left, but never so many updates behind it.
_UPDATES_BEHIND = 256


@dataclass(frozen=True)
class MicroBatch:
    """The pairs of one forward and backward pass.

    number: place within the update, over all processes
    counts: false where the update has no micro-batch left for this process: it then repeats another one for nothing, so
            that every process takes part in the same number of passes
    """

    number: int
    batch: Batch
    counts: bool


@dataclass(frozen=True)
class Update:
    """What one optimiser update learns from, as one process sees it.

    epoch, index:       place in the run: pass over the data, and update within it; both from 0
    updates_in_epoch:   number of updates of this epoch
    micro_batches:      this process's share, as many on every process
    num_micro_batches:  micro-batches of the update over all processes
    tgt_tokens:         target tokens of the update over all processes, end tokens included
    num_sentences:      pairs of the update over all processes
    sentence_ids:       (num_sentences,) places of these pairs in the store, in the order of the epoch
    """

    epoch: int
    index: int
    updates_in_epoch: int
    micro_batches: list[MicroBatch]
    num_micro_batches: int
    tgt_tokens: int
    num_sentences: int
    sentence_ids: Ids


def make_batch(store: PairStore, ids: NDArray[np.integer[Any]]) -> Batch:
    """The pairs `ids` `(num_sentences,)` of a store as one micro-batch on the CPU, with begin and end tokens."""
    src, src_lengths = store.src.gather(ids)
    tgt, tgt_lengths = store.tgt.gather(ids)
    src_ends, tgt_ends = np.cumsum(src_lengths), np.cumsum(tgt_lengths)
    return Batch(
        src=PackedSequences.from_arrays(np.insert(src, src_ends, EOS_ID), src_lengths + 1),
        tgt=PackedSequences.from_arrays(np.insert(tgt, tgt_ends - tgt_lengths, BOS_ID), tgt_lengths + 1),
        labels=torch.from_numpy(np.insert(tgt, tgt_ends, EOS_ID).astype(np.int64)),
    )


class TrainingBatches:
    """The updates of a run without end, epoch after epoch, from any position; read ahead by a thread.

    Process `rank` of `world_size` takes micro-batches `rank`, `rank + world_size`, ... of each update. Batches lie in
    CPU memory, pinned when `device` is a GPU. An error while reading is raised where the updates are consumed.
    Use it as a context manager, or call `close`, to stop the thread.

    With `epochs`, the text of each epoch is taken from there instead of from `store`; they are closed with the batches.
    No update has more than `src_batch_tokens` source tokens. With a `shape`, every micro-batch is padded to it.
    """

    def __init__(
        self,
        store: PairStore,
        recipe: TrainRecipe,
        *,
        seed: int,
        start_epoch: int = 0,
        start_update: int = 0,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | None = None,
        mixture: Mixture | None = None,
        epochs: SampledEpochs | None = None,
        src_batch_tokens: int | None = None,
        shape: BatchShape | None = None,
    ) -> None:
        assert len(store) > 0, "there is nothing to learn from an empty store"
        assert isinstance(recipe.micro_batch_tokens, int), "what fits in memory must have been found out"
        self._store = store
        self._epochs = epochs
        self._batch_tokens, self._src_batch_tokens = recipe.batch_tokens, src_batch_tokens
        self._micro_batch_tokens = recipe.micro_batch_tokens
        self._seed = seed
        self._mixture = mixture
        self._shape = shape
        self._rank = rank
        self._world_size = world_size
        self._pin = device is not None and device.type == "cuda"
        try:
            self._plan = self._plan_epoch(start_epoch)
        except BaseException:
            self._close_epochs()
            raise
        self.epoch = start_epoch
        self._epochs_taken = deque([start_epoch], maxlen=_UPDATES_BEHIND)
        self.updates_per_epoch = len(self._plan)
        self._queue: queue.Queue[Update | BaseException] = queue.Queue(_UPDATES_AHEAD)
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._read_ahead, args=(start_epoch, start_update), name="batches", daemon=True
        )
        self._thread.start()

    def __iter__(self) -> Iterator[Update]:
        return self

    def __next__(self) -> Update:
        if self._stopped.is_set():
            raise StopIteration
        item = self._queue.get()
        if isinstance(item, BaseException):
            self.close()
            raise item
        self.epoch, self.updates_per_epoch = item.epoch, item.updates_in_epoch
        self._epochs_taken.append(item.epoch)
        if self._epochs is not None:
            self._epochs.remove_before(self._epochs_taken[0])
        return item

    def __enter__(self) -> TrainingBatches:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the thread; the iterator ends."""
        self._stopped.set()
        self._close_epochs()
        while self._thread.is_alive():
            # The thread may be waiting for room in the queue.
            try:
                self._queue.get(timeout=0.01)
            except queue.Empty:
                self._thread.join(timeout=0.01)

    def _close_epochs(self) -> None:
        if self._epochs is not None:
            self._epochs.close()

    def _plan_epoch(self, epoch: int) -> EpochPlan:
        if self._epochs is not None:
            self._store = self._epochs.store(epoch)
        return plan_epoch(
            self._store.src.lengths,
            self._store.tgt.lengths,
            batch_tokens=self._batch_tokens,
            src_batch_tokens=self._src_batch_tokens,
            micro_batch_tokens=self._micro_batch_tokens,
            seed=self._seed,
            epoch=epoch,
            mixture=self._mixture,
            shape=self._shape,
        )

    def _read_ahead(self, epoch: int, first: int) -> None:
        try:
            while True:
                for index in range(first, len(self._plan)):
                    self._queue.put(self._update(epoch, index))
                    if self._stopped.is_set():
                        return
                epoch, first = epoch + 1, 0
                self._plan = self._plan_epoch(epoch)
        except BaseException as error:  # Whatever it is, the consumer must see it rather than wait forever.
            self._queue.put(error)

    def _update(self, epoch: int, index: int) -> Update:
        cuts = self._plan.micro_batches(index)
        ids = self._plan.sentences(index)
        rounds = -(-len(cuts) // self._world_size)
        mine = range(self._rank, rounds * self._world_size, self._world_size)
        return Update(
            epoch=epoch,
            index=index,
            updates_in_epoch=len(self._plan),
            micro_batches=[self._micro_batch(cuts, number) for number in mine],
            num_micro_batches=len(cuts),
            tgt_tokens=self._plan.tgt_tokens(index),
            num_sentences=len(ids),
            sentence_ids=ids,
        )

    def _micro_batch(self, cuts: list[Ids], number: int) -> MicroBatch:
        batch = make_batch(self._store, cuts[number % len(cuts)])
        if self._shape is not None:
            batch = batch.fixed(self._shape)
        return MicroBatch(number, _pinned(batch) if self._pin else batch, counts=number < len(cuts))


def _pinned(batch: Batch) -> Batch:
    """The same batch in page-locked memory, from which a GPU copies without holding up the host."""

    def pin(side: PackedSequences) -> PackedSequences:
        return replace(
            side,
            tokens=side.tokens.pin_memory(),
            positions=side.positions.pin_memory(),
            cu_seqlens=side.cu_seqlens.pin_memory(),
        )

    return replace(batch, src=pin(batch.src), tgt=pin(batch.tgt), labels=batch.labels.pin_memory())
