"""Subword regularization: a random segmentation of the training text for every epoch.

The plan of an epoch depends on sentence lengths, which change with the segmentation, so each epoch has its own token
store, with the pairs in the order of the prepared corpus. The store is built during the previous epoch, in
`epochs/epoch-<n>` of the directory of the prepared corpus, and removed after its epoch. If that directory is a symbolic
link, whose target other runs may share, `epochs` is next to the link.

Segmentations are a pure function of the seed, the epoch, the corpus and the sampling options: the text is divided into
shards of fixed size, and each side of a shard has its own random generator.
"""

from __future__ import annotations

import math
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from nmt.data.store import REPORT_FILE, PairStore, PairWriter, Part, Side
from nmt.errors import UserError
from nmt.logs import SECONDS_BETWEEN_PLAIN_LINES, say
from nmt.processes.cores import num_cores
from nmt.processes.parallel import map_in_order
from nmt.recipe import TrainRecipe
from nmt.storage.checksums import damaged_files, write_report
from nmt.storage.run_folder import read_json_object
from nmt.storage.sealed import link_or_copy, new_directory, reporting_disk_errors
from nmt.text.segmentation import Ints, SubwordSampler, Tokens, gather, reverse_each
from nmt.text.tokenizer import Tokenizer, Tokenizers

_REPORT_FILE = "epoch.json"

# Increment when the same recipe and corpus give different segmentations.
_FORMAT = 2
_PAIRS_PER_SHARD = 1024

# Number of shards, spread over the corpus, for estimating the growth of sampled text.
_SHARDS_TO_MEASURE = 4

# For fewer pairs, starting processes costs more time than it saves.
_MIN_PAIRS_FOR_PROCESSES = 20_000
# Training on an epoch takes longer than building its text, so more processes do not help.
_MAX_PROCESSES = 8
# Training has priority over the text of the next epoch.
_NICENESS = 10

_TIMEOUT_SECONDS = 1800.0
_POLL_SECONDS = 0.2


class SamplingClosed(Exception):  # noqa: N818 - not an error
    """Raised in callers that wait for an epoch during or after `close`."""


