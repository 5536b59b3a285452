"""Lines of text files, plain or compressed.

A line ends at a line feed and nowhere else. Carriage returns, U+0085, U+2028 and their like are part of the text (and
become spaces when it is normalised): a reader that breaks lines there loses the alignment of the two sides.
"""

from __future__ import annotations

import gzip
import io
import lzma
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal

import zstandard

from nmt.recipe import UserError

InvalidUtf8 = Literal["error", "replace"]

MAX_LINE_BYTES = 1 << 24
"""A longer line is no text: most likely a file of another kind, whose lines could fill the memory."""

_STANDARD_INPUT = Path("-")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BLOCK_BYTES = 1 << 20
_UTF16_BYTES = 200  # of the start of a text, by which UTF-16 is recognized


def read_lines(path: Path, invalid_utf8: InvalidUtf8 = "error", *, once: bool = False) -> Iterator[str]:
    """The lines of a UTF-8 file without their line feeds, decompressed if need be; a byte order mark is dropped.

    once: whether nothing else reads the file, which then may be a pipe, or `-` for standard input

    Raises UserError for a file that cannot be read, is damaged or is UTF-16, and, with file and line number, for bytes
    that are not UTF-8, unless they are to be replaced by U+FFFD, and for a line too long to be text.
    """
    errors = "replace" if invalid_utf8 == "replace" else "strict"
    first, name = 1, input_name(path) if once else str(path)
    with decompressed(path, once=once) as file:
        for block in _blocks_of_lines(file, name):
            if first == 1:
                _refuse_utf16(block, name)
            text = block.removeprefix(_BYTE_ORDER_MARK) if first == 1 else block
            lines: Iterable[str]
            try:
                lines = text.decode("utf-8", errors).split("\n")
            except UnicodeDecodeError:
                lines = decode_lines(text.split(b"\n"), name, first=first)  # It says which line is wrong.
            yield from lines
            first += text.count(b"\n") + 1


def decode_lines(
    lines: Iterable[bytes], name: str, invalid_utf8: InvalidUtf8 = "error", *, first: int = 1
) -> Iterator[str]:
    """Lines of UTF-8 bytes, with or without line feed, as text; see `read_lines`.

    `name` and the number of the first one stand in errors.
    """
    for number, line in enumerate(lines, start=first):
        raw = line.removesuffix(b"\n")
        if number == 1:
            _refuse_utf16(raw, name)
            raw = raw.removeprefix(_BYTE_ORDER_MARK)
        try:
            yield raw.decode("utf-8", "replace" if invalid_utf8 == "replace" else "strict")
        except UnicodeDecodeError as error:
            found = f"{name}, line {number}: byte 0x{raw[error.start]:02x} is not UTF-8"
            remedy = "convert it (iconv -t UTF-8), or have such bytes replaced (data.invalid_utf8, --invalid-utf8)"
            raise UserError(f"{found}; text must be UTF-8; {remedy}") from error


def input_name(path: Path) -> str:
    """What errors and tables call an input that may be standard input."""
    return "standard input" if path == _STANDARD_INPUT else str(path)


def count_lines(path: Path) -> int:
    """Number of lines, the last one too when no line feed closes it."""
    count, last = 0, b"\n"
    with decompressed(path) as file:
        while block := file.read(_BLOCK_BYTES):
            count += block.count(b"\n")
            last = block
    return count + (not last.endswith(b"\n"))


def _refuse_utf16(start: bytes, name: str) -> None:
    """Raise UserError for text in UTF-16: by its byte order mark, or since every other byte of its start is 0."""
    beginning = start[:_UTF16_BYTES]
    zeros = max(beginning[place::2].count(0) for place in (0, 1))
    if start.startswith((b"\xff\xfe", b"\xfe\xff")) or zeros > max(3, 0.4 * len(beginning)):
        raise UserError(f"{name} is UTF-16; nmt reads UTF-8; convert it: iconv -f UTF-16 -t UTF-8")


def line_too_long(name: str, number: int) -> UserError:
    """What to raise for a line of more than MAX_LINE_BYTES."""
    limit = f"{MAX_LINE_BYTES >> 20} MiB"
    return UserError(
        f"{name}, line {number} is longer than {limit}; text has one sentence a line; check that this is a text file"
    )


def read_blocks(path: Path) -> Iterator[bytes]:
    """The bytes of a file as they are, in blocks; raises UserError when it cannot be read."""
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                yield block
    except OSError as error:
        raise unreadable(path, error) from error


@contextmanager
def decompressed(path: Path, *, once: bool = False) -> Iterator[io.BufferedIOBase]:
    """The bytes of a file, decompressed according to its first bytes, which could not begin a UTF-8 text.

    once: see `read_lines`
    """
    try:
        with _open_input(path) if once else path.open("rb") as file:
            if not (once or file.seekable()):
                raise UserError(f"{path} is a pipe; it is read more than once, so it must be a file; write it to one")
            magic = file.peek(6)[:6]
            if magic.startswith(b"\x1f\x8b"):
                with gzip.GzipFile(fileobj=file) as plain:
                    yield io.BufferedReader(plain, _BLOCK_BYTES)
            elif magic.startswith(b"\xfd7zXZ\x00"):
                with lzma.LZMAFile(file) as plain:
                    yield io.BufferedReader(plain, _BLOCK_BYTES)
            elif magic.startswith(b"\x28\xb5\x2f\xfd"):
                with _ZstdReader(file) as plain:
                    yield io.BufferedReader(plain, _BLOCK_BYTES)
            else:
                yield file
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
        raise UserError(
            f"{path} is damaged or cut short ({error}); it cannot be decompressed; fetch it again"
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error


def _open_input(path: Path) -> io.BufferedReader:
    if path != _STANDARD_INPUT:
        return path.open("rb")
    if sys.stdin is None:
        raise UserError("standard input is closed; there must be text to read; name a file, or use a pipe")
    return open(sys.stdin.fileno(), "rb", closefd=False)


class _ZstdReader(io.RawIOBase):
    """Zstandard frames as one stream; zstandard's own reader takes a file that is cut short for a whole one."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._inside_frame = False
        self._compressed = self._plain = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._plain and (block := self._compressed or self._file.read(_BLOCK_BYTES)):
            self._plain = self._frame.decompress(block)
            self._compressed, self._inside_frame = self._frame.unused_data, not self._frame.eof
            if self._frame.eof:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
        if not self._plain and self._inside_frame:
            raise EOFError("its last frame has no end")
        size = min(len(buffer), len(self._plain))
        buffer[:size], self._plain = self._plain[:size], self._plain[size:]
        return size


def unreadable(path: Path, error: OSError) -> UserError:
    """What to raise for a file that the system does not let read."""
    return UserError(f"cannot read {path.absolute()}: {error.strerror or error}; give a file that can be read")


def _blocks_of_lines(file: io.BufferedIOBase, name: str) -> Iterator[bytes]:
    """Whole lines, many at a time; the line feed of the last one is left out."""
    begun, number = b"", 1
    while block := file.read(_BLOCK_BYTES):
        text = begun + block
        first_line_bytes = text.find(b"\n", len(begun)) + 1 or len(text)  # No other is longer than a block.
        if first_line_bytes > MAX_LINE_BYTES:
            raise line_too_long(name, number)
        lines, line_feed, begun = text.rpartition(b"\n")
        if line_feed:
            yield lines
            number += lines.count(b"\n") + 1
    if begun:
        yield begun
