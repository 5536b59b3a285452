"""Lines of text files, plain or compressed.

A line ends only at a line feed. Carriage returns, U+0085, U+2028 and similar characters are text, and normalization
replaces them with spaces: splitting lines at them would misalign the two sides.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal

import zstandard

from nmt.errors import UserError, advice_on
from nmt.logs import counted

InvalidUtf8 = Literal["error", "replace"]

MAX_LINE_BYTES = 1 << 24
"""Longer lines are errors: the file is probably not text, and its lines could exhaust memory."""

COMPRESSED_EXTENSIONS = (".gz", ".bz2", ".xz", ".zst")
"""Extensions of the compression formats that nmt reads. Files are decompressed according to their first bytes."""

STANDARD_STREAM = Path("-")
"""Standard input or output as an argument of a command."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_GZIP, _XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"
_ZSTD = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")  # also matches the first frame of pzstd files
_BZIP2 = re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)")  # a block, or the end of an empty file
_ZIP = b"PK\x03\x04"
_MAGIC_BYTES = 10
_BLOCK_BYTES = 1 << 20
_COMPRESSED_BYTES = 1 << 10  # XZ and Zstandard can expand a byte to thousands
_UTF32_MARKS = (b"\xff\xfe\0\0", b"\0\0\xfe\xff")
_TAR_MARK = slice(257, 262)


def read_lines(path: Path, invalid_utf8: InvalidUtf8 = "error", *, allow_pipe: bool = False) -> Iterator[str]:
    """Yield the lines of a UTF-8 file without line feeds; decompress it if needed and drop a byte order mark.

    invalid_utf8: whether invalid bytes raise an error or become U+FFFD
    allow_pipe:   accept a pipe, or `-` for standard input; only for callers that read the input once

    Raises UserError for unreadable or damaged files, archives, UTF-16, invalid UTF-8 and overlong lines.
    """
    errors = "replace" if invalid_utf8 == "replace" else "strict"
    name = input_name(path) if allow_pipe else str(path)
    first = 1  # number of the first line of a block
    with decompressed(path, allow_pipe=allow_pipe) as file:
        for block in _blocks_of_lines(file, name):
            if first == 1:
                _reject_compressed(block, name)
                _reject_binary(block, name)
                block = block.removeprefix(_BYTE_ORDER_MARK)
            lines: Iterable[str]
            try:
                lines = block.decode("utf-8", errors).split("\n")
            except UnicodeDecodeError:
                lines = decode_lines(block.split(b"\n"), name, first=first)  # raises an error with the line number
            yield from lines
            first += block.count(b"\n") + 1


def decode_lines(
    lines: Iterable[bytes], name: str, invalid_utf8: InvalidUtf8 = "error", *, first: int = 1
) -> Iterator[str]:
    """Decode UTF-8 lines, with or without line feeds; see `read_lines`.

    name:  name of the input in errors
    first: number of the first line
    """
    for number, line in enumerate(lines, start=first):
        raw = line.removesuffix(b"\n")
        if number == 1:
            _reject_compressed(raw, name)
            _reject_binary(raw, name)
            raw = raw.removeprefix(_BYTE_ORDER_MARK)
        try:
            yield raw.decode("utf-8", "replace" if invalid_utf8 == "replace" else "strict")
        except UnicodeDecodeError as error:
            wrong = f"{name}, line {number}: byte 0x{raw[error.start]:02x} is not UTF-8"
            remedy = "data.invalid_utf8 of a recipe and --invalid-utf8 of nmt translate can replace invalid bytes"
            raise UserError(f"{wrong}; text must be UTF-8; convert it (iconv -t UTF-8); {remedy}") from error


def input_name(path: Path) -> str:
    """Return the name of an input for errors and tables: its path, or `standard input` for `-`."""
    return "standard input" if path == STANDARD_STREAM else str(path)


def uncompressed_extension(path: Path) -> str:
    """Return the extension of a file in lower case, without that of its compression: `.tsv` of `a.TSV.gz`."""
    extensions = [extension.lower() for extension in path.suffixes[-2:]]
    return next((extension for extension in reversed(extensions) if extension not in COMPRESSED_EXTENSIONS), "")