class SampledEpochs:
    """Builds the training text of each epoch from the prepared corpus in `directory`, one epoch ahead.

    One rank builds; the others wait for the files on a shared file system. `close` stops the background processes.
    """

    def __init__(
        self,
        directory: Path,
        recipe: TrainRecipe,
        *,
        seed: int,
        max_tokens: int,
        workers: int = 0,
        is_builder: bool = True,
        reverse_target: bool = False,
    ) -> None:
        """Open the prepared corpus; raise UserError if it is missing or damaged.

        max_tokens:     longer sampled sentences keep the segmentation of the prepared corpus; but if its sources are
                        truncated and have no context, longer sampled sources are truncated
        workers:        number of processes; 0 selects it automatically, 1 uses a thread instead
        is_builder:     whether this rank builds the text
        reverse_target: whether the prepared corpus has reversed target sentences
        """
        assert recipe.subword_sampling > 0, "without sampling, epochs use the prepared corpus"
        self._base = PairStore(directory, "train")
        self._directory = directory
        self._folder = (directory.parent if directory.is_symlink() else directory) / "epochs"
        self._inode = self._find_inode()
        sides = recipe.subword_sampling_sides
        self._sides: tuple[Side, ...] = ("src", "tgt") if sides == "both" else (sides,)
        self._seed = seed
        report = read_json_object(directory / REPORT_FILE)
        data = report.get("recipe", {}).get("data", {})  # no `context` if 0, no `long_sources` if "drop"
        truncates = "long_sources" in data and "context" not in data  # context is dropped before a source is truncated
        self._make_sampler = partial(
            _ShardSampler, directory, recipe.subword_sampling, self._sides, max_tokens, reverse_target, truncates
        )
        is_small = len(self._base) < _MIN_PAIRS_FOR_PROCESSES
        self._workers = workers or (1 if is_small else min(max(2, num_cores()), _MAX_PROCESSES))
        self._is_builder = is_builder
        self._builds: dict[int, Future[None]] = {}
        self._closed = threading.Event()
        self._first_kept = 0
        self._fraction_done = 0.0
        self._key: dict[str, Any] = {
            "format": _FORMAT,
            "seed": seed,
            "subword_sampling": recipe.subword_sampling,
            "sides": list(self._sides),
            "max_tokens": max_tokens,
            "pairs_per_shard": _PAIRS_PER_SHARD,
            "text": report.get("sha256") or _sizes(directory),
            "tokenizers": Tokenizers.load(directory).digests(),
        }
        if truncates:
            self._key["truncated"] = "src"
        if is_builder:
            self._remove_leftovers()

    def store(self, epoch: int) -> PairStore:
        """Wait for the training text of an epoch, and start building the next one.

        Raises UserError if the build fails, and SamplingClosed after `close`.
        """
        if self._is_builder:
            build = self._start_build(epoch)
            while wait([build], SECONDS_BETWEEN_PLAIN_LINES).not_done:
                say(f"sampling the training text of epoch {epoch + 1}: {self._fraction_done:.0%} done")
            build.result()
            self._start_build(epoch + 1)
        else:
            self._await_files(epoch)
        return PairStore(self._path(epoch), "train")

    def growth(self) -> tuple[float, float]:
        """Estimate the number of tokens of sampled text relative to the prepared corpus, (src, tgt); deterministic."""
        sampler = self._make_sampler()
        return self._growth(sampler, "src"), self._growth(sampler, "tgt")

    def remove_before(self, epoch: int) -> None:
        """Remove the text of earlier epochs; has no effect on ranks other than the builder."""
        if self._is_builder and epoch > self._first_kept:
            self._first_kept = epoch
            for path in self._folder.glob("epoch-*"):
                if int(path.name.removeprefix("epoch-")) < epoch:
                    shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """Stop background work; waiting callers get SamplingClosed."""
        self._closed.set()
        wait(self._builds.values())

    # --- Build --------------------------------------------------------------------------------------------------------

    def _start_build(self, epoch: int) -> Future[None]:
        """Build the text of an epoch in the background, unless the build has been started."""
        if self._closed.is_set():
            raise SamplingClosed
        if epoch not in self._builds:
            build = self._builds[epoch] = Future[None]()
            threading.Thread(target=self._run, args=(epoch, build), name="segmenting", daemon=True).start()
        return self._builds[epoch]

    def _run(self, epoch: int, build: Future[None]) -> None:
        try:
            self._build(epoch)
        except BaseException as error:  # raised in the waiting caller
            build.set_exception(error)
        else:
            build.set_result(None)

    def _build(self, epoch: int) -> None:
        directory = self._path(epoch)
        if self._is_complete(directory):
            return
        with _reporting_disk_errors(directory), new_directory(directory) as temporary:
            self._write(epoch, temporary)
            if self._find_inode() != self._inode:
                raise UserError(
                    f"{self._directory} was replaced by another command; a run needs its text until it ends; rerun to "
                    "prepare the text again and resume"
                )

    def _write(self, epoch: int, directory: Path) -> None:
        dtypes: dict[Part, np.dtype[Any]] = {side: self._base.side(side).tokens.dtype for side in self._sides}
        make_sampler = self._make_sampler if self._workers == 1 else partial(_with_low_priority, self._make_sampler)
        results = map_in_order(make_sampler, self._shards(epoch), self._workers)
        with PairWriter(directory, "train", dtypes) as writer, closing(results):
            for number, sampled in enumerate(results):
                if self._closed.is_set():
                    raise SamplingClosed
                writer.append(*sampled)
                self._fraction_done = (number // len(self._sides)) * _PAIRS_PER_SHARD / len(self._base)
        for source in self._directory.glob("train.*.npy"):
            if not (directory / source.name).exists():
                link_or_copy(source, directory / source.name)
        report = {"made_from": self._key, "epoch": epoch, "bytes": _sizes(directory)}
        write_report(directory, _REPORT_FILE, report, silent=True)  # the training bar is shown at the same time

    def _shards(self, epoch: int) -> Iterator[_Shard]:
        for number, start in enumerate(range(0, len(self._base), _PAIRS_PER_SHARD)):
            stop = min(start + _PAIRS_PER_SHARD, len(self._base))
            for side in self._sides:
                # The last number separates this stream from the others of the run; NumPy ignores trailing zeros.
                stream = 1 if side == "src" else 2
                yield _Shard(side, start, stop, (self._seed % (1 << 64), epoch, number, stream))

    def _growth(self, sampler: _ShardSampler, side: Side) -> float:
        if side not in self._sides:
            return 1.0
        shards = [shard for shard in self._shards(epoch=0) if shard.side == side]
        sample = shards[:: math.ceil(len(shards) / _SHARDS_TO_MEASURE)]
        after = sum(len(sampler(shard)[1]) for shard in sample)
        before = sum(int(self._base.side(side).lengths[shard.start : shard.stop].sum()) for shard in sample)
        return after / before if before else 1.0

    # --- Files --------------------------------------------------------------------------------------------------------

    def _path(self, epoch: int) -> Path:
        return self._folder / f"epoch-{epoch}"

    def _find_inode(self) -> int:
        """Return the inode number of a file of the prepared corpus; preparing different text replaces the file."""
        return (self._directory / "train.src.tokens.npy").stat().st_ino

    def _is_complete(self, directory: Path) -> bool:
        """Return whether a directory has the complete text of its epoch, built with the options of this run.

        Compares sizes only, because files are synced before the directory gets its name.
        """
        report = read_json_object(directory / _REPORT_FILE)
        if report.keys() != {"made_from", "epoch", "bytes", "sha256"} or directory != self._path(report["epoch"]):
            return False
        try:
            return bool(report["made_from"] == self._key and report["bytes"] == _sizes(directory))
        except FileNotFoundError:  # rank 0 is removing the directory
            return False

    def _remove_leftovers(self) -> None:
        """Remove text that is incomplete, damaged or built from other data or options."""
        with _reporting_disk_errors(self._folder):
            for path in self._folder.glob("*/"):  # not files, such as .DS_Store
                report = read_json_object(path / _REPORT_FILE)
                if not self._is_complete(path) or damaged_files(path, report["sha256"]):
                    shutil.rmtree(path)

    def _await_files(self, epoch: int) -> None:
        directory = self._path(epoch)
        deadline = monotonic() + _TIMEOUT_SECONDS
        num_bytes = 0
        while not self._is_complete(directory):
            if self._closed.wait(_POLL_SECONDS):
                raise SamplingClosed
            before, num_bytes = num_bytes, self._bytes_written(directory)
            if num_bytes != before:  # rank 0 is building it
                deadline = monotonic() + _TIMEOUT_SECONDS
            elif monotonic() > deadline:
                raise UserError(
                    f"{directory} did not appear within {_TIMEOUT_SECONDS / 60:.0f} minutes; rank 0 builds it "
                    "on a file system that all machines must share; set run_dir to a shared directory"
                )

    def _bytes_written(self, directory: Path) -> int:
        """Return the size of the unfinished text of an epoch; it stays constant after the builder has been killed."""
        try:
            return sum(path.stat().st_size for path in self._folder.glob(f".{directory.name}.part-*/*"))
        except FileNotFoundError:  # rank 0 is giving the directory its final name
            return 0


# --- Shards ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Shard:
    """One side of the pairs `start` to `stop` of the corpus, and the seed of its generator."""

    side: Side
    start: int
    stop: int
    seed: tuple[int, ...]


class _ShardSampler:
    """Resegments shards: returns their side, concatenated tokens `(total,)` and lengths `(num_pairs,)`."""

    def __init__(
        self,
        directory: Path,
        alpha: float,
        sides: tuple[Side, ...],
        max_tokens: int,
        reverse_target: bool,
        truncates: bool,
    ) -> None:
        self._base = PairStore(directory, "train")
        tokenizers = Tokenizers.load(directory)
        by_side: Mapping[Side, Tokenizer] = {"src": tokenizers.src, "tgt": tokenizers.tgt}
        distinct = {by_side[side] for side in sides}
        samplers = {tokenizer: SubwordSampler(*tokenizer.vocabulary(), alpha) for tokenizer in distinct}
        self._samplers = {side: samplers[by_side[side]] for side in sides}
        self._max_tokens = max_tokens
        self._reverse_target = reverse_target
        self._truncates = truncates

    def __call__(self, shard: _Shard) -> tuple[Side, Tokens, Ints]:
        random = np.random.Generator(np.random.PCG64(shard.seed))
        tokens, lengths = self._base.side(shard.side).gather(np.arange(shard.start, shard.stop))
        is_reversed = self._reverse_target and shard.side == "tgt"
        in_order = reverse_each(tokens, lengths) if is_reversed else tokens
        sampled, sampled_lengths = self._samplers[shard.side].resegment(in_order, lengths, random)
        if is_reversed:
            sampled = reverse_each(sampled, sampled_lengths)
        # Select each sentence from both segmentations.
        both = np.concatenate([sampled, tokens])
        sampled_starts = np.cumsum(sampled_lengths) - sampled_lengths
        starts = np.cumsum(lengths) - lengths + len(sampled)
        if self._truncates and shard.side == "src":
            sampled_lengths = np.minimum(sampled_lengths, self._max_tokens)
        fits = sampled_lengths <= self._max_tokens
        starts = np.where(fits, sampled_starts, starts)
        lengths = np.where(fits, sampled_lengths, lengths)
        return shard.side, gather(both, starts, lengths), lengths


def _with_low_priority(make_sampler: partial[_ShardSampler]) -> _ShardSampler:
    """Lower the priority of a worker process and make its sampler."""
    os.nice(_NICENESS)
    return make_sampler()


# --- Files of an epoch ------------------------------------------------------------------------------------------------


def _sizes(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(directory.glob("*.npy"))}


def _reporting_disk_errors(directory: Path) -> AbstractContextManager[None]:
    return reporting_disk_errors(
        directory,
        needed="subword sampling needs space for three more copies of the tokens",
        alternative="set train.subword_sampling to 0",
    )
