"""Sentences to token ids by the thousand, each word cut into pieces only once however often it comes.

No piece of a model that nmt trains reaches over a space, and bpe joins neighbours in an order in which words do not
see each other. So the ids of a sentence are those of its words end to end, bit for bit, and nearly all words of a text
have been there before. With other models whole sentences are left to SentencePiece: unigram adds up the scores of a
sentence as it goes, so that rounding may choose otherwise than in a word alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, count, islice

import numpy as np
from numpy.typing import NDArray

from nmt.data.store import token_dtype
from nmt.text.segmentation import Tokens, gather, reverse_each
from nmt.text.subword_file import SPACE
from nmt.text.tokenizer import Tokenizer

# Tokens of all the words that are remembered: some 30 MB with the words themselves.
_MOST_TOKENS = 1 << 19


@dataclass(frozen=True)
class Sentences:
    """Encoded sentences.

    tokens:  (total,) uint16 or uint32, end to end
    lengths: (num_sentences,) int32, tokens of each
    words:   (num_sentences,) int32, words of each
    """

    tokens: Tokens
    lengths: NDArray[np.int32]
    words: NDArray[np.int32]

    def select(self, mask: NDArray[np.bool_]) -> Sentences:
        """Those that a mask `(num_sentences,)` keeps."""
        if mask.all():
            return self
        return Sentences(self.tokens[np.repeat(mask, self.lengths)], self.lengths[mask], self.words[mask])

    def tagged(self, tag: int) -> Sentences:
        """Each with the token `tag` before it."""
        starts = np.cumsum(self.lengths) - self.lengths
        return Sentences(np.insert(self.tokens, starts, tag), self.lengths + np.int32(1), self.words)

    def reversed(self) -> Sentences:
        """Each backwards."""
        return Sentences(reverse_each(self.tokens, self.lengths), self.lengths, self.words)


class SentenceEncoder:
    """Encodes normalised sentences as `Tokenizer.encode` does; remembers words, in memory that has a limit."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._by_words = tokenizer.encodes_by_words()
        self._words = _Words(tokenizer)

    def __call__(self, texts: Sequence[str]) -> Sentences:
        """The sentences of normalised texts."""
        num_spaces = np.fromiter((text.count(" ") for text in texts), np.int32, len(texts))
        num_words = num_spaces + np.fromiter(map(bool, texts), np.bool_, len(texts))
        joined = " ".join(texts)
        # What is written as SentencePiece writes a space may be taken for one, and may vanish at the end of a text.
        if not self._by_words or SPACE in joined or not texts:
            return Sentences(*_encode(self._tokenizer, texts), num_words)
        if self._words.num_tokens > _MOST_TOKENS:
            self._words = _Words(self._tokenizer)
        tokens, sizes = self._words.encode(joined.split(" "))  # An empty text comes out as an empty word.
        starts = np.cumsum(num_spaces + 1) - (num_spaces + 1)
        return Sentences(tokens, np.add.reduceat(sizes, starts, dtype=np.int32), num_words)


class _Words:
    """The words that were there before: a number for each, and by this number where its tokens lie."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._numbers: defaultdict[str, int] = defaultdict(count().__next__)
        self._tokens, self._sizes = _encode(tokenizer, [])
        self._starts = np.empty(0, dtype=np.int64)

    @property
    def num_tokens(self) -> int:
        """Tokens of all words together."""
        return len(self._tokens)

    def encode(self, words: Sequence[str]) -> tuple[Tokens, NDArray[np.int32]]:
        """The tokens of words `(total,)` end to end, and of each how many they are `(num_words,)`."""
        numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int64, len(words))
        self._learn(len(self._numbers) - len(self._sizes))
        sizes = self._sizes[numbers]
        return gather(self._tokens, self._starts[numbers], sizes), sizes

    def _learn(self, num_new: int) -> None:
        """Encode the words that were the last to get a number."""
        if not num_new:
            return
        new = list(islice(reversed(self._numbers), num_new))[::-1]
        tokens, sizes = _encode(self._tokenizer, new)
        self._tokens = np.concatenate([self._tokens, tokens])
        self._sizes = np.concatenate([self._sizes, sizes])
        self._starts = np.cumsum(self._sizes) - self._sizes


def _encode(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[Tokens, NDArray[np.int32]]:
    """The tokens of texts `(total,)` end to end, and of each how many they are `(num_texts,)`."""
    ids = tokenizer.encode_batch(texts)
    sizes = np.fromiter(map(len, ids), dtype=np.int32, count=len(ids))
    return np.fromiter(chain.from_iterable(ids), token_dtype(tokenizer.vocab_size), int(sizes.sum())), sizes