def count_lines(path: Path) -> int:
    """Count lines; a last line without a line feed counts."""
    count, last = 0, b"\n"
    with decompressed(path) as file:
        while block := file.read(_BLOCK_BYTES):
            if not count:
                _reject_binary(block, str(path))
            count += block.count(b"\n")
            last = block
    return count if last.endswith(b"\n") else count + 1


def require_lines(path: Path, count: int) -> None:
    """Raise UserError if an input has no lines."""
    if not count:
        raise UserError(f"{input_name(path)} is empty; it must have one sentence per line; check the file")


def require_same_length(first: Path, first_count: int, second: Path, second_count: int) -> None:
    """Raise UserError unless two inputs have the same number of lines."""
    if first_count != second_count:
        raise UserError(
            f"{input_name(first)} has {counted(first_count, 'line')} and {input_name(second)} has {second_count:,}; "
            "they must match line by line; check both"
        )


def read_blocks(path: Path) -> Iterator[bytes]:
    """Yield the raw bytes of a file in blocks; raise UserError if it is unreadable or a pipe."""
    try:
        with reject_pipe(path).open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                yield block
    except OSError as error:
        raise unreadable(path, error) from error


@contextmanager
def decompressed(path: Path, *, allow_pipe: bool = False) -> Iterator[io.BufferedIOBase]:
    """Open a file and decompress it according to its first bytes. See `read_lines` for `allow_pipe`."""
    name = input_name(path) if allow_pipe else str(path)
    try:
        with _open_input(path) if allow_pipe else reject_pipe(path).open("rb") as file:
            if not (allow_pipe or file.seekable()):
                raise _pipe(path)
            magic = file.peek(_MAGIC_BYTES)[:_MAGIC_BYTES]
            reader = _decompressing(file, magic)
            if reader is None:
                _reject_compressed(magic, name)
                yield file
            else:
                with reader:
                    yield io.BufferedReader(reader, _BLOCK_BYTES)
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
        raise UserError(f"{name} is damaged or truncated ({error}); download it again") from error
    except OSError as error:
        raise unreadable(path, error) from error


def _decompressing(file: io.BufferedReader, magic: bytes) -> gzip.GzipFile | _Decompressor | None:
    """Return a reader of the decompressed file; None if its first bytes are not those of a compression format."""
    if magic.startswith(_GZIP):
        return gzip.GzipFile(fileobj=file)
    if magic.startswith(_XZ):
        start = partial(lzma.LZMADecompressor, lzma.FORMAT_XZ)
        return _Decompressor(file, "stream", start, padding=b"\0")
    if _ZSTD.match(magic):
        start_frame = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj  # for --long=31
        return _Decompressor(file, "frame", start_frame, padding=b"")
    if _BZIP2.match(magic):
        return _Decompressor(file, "stream", bz2.BZ2Decompressor, padding=b"", limits=(_BLOCK_BYTES,))
    return None


def reject_pipe(path: Path) -> Path:
    """Return a path; raise UserError if it is a named pipe: opening it could wait forever."""
    if path.is_fifo():
        raise _pipe(path)
    return path


def _pipe(path: Path) -> UserError:
    return UserError(f"{path} is a pipe, but is read more than once; it must be a file; save its content to a file")


def unreadable(path: Path, error: OSError) -> UserError:
    """Return the error for a file that cannot be read."""
    advice = advice_on(error, "check the path and its permissions")
    name = input_name(path) if path == STANDARD_STREAM else path.absolute()
    return UserError(f"cannot read {name}: {error.strerror or error}; {advice}")


def line_too_long(name: str, number: int) -> UserError:
    """Return the error for a line longer than MAX_LINE_BYTES."""
    return UserError(
        f"{name}, line {number} is longer than {MAX_LINE_BYTES >> 20} MiB; expected one sentence per line; "
        "check that this is a text file"
    )


def _reject_binary(start: bytes, name: str) -> None:
    """Raise UserError for tar archives, UTF-16 and UTF-32 (byte order mark, or control bytes at every other offset)."""
    if start[_TAR_MARK] == b"ustar":
        raise UserError(f"{name} is a tar archive; expected a text file; extract it first, for example with tar -xf")
    sample = start[:200]
    is_wide = any(_has_control_bytes(sample[offset::2]) for offset in (0, 1))
    if is_wide or start.startswith((b"\xff\xfe", b"\xfe\xff", *_UTF32_MARKS)):
        encoding = "UTF-32" if start.startswith(_UTF32_MARKS) or sample.count(b"\0\0") > len(sample) / 10 else "UTF-16"
        raise UserError(f"{name} is {encoding}; nmt reads UTF-8; convert it: iconv -f {encoding} -t UTF-8")


