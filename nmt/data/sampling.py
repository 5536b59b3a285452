"""Subword regularisation: the training text of every epoch, segmented anew at random.

Other segmentations have other lengths, and the plan of an epoch is made of the lengths. So each epoch has a token store
of its own, with the pairs of the prepared corpus in their order. It is made before the epoch begins, while the epoch
before is trained on, in `epochs/epoch-<n>` of the folder of the prepared corpus, and removed when the epoch is over.

Which segmentation a sentence gets is a pure function of the seed, the epoch and the corpus: the text is cut into shards
of fixed size, and each side of a shard has a generator of its own.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import threading
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Literal, assert_never, cast

import numpy as np

from nmt.data.checksums import damaged_files, sha256_of
from nmt.data.folder import link_or_copy
from nmt.data.store import PairStore, PairWriter, Side, SideStore
from nmt.logs import SECONDS_BETWEEN_PLAIN_LINES, say
from nmt.processes.parallel import map_in_order, num_cores
from nmt.recipe import TrainRecipe, UserError
from nmt.storage.sealed import reporting_disk_errors, sync
from nmt.text.segmentation import Ints, SubwordSampler, Tokens, gather, reverse_each
from nmt.text.tokenizer import Tokenizers

_REPORT_FILE = "epoch.json"

# Grows when the same recipe and corpus would be segmented in another way than before.
_FORMAT = 2
_PAIRS_PER_SHARD = 1024

# So many of them, spread over the corpus, tell how much longer sampled text is.
_SHARDS_TO_MEASURE = 4

# Below this many pairs, starting processes takes longer than they save.
_FEW_PAIRS = 20_000
# More processes would only be ready earlier for an epoch that has not come.
_MOST_PROCESSES = 8
# Training has precedence over what is made for its next epoch.
_NICENESS = 10

_SECONDS_TO_WAIT = 1800.0
_SECONDS_BETWEEN_LOOKS = 0.2


class SamplingClosed(Exception):  # noqa: N818 - not an error: nobody wants the store any more
    """Raised to who waits for the store of an epoch when it will not be made any more."""


class SampledEpochs:
    """Makes the training text of each epoch from the prepared corpus in `directory`, one epoch ahead.

    Of several training processes one `builds`; the others wait for the files, on a disk that all of them share. Call
    `close` at the end: it stops the processes in the background.
    """

    def __init__(
        self,
        directory: Path,
        recipe: TrainRecipe,
        *,
        seed: int,
        max_tokens: int,
        workers: int = 0,
        builds: bool = True,
        reverse_target: bool = False,
    ) -> None:
        """`recipe` says how much and which sides are sampled, `seed` is that of the run.

        A sentence that would become longer than `max_tokens` keeps the segmentation of the prepared corpus, which has
        its target sentences in reverse with `reverse_target`. With `workers` 0, as many processes as are of use do the
        work; with 1, a thread of this one. Raises UserError when the prepared corpus is missing or damaged.
        """
        assert recipe.subword_sampling > 0, "without sampling, every epoch has the text of the prepared corpus"
        self._base = PairStore(directory, "train")
        self._directory, self._folder = directory, directory / "epochs"
        self._sides = _sampled_sides(recipe.subword_sampling_sides)
        self._seed = seed
        self._make_sampler = partial(_ShardSampler, directory, recipe.subword_sampling, max_tokens, reverse_target)
        few = len(self._base) < _FEW_PAIRS
        self._workers = workers or (1 if few else min(max(2, num_cores()), _MOST_PROCESSES))
        self._is_builder = builds
        self._builds: dict[int, Future[None]] = {}
        self._closed = threading.Event()
        self._first_kept = 0
        self._share_done = 0.0
        self._origin = {
            "format": _FORMAT,
            "seed": seed,
            "subword_sampling": recipe.subword_sampling,
            "sides": list(self._sides),
            "max_tokens": max_tokens,
            "pairs_per_shard": _PAIRS_PER_SHARD,
            "tokens": {"src": len(self._base.src.tokens), "tgt": len(self._base.tgt.tokens)},
            "tokenizers": Tokenizers.load(directory).digests(),
        }
        if builds:
            self._remove_leftovers()

    def store(self, epoch: int) -> PairStore:
        """The training text of an epoch, once it is made; begins to make that of the next one.

        Raises UserError when it cannot be made, and SamplingClosed when it will not be.
        """
        if self._is_builder:
            build = self._begin(epoch)
            while wait([build], SECONDS_BETWEEN_PLAIN_LINES).not_done:
                say(f"segmenting the training text anew for epoch {epoch}: {self._share_done:.0%} done")
            build.result()
            self._begin(epoch + 1)
        else:
            self._await_files(epoch)
        return PairStore(self._path(epoch), "train")

    def growth(self) -> tuple[float, float]:
        """How many times as many tokens as in the prepared corpus the sides have, about; the same at every start."""
        sampler = self._make_sampler()
        return self._growth(sampler, "src"), self._growth(sampler, "tgt")

    def remove_before(self, epoch: int) -> None:
        """Remove the text of all epochs before this one; only the process that builds does anything."""
        if self._is_builder and epoch > self._first_kept:
            self._first_kept = epoch
            for path in self._folder.glob("epoch-*"):
                if int(path.name.removeprefix("epoch-")) < epoch:
                    shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """Stop what goes on in the background; who waits for a store gets SamplingClosed."""
        self._closed.set()
        wait(self._builds.values())

    # --- Making -------------------------------------------------------------------------------------------------------

    def _begin(self, epoch: int) -> Future[None]:
        """Make the text of an epoch in the background, unless that has begun already."""
        if self._closed.is_set():
            raise SamplingClosed
        if epoch not in self._builds:
            build = self._builds[epoch] = Future[None]()
            threading.Thread(target=self._run, args=(epoch, build), name="segmenting", daemon=True).start()
        return self._builds[epoch]

    def _run(self, epoch: int, build: Future[None]) -> None:
        try:
            self._build(epoch)
        except BaseException as error:  # Whatever it is, who waits for the store must see it.
            build.set_exception(error)
        else:
            build.set_result(None)

    def _build(self, epoch: int) -> None:
        directory = self._path(epoch)
        if self._is_whole(directory):
            return
        unfinished = directory.with_name(f".{directory.name}.unfinished")
        try:
            with _reporting_disk_errors(directory):
                unfinished.mkdir(parents=True)
                self._write(epoch, unfinished)
                unfinished.rename(directory)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def _write(self, epoch: int, directory: Path) -> None:
        dtypes = {side: _side_of(self._base, side).tokens.dtype for side in self._sides}
        make = self._make_sampler if self._workers == 1 else partial(_yielding_to_others, self._make_sampler)
        results = cast("Generator[_SampledShard, None, None]", map_in_order(make, self._shards(epoch), self._workers))
        with PairWriter(directory, "train", dtypes) as writer, closing(results):
            for number, sampled in enumerate(results):
                if self._closed.is_set():
                    raise SamplingClosed
                writer.append(sampled.side, sampled.tokens, sampled.lengths)
                self._share_done = (number // len(self._sides)) * _PAIRS_PER_SHARD / len(self._base)
        for source in self._directory.glob("train.*.npy"):
            if not (directory / source.name).exists():
                link_or_copy(source, directory / source.name)
        for path in directory.iterdir():
            sync(path)
        digests = sha256_of(sorted(directory.glob("*.npy")))
        report = {"made_from": self._origin, "epoch": epoch, "bytes": _sizes(directory), "sha256": digests}
        (directory / _REPORT_FILE).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        sync(directory / _REPORT_FILE)

    def _shards(self, epoch: int) -> Iterator[_Shard]:
        for number, start in enumerate(range(0, len(self._base), _PAIRS_PER_SHARD)):
            for side in self._sides:
                stop = min(start + _PAIRS_PER_SHARD, len(self._base))
                # The last number keeps it apart from all other streams of the run: a 0 there would count for nothing.
                yield _Shard(side, start, stop, (self._seed % (1 << 64), epoch, number, 1 if side == "src" else 2))

    def _growth(self, sampler: _ShardSampler, side: Side) -> float:
        shards = [shard for shard in self._shards(epoch=0) if shard.side == side]  # none of a side that stays
        few = shards[:: math.ceil(len(shards) / _SHARDS_TO_MEASURE) or 1]
        after = sum(len(sampler(shard).tokens) for shard in few)
        before = sum(int(_side_of(self._base, side).lengths[shard.start : shard.stop].sum()) for shard in few)
        return after / before if before else 1.0

    # --- Files --------------------------------------------------------------------------------------------------------

    def _path(self, epoch: int) -> Path:
        return self._folder / f"epoch-{epoch}"

    def _is_whole(self, directory: Path) -> bool:
        """Whether a folder holds the text of the epoch that its name says, made as this run makes it.

        Only sizes are looked at: the bytes went to the disk before the folder took its name.
        """
        report = _read_report(directory)
        told = {"epoch": report.get("epoch"), "sha256": report.get("sha256")}
        expected = {"made_from": self._origin, "bytes": _sizes(directory), **told}
        return report == expected and directory == self._path(report["epoch"])

    def _remove_leftovers(self) -> None:
        """Remove what a killed run left half made or was damaged since, and what was made from something else."""
        with _reporting_disk_errors(self._folder):
            for path in self._folder.glob("*"):
                if not self._is_whole(path) or damaged_files(path, _read_report(path)["sha256"]):
                    shutil.rmtree(path)

    def _await_files(self, epoch: int) -> None:
        directory = self._path(epoch)
        deadline = monotonic() + _SECONDS_TO_WAIT
        while not self._is_whole(directory):
            if self._closed.wait(_SECONDS_BETWEEN_LOOKS):
                raise SamplingClosed
            if monotonic() > deadline:
                raise UserError(
                    f"{directory} has not appeared in {_SECONDS_TO_WAIT / 60:.0f} minutes; the first process makes it, "
                    "on a disk that all machines must share; set run_dir to a folder on such a disk"
                )


# --- What a process does with a shard -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Shard:
    """One side of the pairs `start` to `stop` of the corpus, and the numbers that seed its generator."""

    side: Side
    start: int
    stop: int
    seed: tuple[int, ...]


@dataclass(frozen=True)
class _SampledShard:
    """A shard segmented anew: tokens `(total,)` end to end, lengths `(num_pairs,)`."""

    side: Side
    tokens: Tokens
    lengths: Ints


class _ShardSampler:
    """Segments shards anew."""

    def __init__(self, directory: Path, alpha: float, max_tokens: int, reverse_target: bool) -> None:
        self._base = PairStore(directory, "train")
        tokenizers = Tokenizers.load(directory)
        src = SubwordSampler(tokenizers.src.vocabulary(), alpha)
        tgt = src if tokenizers.joint else SubwordSampler(tokenizers.tgt.vocabulary(), alpha)
        self._samplers: Mapping[Side, SubwordSampler] = {"src": src, "tgt": tgt}
        self._max_tokens = max_tokens
        self._reversed: tuple[Side, ...] = ("tgt",) if reverse_target else ()

    def __call__(self, shard: _Shard) -> _SampledShard:
        random = np.random.Generator(np.random.PCG64(shard.seed))
        tokens, lengths = _side_of(self._base, shard.side).gather(np.arange(shard.start, shard.stop))
        is_reversed = shard.side in self._reversed
        in_order = reverse_each(tokens, lengths) if is_reversed else tokens
        sampled, new_lengths = self._samplers[shard.side].resegment(in_order, lengths, random)
        new_tokens = reverse_each(sampled, new_lengths) if is_reversed else sampled
        both = np.concatenate([new_tokens, tokens])
        starts, new_starts = np.cumsum(lengths) - lengths + len(new_tokens), np.cumsum(new_lengths) - new_lengths
        fits = new_lengths <= self._max_tokens
        chosen_lengths = np.where(fits, new_lengths, lengths)
        return _SampledShard(
            shard.side, gather(both, np.where(fits, new_starts, starts), chosen_lengths), chosen_lengths
        )


def _yielding_to_others(make_sampler: partial[_ShardSampler]) -> _ShardSampler:
    """Makes what does the work in a process of its own."""
    if hasattr(os, "nice"):
        os.nice(_NICENESS)
    return make_sampler()


def _sampled_sides(sides: Literal["both", "src", "tgt"]) -> tuple[Side, ...]:
    match sides:
        case "both":
            return ("src", "tgt")
        case "src" | "tgt":
            return (sides,)
        case _:
            assert_never(sides)


def _side_of(store: PairStore, side: Side) -> SideStore:
    return store.src if side == "src" else store.tgt


# --- The folder of an epoch -------------------------------------------------------------------------------------------


def _read_report(directory: Path) -> dict[str, Any]:
    """What `epoch.json` says; nothing where it cannot be read."""
    try:
        report = json.loads((directory / _REPORT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return report if isinstance(report, dict) else {}


def _sizes(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(directory.glob("*.npy"))}


def _reporting_disk_errors(directory: Path) -> AbstractContextManager[None]:
    return reporting_disk_errors(
        directory,
        needed="subword sampling needs space for three more copies of the tokens",
        alternative="set train.subword_sampling to 0",
    )
