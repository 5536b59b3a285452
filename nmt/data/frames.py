"""Temporary storage of compressed training text between stages.

Workers compress and decompress; the main process handles all chunks in order, but mostly copies bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import zstandard

from nmt.text.clean import Pair

_COMPRESSION_LEVEL = 1
_HEADER = struct.Struct("<QQQ")  # corpus index, number of pairs, number of bytes


@dataclass(frozen=True)
class Frame:
    """A chunk of pairs of one corpus.

    corpus:  index of the corpus in the recipe
    content: output of `compress_pairs`
    """

    corpus: int
    num_pairs: int
    content: bytes

    def write(self, file: BinaryIO) -> None:
        """Append the frame to a file."""
        file.write(_HEADER.pack(self.corpus, self.num_pairs, len(self.content)))
        file.write(self.content)


def read_frames(path: Path) -> Iterator[Frame]:
    """Yield the frames of a file in order."""
    with path.open("rb") as file:
        while header := file.read(_HEADER.size):
            corpus, num_pairs, size = _HEADER.unpack(header)
            yield Frame(corpus, num_pairs, file.read(size))


def compress_pairs(pairs: Sequence[Pair]) -> bytes:
    """Compress normalized pairs: all source lines, then all target lines."""
    text = "".join(f"{pair[side]}\n" for side in (0, 1) for pair in pairs)
    return zstandard.compress(text.encode(), _COMPRESSION_LEVEL)


def decompress_pairs(content: bytes) -> list[Pair]:
    """Invert `compress_pairs`."""
    lines = zstandard.decompress(content).decode().split("\n")[:-1]
    middle = len(lines) // 2
    return list(zip(lines[:middle], lines[middle:], strict=True))