def _has_control_bytes(half: bytes) -> bool:
    """Return whether most bytes are control characters, as one byte of each UTF-16 code unit is in most alphabets.

    In some alphabets this byte is a tab or a line feed. UTF-8 text with many blank lines also has many of these, but
    few other control characters.
    """
    controls = bytes(byte for byte in half if byte < 0x20)
    num_others = len(controls.translate(None, b"\t\n\r"))
    return len(controls) > max(3, 0.8 * len(half)) and (num_others > 3 or (num_others > 0 and len(half) >= 20))


def _reject_compressed(start: bytes, name: str) -> None:
    """Raise UserError for the start of an archive or compressed data that is read as text."""
    if start.startswith(_ZIP):
        raise UserError(
            f"{name} is a zip archive or an office document; expected a text file; extract it, or save the document as "
            "text or HTML"
        )
    if start.startswith((_GZIP, _XZ)) or _BZIP2.match(start) or _ZSTD.match(start):
        raise UserError(
            f"{name} is compressed; expected text, or a regular file in gzip, bzip2, xz or zstd format; decompress it "
            "first, for example with zcat, bzcat, xzcat or zstdcat"
        )


def _open_input(path: Path) -> io.BufferedReader:
    if path != STANDARD_STREAM:
        return path.open("rb")
    if sys.stdin is None:
        raise UserError("standard input is closed; expected text; name a file, or use a pipe")
    return open(sys.stdin.fileno(), "rb", closefd=False)


class _Decompressor(io.RawIOBase):
    """Reads concatenated XZ or bzip2 streams, or Zstandard frames.

    `lzma.LZMAFile` and `bz2.BZ2File` ignore a damaged header of a later stream, and zstandard's own reader accepts
    truncated files.

    unit:    name of a stream or frame, for errors
    start:   returns a decompressor of one of them
    padding: bytes that may be between them
    limits:  maximum bytes that a call decompresses; () if the format limits the expansion of `_COMPRESSED_BYTES`
    """

    def __init__(
        self, file: BinaryIO, unit: str, start: Callable[[], Any], padding: bytes, limits: tuple[int, ...] = ()
    ) -> None:
        self._file = file
        self._unit, self._start, self._padding, self._limits = unit, start, padding, limits
        self._decompressor = start()
        self._compressed, self._plain = b"", io.BytesIO()
        self._is_between = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not (size := self._plain.readinto(buffer)):
            has_more = not getattr(self._decompressor, "needs_input", True)  # because of the limit
            block = b"" if has_more else self._compressed or self._file.read(_COMPRESSED_BYTES)
            if not (block or has_more):
                if self._is_between:
                    return 0
                raise EOFError(f"its last {self._unit} is incomplete")
            if self._is_between:
                block = block.lstrip(self._padding)
            try:
                self._plain = io.BytesIO(self._decompressor.decompress(block, *self._limits))
            except OSError as error:  # of bz2
                raise EOFError(str(error)) from error
            self._compressed = self._decompressor.unused_data
            self._is_between = self._decompressor.eof or (self._is_between and not block)
            if self._decompressor.eof:
                self._decompressor = self._start()
        return size


def _blocks_of_lines(file: io.BufferedIOBase, name: str) -> Iterator[bytes]:
    """Yield blocks of whole lines, without the line feed of the last line."""
    partial_line, number = b"", 1
    while block := file.read(_BLOCK_BYTES):
        text = partial_line + block
        # Only the first line can be longer than a block.
        first_line_bytes = text.find(b"\n", len(partial_line)) + 1 or len(text)
        if first_line_bytes > MAX_LINE_BYTES:
            raise line_too_long(name, number)
        lines, line_feed, partial_line = text.rpartition(b"\n")
        if line_feed:
            yield lines
            number += lines.count(b"\n") + 1
    if partial_line:
        yield partial_line
