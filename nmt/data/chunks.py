"""What worker processes do with a chunk of pairs: clean it, and encode it as soon as there is a tokenizer.

Between the two passes a chunk is a frame of bytes: compressed text as long as there is no tokenizer, else tokens. It
goes to disk and to a worker as it is, so that the main process, through which all chunks pass in their order, has next
to nothing to do.
"""

from __future__ import annotations

import hashlib
import io
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress, islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
import zstandard
from numpy.typing import NDArray

from nmt.data.encoding import SentenceEncoder, Sentences
from nmt.recipe import DataRecipe
from nmt.text.clean import Cleaner
from nmt.text.tokenizer import Tokenizers

PAIRS_PER_CHUNK = 4096
_COMPRESSION_LEVEL = 1
_FRAME_HEADER = struct.Struct("<QQQ")  # Place of the corpus, number of pairs, number of bytes.

Pair = tuple[str, str]


@dataclass(frozen=True)
class Frame:
    """The pairs of a chunk on their way from one pass to the other.

    corpus:    place in the recipe of the corpus that all of them are from
    num_pairs: how many they are
    content:   compressed lines, all source sentences before all target sentences; or the tokens of both sides
    """

    corpus: int
    num_pairs: int
    content: bytes


@dataclass(frozen=True)
class CleanedChunk:
    """A chunk after cleaning.

    num_read: pairs that came in
    frame:    those of them that were not dropped
    hashes:   (frame.num_pairs,) uint64, equal for equal pairs
    drops:    how many pairs were dropped for each reason
    """

    num_read: int
    frame: Frame
    hashes: NDArray[np.uint64]
    drops: Counter[str]


@dataclass(frozen=True)
class EncodedChunk:
    """A chunk as it stands in the store, without pairs that were dropped for their number of tokens."""

    corpus: int
    src: Sentences
    tgt: Sentences
    drops: Counter[str]


def in_chunks(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    """The pairs in lists of `PAIRS_PER_CHUNK`, the last one shorter."""
    remaining = iter(pairs)
    while chunk := list(islice(remaining, PAIRS_PER_CHUNK)):
        yield chunk


class ChunkCleaner:
    """Normalises and filters a chunk of pairs of one corpus; with a folder of tokenizers, encodes it too."""

    def __init__(self, data: DataRecipe, src_lang: str, tgt_lang: str, tokenizer_directory: Path | None = None) -> None:
        self._cleaner = Cleaner(data, src_lang, tgt_lang)
        self._hashed = data.drop_duplicates
        self._encode = None if tokenizer_directory is None else PairEncoder(Tokenizers.load(tokenizer_directory))

    def __call__(self, chunk: tuple[int, Sequence[Pair]]) -> CleanedChunk:
        """Clean a chunk: the place of its corpus in the recipe, and its pairs."""
        corpus, pairs = chunk
        drops: Counter[str] = Counter()
        kept: list[Pair] = []
        for pair in pairs:
            cleaned = self._cleaner.clean(*pair)
            if isinstance(cleaned, str):
                drops[cleaned] += 1
            else:
                kept.append(cleaned)
        hashes = b"".join(map(_hash, kept)) if self._hashed else b""
        content = _compress(kept) if self._encode is None else _pack(*self._encode(kept))
        frame = Frame(corpus, len(kept), content)
        return CleanedChunk(len(pairs), frame, np.frombuffer(hashes, dtype="<u8").astype(np.uint64), drops)


class PairEncoder:
    """Turns both sides of normalised pairs into token ids."""

    def __init__(self, tokenizers: Tokenizers) -> None:
        self._src = SentenceEncoder(tokenizers.src)
        self._tgt = self._src if tokenizers.joint else SentenceEncoder(tokenizers.tgt)

    def __call__(self, pairs: Sequence[Pair]) -> tuple[Sentences, Sentences]:
        """Source and target sentences."""
        return self._src([src for src, _ in pairs]), self._tgt([tgt for _, tgt in pairs])


@dataclass(frozen=True)
class StoredForm:
    """What becomes of encoded pairs in the store.

    min_tokens, max_tokens: those that a sentence of either side must have for its pair to be kept
    tags:           for the place of a corpus in the recipe, the token that is put before its source sentences. It
                    counts as a token of the sentence, but a sentence that has no other is empty
    reverse_target: whether the target sentences are written backwards
    """

    min_tokens: int
    max_tokens: int
    tags: Mapping[int, int]
    reverse_target: bool = False

    def __call__(self, corpus: int, src: Sentences, tgt: Sentences) -> EncodedChunk:
        """The chunk of encoded pairs, all from the corpus at that place of the recipe."""
        tag = self.tags.get(corpus)
        empty = np.minimum(src.lengths, tgt.lengths) < self.min_tokens
        too_long = np.maximum(src.lengths + (tag is not None), tgt.lengths) > self.max_tokens
        fits = ~(empty | too_long)
        drops = {"empty": int(empty.sum()), "too many tokens": int((too_long & ~empty).sum())}
        src, tgt = src.select(fits), tgt.select(fits)
        return EncodedChunk(
            corpus,
            src if tag is None else src.tagged(tag),
            tgt.reversed() if self.reverse_target else tgt,
            Counter(drops),
        )


class ChunkEncoder:
    """Gives frames of text the form that they have in the store."""

    def __init__(self, tokenizer_directory: Path, form: StoredForm) -> None:
        self._encode = PairEncoder(Tokenizers.load(tokenizer_directory))
        self._form = form

    def __call__(self, chunk: tuple[Frame, NDArray[np.bool_]]) -> EncodedChunk:
        """Encode those pairs of a frame that a mask `(num_pairs,)` keeps."""
        frame, mask = chunk
        return self._form(frame.corpus, *self._encode(list(compress(decompress_pairs(frame), mask))))


def write_frame(file: BinaryIO, frame: Frame) -> None:
    """Append a frame to a file of frames."""
    file.write(_FRAME_HEADER.pack(frame.corpus, frame.num_pairs, len(frame.content)))
    file.write(frame.content)


def read_frames(path: Path) -> Iterator[Frame]:
    """The frames of a file in their order, one at a time in memory."""
    with path.open("rb") as file:
        while header := file.read(_FRAME_HEADER.size):
            corpus, num_pairs, size = _FRAME_HEADER.unpack(header)
            yield Frame(corpus, num_pairs, file.read(size))


def decompress_pairs(frame: Frame) -> list[Pair]:
    """The pairs of a frame."""
    lines = zstandard.decompress(frame.content).decode().split("\n")[:-1]
    middle = len(lines) // 2
    return list(zip(lines[:middle], lines[middle:], strict=True))


def unpack(frame: Frame) -> tuple[Sentences, Sentences]:
    """The source and the target sentences of a frame that holds tokens."""
    read = partial(np.load, io.BytesIO(frame.content), allow_pickle=False)
    return Sentences(read(), read(), read()), Sentences(read(), read(), read())


def _pack(*sides: Sentences) -> bytes:
    content = io.BytesIO()
    for side in sides:
        for array in (side.tokens, side.lengths, side.words):
            np.save(content, array, allow_pickle=False)
    return content.getvalue()


def _compress(pairs: Sequence[Pair]) -> bytes:
    # Normalised text holds no line feed, so that one can mark the end of each sentence.
    text = "".join(f"{pair[side]}\n" for side in (0, 1) for pair in pairs)
    return zstandard.compress(text.encode(), _COMPRESSION_LEVEL)


def _hash(pair: Pair) -> bytes:
    return hashlib.blake2b("\n".join(pair).encode(), digest_size=8).digest()
