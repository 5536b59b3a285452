"""What worker processes do with a chunk of pairs: first clean it, later, when there is a tokenizer, encode it.

Between the two a chunk is a compressed frame of bytes. It goes to disk and to a worker as it is, so that the main
process, through which all chunks pass in their order, has next to nothing to do.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress, islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import zstandard
from numpy.typing import NDArray

from nmt.data.clean import Cleaner
from nmt.data.store import token_dtype
from nmt.data.tokenizer import Tokenizer, Tokenizers
from nmt.recipe import DataRecipe

PAIRS_PER_CHUNK = 4096
_COMPRESSION_LEVEL = 1
_FRAME_HEADER = struct.Struct("<QQQ")  # Place of the corpus, number of pairs, number of bytes.

Pair = tuple[str, str]
EncodingDropReason = Literal["empty", "too many tokens"]


@dataclass(frozen=True)
class Frame:
    """The pairs of a chunk on their way from one pass to the other.

    corpus:    place in the recipe of the corpus that all of them are from
    num_pairs: how many they are
    text:      compressed lines, all source sentences before all target sentences
    """

    corpus: int
    num_pairs: int
    text: bytes


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
class EncodedSide:
    """One side of an encoded chunk: tokens `(total,)` end to end, lengths `(num_pairs,)`, and its number of words."""

    tokens: NDArray[np.unsignedinteger[Any]]
    lengths: NDArray[np.int32]
    num_words: int


@dataclass(frozen=True)
class EncodedChunk:
    """A chunk as token ids, without the pairs of its corpus that were dropped for their number of tokens."""

    corpus: int
    src: EncodedSide
    tgt: EncodedSide
    drops: Counter[str]


def in_chunks(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    """The pairs in lists of `PAIRS_PER_CHUNK`, the last one shorter."""
    remaining = iter(pairs)
    while chunk := list(islice(remaining, PAIRS_PER_CHUNK)):
        yield chunk


class ChunkCleaner:
    """Normalises and filters a chunk of pairs of one corpus."""

    def __init__(self, data: DataRecipe, src_lang: str, tgt_lang: str) -> None:
        self._cleaner = Cleaner(data, src_lang, tgt_lang)
        self._hashed = data.drop_duplicates

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
        frame = Frame(corpus, len(kept), _compress(kept))
        return CleanedChunk(len(pairs), frame, np.frombuffer(hashes, dtype="<u8").astype(np.uint64), drops)


class ChunkEncoder:
    """Turns a chunk of normalised pairs into token ids; keeps pairs of `min_tokens` to `max_tokens` on both sides.

    `tags` gives, for the place of a corpus in the recipe, the token that is put before its source sentences. It counts
    as a token of the sentence, but a sentence that has no other is empty.
    With `reverse_target` the target sentences are written backwards.
    """

    def __init__(
        self,
        tokenizer_directory: Path,
        min_tokens: int,
        max_tokens: int,
        tags: Mapping[int, int],
        reverse_target: bool = False,
    ) -> None:
        self._tokenizers = Tokenizers.load(tokenizer_directory)
        self._min_tokens, self._max_tokens = min_tokens, max_tokens
        self._tags = tags
        self._reverse_target = reverse_target

    def __call__(self, chunk: tuple[Frame, NDArray[np.bool_]]) -> EncodedChunk:
        """Encode those pairs of a frame that a mask `(num_pairs,)` keeps."""
        frame, mask = chunk
        return self.encode(list(compress(decompress_pairs(frame), mask)), frame.corpus)

    def encode(self, pairs: Sequence[Pair], corpus: int) -> EncodedChunk:
        """Encode pairs of normalised text, all from the corpus at that place of the recipe."""
        src, tgt = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        src_ids, tgt_ids = self._tokenizers.src.encode_batch(src), self._tokenizers.tgt.encode_batch(tgt)
        # The id itself: before the text of a tag, SentencePiece would write a space.
        tag = [self._tags[corpus]] if corpus in self._tags else []
        reasons = [self._reason_to_drop(*ids, num_tags=len(tag)) for ids in zip(src_ids, tgt_ids, strict=True)]
        fits = [reason is None for reason in reasons]
        step = -1 if self._reverse_target else 1
        return EncodedChunk(
            corpus,
            _encoded_side(self._tokenizers.src, src, [tag + ids for ids in src_ids], fits),
            _encoded_side(self._tokenizers.tgt, tgt, [ids[::step] for ids in tgt_ids], fits),
            Counter(reason for reason in reasons if reason is not None),
        )

    def _reason_to_drop(self, src: Sequence[int], tgt: Sequence[int], num_tags: int) -> EncodingDropReason | None:
        if min(len(src), len(tgt)) < self._min_tokens:
            return "empty"
        return "too many tokens" if max(len(src) + num_tags, len(tgt)) > self._max_tokens else None


def write_frame(file: BinaryIO, frame: Frame) -> None:
    """Append a frame to a file of frames."""
    file.write(_FRAME_HEADER.pack(frame.corpus, frame.num_pairs, len(frame.text)))
    file.write(frame.text)


def read_frames(path: Path) -> Iterator[Frame]:
    """The frames of a file in their order, one at a time in memory."""
    with path.open("rb") as file:
        while header := file.read(_FRAME_HEADER.size):
            corpus, num_pairs, size = _FRAME_HEADER.unpack(header)
            yield Frame(corpus, num_pairs, file.read(size))


def decompress_pairs(frame: Frame) -> list[Pair]:
    """The pairs of a frame."""
    lines = zstandard.decompress(frame.text).decode().split("\n")[:-1]
    middle = len(lines) // 2
    return list(zip(lines[:middle], lines[middle:], strict=True))


def _compress(pairs: Sequence[Pair]) -> bytes:
    # Normalised text holds no line feed, so that one can mark the end of each sentence.
    text = "".join(f"{pair[side]}\n" for side in (0, 1) for pair in pairs)
    return zstandard.compress(text.encode(), _COMPRESSION_LEVEL)


def _hash(pair: Pair) -> bytes:
    return hashlib.blake2b("\n".join(pair).encode(), digest_size=8).digest()


def _encoded_side(tokenizer: Tokenizer, texts: list[str], ids: list[list[int]], fits: list[bool]) -> EncodedSide:
    kept = list(compress(ids, fits))
    lengths = np.fromiter(map(len, kept), dtype=np.int32, count=len(kept))
    flat = chain.from_iterable(kept)
    tokens = np.fromiter(flat, dtype=token_dtype(tokenizer.vocab_size), count=int(lengths.sum()))
    num_words = sum(len(text.split()) for text in compress(texts, fits))
    return EncodedSide(tokens, lengths, num_words)
