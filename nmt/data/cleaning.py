"""The clean stage: normalize and filter training text, find duplicates, and write the pairs to a temporary file.

Workers clean and compress chunks of pairs. The main process writes all chunks in order, which is mostly copying bytes.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, compress, pairwise, repeat
from pathlib import Path
from typing import BinaryIO

import numpy as np
import zstandard
from numpy.typing import NDArray

from nmt.data.mixture import Mixture
from nmt.logs import progress
from nmt.processes.parallel import map_in_order
from nmt.recipe import DataRecipe
from nmt.text.clean import Cleaner, DropReason, Pair
from nmt.text.context import clean_joined
from nmt.text.duplicates import DuplicateFinder

_COMPRESSION_LEVEL = 1
_HEADER = struct.Struct("<QQQ")  # corpus index, number of pairs, number of bytes


@dataclass(frozen=True)
class Frame:
    """A chunk of cleaned pairs in the temporary file.

    corpus:  index of the corpus in the recipe
    content: compressed lines: all sources, then all targets
    """

    corpus: int
    num_pairs: int
    content: bytes

    @classmethod
    def compress(cls, corpus: int, pairs: Sequence[Pair]) -> Frame:
        """Compress normalized pairs."""
        text = "".join(f"{pair[side]}\n" for side in (0, 1) for pair in pairs)
        return cls(corpus, len(pairs), zstandard.compress(text.encode(), _COMPRESSION_LEVEL))

    def select(self, mask: NDArray[np.bool_]) -> Iterator[Pair]:
        """Yield the pairs where `mask` `(num_pairs,)` is True."""
        lines = zstandard.decompress(self.content).decode().split("\n")[:-1]
        return compress(zip(lines[: self.num_pairs], lines[self.num_pairs :], strict=True), mask)

    def write(self, file: BinaryIO) -> None:
        """Append the frame to a file."""
        file.write(_HEADER.pack(self.corpus, self.num_pairs, len(self.content)))
        file.write(self.content)


@dataclass(frozen=True)
class CleanText:
    """Cleaned training text in a temporary file.

    path:     file of frames
    num_read: pairs read from each corpus
    num_kept: pairs of each corpus left after cleaning and removing duplicates
    drops:    dropped pairs per reason
    kept:     for each pair in the file, False if it is a duplicate, `(num_pairs,)`
    """

    path: Path
    num_read: list[int]
    num_kept: list[int]
    drops: Counter[str]
    kept: NDArray[np.bool_]

    def frames(self) -> Iterator[tuple[Frame, NDArray[np.bool_]]]:
        """Yield each frame with the mask `(num_pairs,)` of its kept pairs."""
        start = 0
        with self.path.open("rb") as file:
            while header := file.read(_HEADER.size):
                corpus, num_pairs, size = _HEADER.unpack(header)
                yield Frame(corpus, num_pairs, file.read(size)), self.kept[start : start + num_pairs]
                start += num_pairs

    def sample(self, num_pairs: int, mixture: Mixture) -> Iterator[Pair]:
        """Yield pairs evenly spaced over an epoch of the mixture, which may repeat or skip pairs."""
        starts = list(accumulate(mixture.pairs_per_epoch, initial=0))
        epoch_pairs = starts.pop()
        seen = [0] * len(mixture.sizes)
        for frame, mask in self.frames():
            index = frame.corpus
            start, shown, size = starts[index], mixture.pairs_per_epoch[index], mixture.sizes[index]
            for pair in frame.select(mask):
                # The pair occupies [start + seen * shown / size, start + (seen + 1) * shown / size) of the epoch.
                first = (start * size + seen[index] * shown) * num_pairs // (size * epoch_pairs)
                seen[index] += 1
                end = (start * size + seen[index] * shown) * num_pairs // (size * epoch_pairs)
                yield from repeat(pair, end - first)


@dataclass(frozen=True)
class CleanChunk:
    """A cleaned chunk.

    num_read: pairs before cleaning
    hashes:   (frame.num_pairs,) uint64, equal for equal pairs; empty if duplicates are kept
    drops:    dropped pairs per reason
    """

    num_read: int
    frame: Frame
    hashes: NDArray[np.uint64]
    drops: Counter[str]


class ChunkCleaner:
    """Cleans chunks of pairs in a worker process."""

    def __init__(self, data: DataRecipe, languages: Sequence[tuple[str, str]]) -> None:
        """languages: source and target language of each corpus"""
        self._clean = [_cleaning(data, *pair) for pair in languages]
        self._drop_duplicates = data.drop_duplicates

    def __call__(self, chunk: tuple[int, Sequence[Pair]]) -> CleanChunk:
        """Clean a chunk, given as the index of its corpus and its pairs."""
        corpus, pairs = chunk
        clean_pair = self._clean[corpus]
        drops: Counter[str] = Counter()
        clean: list[Pair] = []
        for pair in pairs:
            result = clean_pair(*pair)
            if isinstance(result, str):
                drops[result] += 1
            else:
                clean.append(result)
        hashed = b"".join(map(_hash, clean)) if self._drop_duplicates else b""
        hashes = np.frombuffer(hashed, dtype="<u8").astype(np.uint64)
        return CleanChunk(len(pairs), Frame.compress(corpus, clean), hashes, drops)


def _cleaning(data: DataRecipe, src_lang: str, tgt_lang: str) -> Callable[[str, str], Pair | DropReason]:
    """Return the function that cleans the pairs of a corpus."""
    clean = Cleaner(data, src_lang, tgt_lang).clean
    if not data.context:
        return clean
    # A pair is cleaned again as context of later pairs. The cache has entries for it, its context and the next pair.
    return partial(clean_joined, lru_cache(data.context + 2)(clean), data.context_options)


def clean_corpora(
    chunks: Iterable[tuple[int, Sequence[Pair]]],
    make_cleaner: Callable[[], ChunkCleaner],
    directory: Path,
    *,
    num_corpora: int,
    drop_duplicates: bool,
    workers: int,
    total: int | None,
) -> CleanText:
    """Clean the chunks of all corpora and write them to a file in `directory`.

    total: number of pairs if known, for the progress display
    """
    path = directory / "cleaned.bin"
    num_read, num_clean = [0] * num_corpora, [0] * num_corpora
    drops: Counter[str] = Counter()
    with (
        path.open("wb") as file,
        DuplicateFinder(directory) as duplicates,
        progress("cleaning", total, "pairs") as bar,
    ):
        for chunk in map_in_order(make_cleaner, chunks, workers):
            chunk.frame.write(file)
            duplicates.add(chunk.hashes)
            drops.update(chunk.drops)
            num_read[chunk.frame.corpus] += chunk.num_read
            num_clean[chunk.frame.corpus] += chunk.frame.num_pairs
            bar.advance(chunk.num_read)
        kept = duplicates.first_occurrences() if drop_duplicates else np.ones(sum(num_clean), np.bool_)
    ends = accumulate(num_clean, initial=0)
    num_kept = [int(np.count_nonzero(kept[start:stop])) for start, stop in pairwise(ends)]
    drops["duplicate"] = sum(num_clean) - sum(num_kept)
    return CleanText(path, num_read, num_kept, drops, kept)


def _hash(pair: Pair) -> bytes:
    return hashlib.blake2b("\n".join(pair).encode(), digest_size=8).digest()
