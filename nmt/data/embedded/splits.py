"""Which sentences belong to which split, by rules that any process can check.

Combinations of words are held out: about one in ten never occurs in training, though each of its words does. A sentence
without held-out combinations belongs to train or valid by the digest of its English side.
"""

from __future__ import annotations

import hashlib
import zlib
from array import array
from typing import Literal

from nmt.data.embedded.entries import Combination

Split = Literal["train", "valid", "test", "nested"]
"""test: at least one held-out combination in each sentence; nested: clauses within clauses, deeper than in training."""

MAX_DEPTH = 2
"""Deepest nesting of clauses in train, valid and test."""

_HELD_OUT_ONE_IN = 10
_VALID_ONE_IN = 16


def is_held_out(combination: Combination) -> bool:
    """Whether a combination is kept out of train and valid.

    Numbers that are one English word never are, so that all parts of number words are seen in training.
    """
    kind, first, second = combination
    if kind == "number" and (int(first) <= 20 or int(first) % 10 == 0):
        return False
    return zlib.crc32(f"{kind} {first} {second}".encode()) % _HELD_OUT_ONE_IN == 0


def digest(sentence: str) -> int:
    """A 64-bit digest of a sentence, the same on every machine; never 0."""
    return int.from_bytes(hashlib.blake2b(sentence.encode(), digest_size=8).digest(), "little") or 1


def may_contain(split: Split, sentence_digest: int) -> bool:
    """Whether a sentence that suits the split otherwise falls to it: valid takes one in 16 of what train could have."""
    is_valid = sentence_digest % _VALID_ONE_IN == 0
    match split:
        case "train":
            return not is_valid
        case "valid":
            return is_valid
        case "test" | "nested":
            return True


class DigestSet:
    """A set of up to `capacity` digests in one flat table: 11 to 22 bytes for each, where a Python set needs about 70.

    Open addressing with linear probing; 0 marks an empty place.
    """

    def __init__(self, capacity: int) -> None:
        self._mask = (1 << (capacity * 4 // 3).bit_length()) - 1
        self._table = array("Q", [0]) * (self._mask + 1)

    def add(self, value: int) -> bool:
        """Add a digest; return whether it was new."""
        table, mask = self._table, self._mask
        place = (value >> 20) & mask  # not the lowest bits: they say which split a sentence is in
        while table[place]:
            if table[place] == value:
                return False
            place = (place + 1) & mask
        table[place] = value
        return True
