"""The encode stage: encode normalized pairs as token ids, with a cache of segmented words.

In the BPE models that nmt trains, no piece crosses a space, and the merges in a word do not depend on other words.
The ids of a sentence are therefore exactly those of its words. With other models, whole sentences are encoded: unigram
models add scores along the sentence, so rounding may change the segmentation of a word.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nmt.data.cleaning import Frame
from nmt.data.context import encode_joined, fit_context
from nmt.data.store import Sentences, token_dtype
from nmt.text.clean import Pair
from nmt.text.context import Separators
from nmt.text.segmentation import Tokens, gather
from nmt.text.subword_file import SPACE
from nmt.text.tokenizer import Tokenizer, Tokenizers

# About 30 MB including the words.
_MAX_CACHED_TOKENS = 1 << 19


class SentenceEncoder:
    """Encodes normalized sentences as `Tokenizer.encode` does, with a bounded cache of words."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._by_words = tokenizer.encodes_by_words()
        self._cache = _WordCache(tokenizer)

    def __call__(self, texts: Sequence[str]) -> Sentences:
        """Encode normalized texts."""
        num_spaces = np.fromiter((text.count(" ") for text in texts), np.int32, len(texts))
        num_words = num_spaces + np.fromiter(map(bool, texts), np.bool_, len(texts))
        joined = " ".join(texts)
        # SentencePiece treats a literal SPACE character as a space and may drop it at the end of a text.
        if not self._by_words or SPACE in joined or not texts:
            return Sentences(*_encode(self._tokenizer, texts), num_words)
        if self._cache.num_tokens > _MAX_CACHED_TOKENS:
            self._cache = _WordCache(self._tokenizer)
        tokens, word_lengths = self._cache.encode(joined.split(" "))  # an empty text becomes one empty word
        starts = np.cumsum(num_spaces + 1) - (num_spaces + 1)
        return Sentences(tokens, np.add.reduceat(word_lengths, starts, dtype=np.int32), num_words)


class _WordCache:
    """Concatenated token ids of the words seen so far."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._indices: defaultdict[str, int] = defaultdict(count().__next__)  # a new word gets the next index
        self._tokens, self._lengths = _encode(tokenizer, [])
        self._starts = np.empty(0, dtype=np.int64)

    @property
    def num_tokens(self) -> int:
        return len(self._tokens)

    def encode(self, words: Sequence[str]) -> tuple[Tokens, NDArray[np.int32]]:
        """Return the tokens `(total,)` of all words and the number of tokens of each `(num_words,)`."""
        indices = np.fromiter(map(self._indices.__getitem__, words), np.int64, len(words))
        num_new = len(self._indices) - len(self._lengths)
        if num_new:
            newest_first = list(islice(reversed(self._indices), num_new))
            new_words = newest_first[::-1]
            tokens, lengths = _encode(self._tokenizer, new_words)
            self._tokens = np.concatenate([self._tokens, tokens])
            self._lengths = np.concatenate([self._lengths, lengths])
            self._starts = np.cumsum(self._lengths) - self._lengths
        lengths = self._lengths[indices]
        return gather(self._tokens, self._starts[indices], lengths), lengths


class CorpusEncoder:
    """Encodes both sides of normalized pairs. separators: for pairs with context; None without context"""

    def __init__(self, tokenizers: Tokenizers, separators: Separators | None) -> None:
        self._separators = separators
        self._src = SentenceEncoder(tokenizers.src)
        self._tgt = self._src if tokenizers.joint else SentenceEncoder(tokenizers.tgt)

    def __call__(self, pairs: Sequence[Pair]) -> tuple[Sentences, Sentences]:
        """Return the source and the target sentences."""
        src, tgt = [src for src, _ in pairs], [tgt for _, tgt in pairs]
        if self._separators is None:
            return self._src(src), self._tgt(tgt)
        return encode_joined(self._src, src, self._separators.src), encode_joined(self._tgt, tgt, self._separators.tgt)


@dataclass(frozen=True)
class EncodedChunk:
    """Encoded pairs of one corpus, as stored. `drops` counts the pairs dropped for their length, per reason."""

    corpus: int
    src: Sentences
    tgt: Sentences
    drops: Counter[str]


@dataclass(frozen=True)
class PairFormat:
    """Length limits and stored form of encoded pairs.

    min_tokens:     minimum length of the source and of the target, without a tag
    max_tokens:     maximum length of a side, including a tag; context is dropped and sources are truncated to fit
    tags:           token to prepend to source sentences, by corpus index
    reverse_target: whether target sentences are stored in reverse
    separators:     separators of pairs with context; None without context
    truncates_src:  whether sources longer than `max_tokens` are truncated
    limit:          length of a side, including a tag, above which pairs are dropped; None means `max_tokens`
    """

    min_tokens: tuple[int, int]
    max_tokens: int
    tags: Mapping[int, int]
    reverse_target: bool = False
    separators: Separators | None = None
    truncates_src: bool = False
    limit: int | None = None

    def apply(self, corpus: int, src: Sentences, tgt: Sentences) -> EncodedChunk:
        """Drop pairs outside the limits and convert the others to their stored form."""
        tag = self.tags.get(corpus)
        tag_length = 0 if tag is None else 1
        if self.separators is not None:
            src, tgt = fit_context(src, tgt, self.separators, self.max_tokens - tag_length, self.max_tokens)
        if self.truncates_src:
            src = src.truncate(self.max_tokens - tag_length)
        limit = self.max_tokens if self.limit is None else self.limit
        empty = (src.lengths < self.min_tokens[0]) | (tgt.lengths < self.min_tokens[1])
        too_long = ~empty & ((src.lengths + tag_length > limit) | (tgt.lengths > limit))
        drops = Counter({"empty": int(empty.sum()), "too many tokens": int(too_long.sum())})
        fits = ~(empty | too_long)
        src, tgt = src.select(fits), tgt.select(fits)
        if tag is not None:
            src = src.prepend(tag)
        if self.reverse_target:
            tgt = tgt.reverse()
        return EncodedChunk(corpus, src, tgt, drops)


class FrameEncoder:
    """Encodes the pairs of frames in a worker process."""

    def __init__(self, tokenizer_directory: Path, pair_format: PairFormat) -> None:
        self._encode = CorpusEncoder(Tokenizers.load(tokenizer_directory), pair_format.separators)
        self._format = pair_format

    def __call__(self, job: tuple[Frame, NDArray[np.bool_]]) -> EncodedChunk:
        """Encode the pairs of a frame that its mask `(num_pairs,)` selects."""
        frame, mask = job
        return self._format.apply(frame.corpus, *self._encode(list(frame.select(mask))))


def _encode(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[Tokens, NDArray[np.int32]]:
    """Return the tokens `(total,)` of all texts and the number of tokens of each `(num_texts,)`."""
    ids = tokenizer.encode_batch(texts)
    lengths = np.fromiter(map(len, ids), dtype=np.int32, count=len(ids))
    return np.fromiter(chain.from_iterable(ids), token_dtype(tokenizer.vocab_size), int(lengths.sum())), lengths
