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

from nmt.data.epoch_plan import EpochPlan, Ids, plan_epoch
from nmt.data.mixture import Mixture
from nmt.data.sampling import SampledEpochs
from nmt.data.store import PairStore
from nmt.packing.packed import Batch, BatchShape, PackedSequences
from nmt.recipe import TrainRecipe
from nmt.special_ids import BOS_ID, EOS_ID

# Updates that wait ready: enough to ride out a slow read, little enough to cost no memory worth counting.
_UPDATES_AHEAD = 4

# Other processes may still read an epoch that this one has left, but never so many updates behind it.
_UPDATES_BEHIND = 256


@dataclass(frozen=True)
class Place:
    """Where a run is in its training text: the next update of an epoch, and the pairs that earlier ones have shown."""

    epoch: int = 0
    update: int = 0
    pair: int = 0


@dataclass(frozen=True)
class MicroBatch:
    """The pairs of one forward and backward pass.

    number: place within the update, over all processes
    counts: false where the update has too few pairs for this process: `batch` is then empty and its loss must not
            count; the pass takes place because all processes make equally many
    """

    number: int
    batch: Batch
    counts: bool


@dataclass(frozen=True)
class Update:
    """What one optimiser update learns from, as one process sees it.

    epoch, index:       place in the run: pass over the data, and update within it; both from 0
    updates_in_epoch:   number of updates of this epoch
    micro_batches:      those of this process, as many on every process
    num_micro_batches:  micro-batches of the update over all processes
    tgt_tokens:         target tokens of the update over all processes, end tokens included
    num_sentences:      pairs of the update over all processes
    sentence_ids:       (num_sentences,) places of these pairs in the store, in the order of the epoch
    next:               the place behind this update
    """

    epoch: int
    index: int
    updates_in_epoch: int
    micro_batches: list[MicroBatch]
    num_micro_batches: int
    tgt_tokens: int
    num_sentences: int
    sentence_ids: Ids
    next: Place


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


def empty_batch() -> Batch:
    """One pair of empty sentences, on the CPU."""
    end = PackedSequences.from_lists([[EOS_ID]])
    return Batch(src=end, tgt=PackedSequences.from_lists([[BOS_ID]]), labels=end.tokens)


class TrainingBatches:
    """The updates of a run without end, epoch after epoch, from any position; read ahead by a thread.

    Process `rank` of `world_size` takes micro-batches `rank`, `rank + world_size`, ... of each update, whose number is
    a multiple of `world_size`, or of `multiple`, which `world_size` must divide. Batches lie in CPU memory, pinned when
    `device` is a GPU. An error while reading is raised where the updates are consumed. Use it as a context manager, or
    call `close`, to stop the thread.

    With `epochs`, the text of each epoch is taken from there instead of from `store`; they are closed with the batches.
    No update has more than `src_batch_tokens` source tokens. With a `shape`, every micro-batch is padded to it.
    """

    def __init__(
        self,
        store: PairStore,
        recipe: TrainRecipe,
        *,
        seed: int,
        start: Place | None = None,
        rank: int = 0,
        world_size: int = 1,
        multiple: int | None = None,
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
        self._multiple = multiple or world_size
        assert self._multiple % world_size == 0, "every process must get equally many micro-batches"
        self._pin = device is not None and device.type == "cuda"
        start = start or Place()
        try:
            self._plan = self._plan_epoch(start.epoch, start.pair)
            if start.update and not start.pair:  # from a checkpoint of a version that counted updates alone
                self._plan = self._plan_epoch(start.epoch, int(self._plan.starts[start.update]))
        except BaseException:
            self._close_epochs()
            raise
        self.epoch = start.epoch
        self._epochs_taken = deque([start.epoch], maxlen=_UPDATES_BEHIND)
        self.updates_per_epoch = start.update + len(self._plan)
        self._queue: queue.Queue[Update | BaseException] = queue.Queue(_UPDATES_AHEAD)
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._read_ahead, args=(start.epoch, start.update), name="batches", daemon=True
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

    def _plan_epoch(self, epoch: int, first_pair: int = 0) -> EpochPlan:
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
            multiple=self._multiple,
            first_pair=first_pair,
        )

    def _read_ahead(self, epoch: int, updates_before: int) -> None:
        try:
            while True:
                for index in range(len(self._plan)):
                    self._queue.put(self._update(epoch, index, updates_before))
                    if self._stopped.is_set():
                        return
                epoch, updates_before = epoch + 1, 0
                self._plan = self._plan_epoch(epoch)
        except BaseException as error:  # Whatever it is, the consumer must see it rather than wait forever.
            self._queue.put(error)

    def _update(self, epoch: int, index: int, updates_before: int) -> Update:
        """Update `index` of the plan, before which the epoch has had `updates_before` others."""
        cuts = self._plan.micro_batches(index)
        ids = self._plan.sentences(index)
        is_last = index + 1 == len(self._plan)
        behind = Place(epoch, updates_before + index + 1, int(self._plan.starts[index + 1]))
        return Update(
            epoch=epoch,
            index=updates_before + index,
            updates_in_epoch=updates_before + len(self._plan),
            next=Place(epoch + 1) if is_last else behind,
            micro_batches=[self._micro_batch(cuts, n) for n in range(self._rank, len(cuts), self._world_size)],
            num_micro_batches=sum(len(cut) > 0 for cut in cuts),
            tgt_tokens=self._plan.tgt_tokens(index),
            num_sentences=len(ids),
            sentence_ids=ids,
        )

    def _micro_batch(self, cuts: list[Ids], number: int) -> MicroBatch:
        counts = len(cuts[number]) > 0
        batch = make_batch(self._store, cuts[number]) if counts else empty_batch()
        if self._shape is not None:
            batch = batch.pad_to_shape(self._shape)
        return MicroBatch(number, _pinned(batch) if self._pin else batch, counts)


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
