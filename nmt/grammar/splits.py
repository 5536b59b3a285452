"""Assignment of sentences to splits by hashes, without shared state.

About 10 % of all word combinations are held out: they never occur in train or valid, although their words do. A
sentence without them belongs to train or valid, depending on the digest of its English text.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import Literal

Split = Literal["train", "valid", "test", "nested"]
"""test: each sentence has a held-out word combination; nested: clauses are nested deeper than in train"""

MAX_DEPTH = 2
"""Maximum clause depth in train, valid and test."""

_HELD_OUT_ONE_IN = 10
_VALID_ONE_IN = 16


def is_held_out(kind: str, first: str, second: str = "") -> bool:
    """Return whether a combination of two words never occurs in train or valid."""
    return zlib.crc32(f"{kind} {first} {second}".encode()) % _HELD_OUT_ONE_IN == 0


def digest(text: str) -> int:
    """Return a 64-bit digest, the same on all platforms."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def may_contain(split: Split, sentence_digest: int) -> bool:
    """Return whether a sentence may be in a split; one in 16 sentences belongs to valid instead of train."""
    is_valid = sentence_digest % _VALID_ONE_IN == 0
    return split in ("test", "nested") or is_valid == (split == "valid")
