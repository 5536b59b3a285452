"""Which sentences belong to which split, by rules that any process can check.

About one in ten combinations of words never occurs in train and valid, although each of its words does. A sentence
without such a combination belongs to train or valid by the digest of its English.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import Literal

Split = Literal["train", "valid", "test", "nested"]
"""test: at least one held-out combination in each sentence; nested: clauses within clauses, deeper than in training."""

MAX_DEPTH = 2
"""Deepest nesting of clauses in train, valid and test."""

_HELD_OUT_ONE_IN = 10
_VALID_ONE_IN = 16


def is_held_out(kind: str, first: str, second: str = "") -> bool:
    """Whether a combination of two words is kept out of train and valid."""
    return zlib.crc32(f"{kind} {first} {second}".encode()) % _HELD_OUT_ONE_IN == 0


def digest(text: str) -> int:
    """A 64-bit digest, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def may_contain(split: Split, sentence_digest: int) -> bool:
    """Whether the split takes a sentence that suits it otherwise: valid takes one in 16 of what train could have."""
    is_valid = sentence_digest % _VALID_ONE_IN == 0
    return split in ("test", "nested") or is_valid == (split == "valid")
