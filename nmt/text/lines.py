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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

import zstandard

from nmt.errors import UserError, advice_on
from nmt.logs import counted, warn

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
_NUM_CHECKED = 1000  # lines that are checked for other formats
_JSON_ARRAY = re.compile(r'\[\s*(?:\{\s*"|"(?:[^"\\]|\\.)*"\s*[,\]])')
_XML = re.compile(r"\s*<(?:srcset|refset|tstset|dataset|(tmx))\b", re.IGNORECASE)
_MARKUP = re.compile(r"</[A-Za-z][\w.-]*>|<br ?/?>|&(?:amp|quot|apos|lt|gt|nbsp|#[0-9]+);")
_SUBWORDS = re.compile(r"\u2581|\uffed|\w@@(?= \w)")  # of SentencePiece, of OpenNMT, of subword-nmt
_MIN_MARKED = 0.1  # fraction of the lines
_SEPARATOR = re.compile('[,;"]')  # CSV column separator or quote
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


def warn_of_empty(name: str, lines: Sequence[str], others: Sequence[Sequence[str]], remark: str) -> None:
    """Warn of empty lines of a text, with their number, the first one and a remark.

    others: aligned texts, if any; lines that are empty in all of them do not count
    """
    empty = [
        number
        for number, (line, *other) in enumerate(zip(lines, *others, strict=True), start=1)
        if not line.strip() and (not other or any(map(str.strip, other)))
    ]
    if empty:
        verb = "is" if len(empty) == 1 else "are"
        found = f"{len(empty):,} of {counted(len(lines), 'line')} of {name} {verb} empty"
        warn(f"{found} (first: line {empty[0]:,}); {remark}")


def warn_of_equal(src: Path, sources: Sequence[str], tgt: Path, targets: Sequence[str]) -> None:
    """Warn of a translation that is equal to its source."""
    if sources == targets and src == tgt:
        warn(f"{input_name(src)} is given as both source and translation; they must be different files; correct one")
    elif sources == targets:
        warn(f"{input_name(tgt)} is identical to {input_name(src)}; it must be the translation; is it the right file?")


_COLUMN_NAMES = {"source", "target", "src", "tgt", "reference", "ref"}
# One of these is not sufficient for a header, because a text may begin with any of them.
_NAME_IN_HEADER = re.compile(
    "(source|src|target|tgt|english|german|french|spanish|italian|russian|chinese|japanese)([ _-](text|sentence))?|"
    "reference|ref|id|index|line|doc[ _-]id|domain|label|score|text|sentence|segment|translation|hypothesis|hyp|mt"
)
_LANGUAGE = re.compile(
    "ar|bg|cs|da|de|el|en|es|et|fi|fr|ga|hi|hr|hu|it|ja|ko|lt|lv|nl|no|pl|pt|ro|ru|sk|sl|sv|tr|uk|zh"
)


def is_header(text: str, others: Iterable[str]) -> bool:
    """Return whether a text is a cell of a header row, given the other cells; cells may be in quotes.

    Returns True in any of these cases: all cells are column names, and they are not all the same; the text is a name
    such as `src` that rarely begins a text; the text is a column name and another cell is such a name; the text and
    another cell are different language codes.
    """
    text, *others = (cell.strip().strip('"') for cell in (text, *others))
    names = {cell.lower() for cell in (text, *others)}
    if len(names) > 1 and all(map(_NAME_IN_HEADER.fullmatch, names)):
        return True
    if _NAME_IN_HEADER.fullmatch(text.lower()) and names & _COLUMN_NAMES:
        return True
    if text.lower() in _COLUMN_NAMES:
        return True
    is_language = _LANGUAGE.fullmatch(text) is not None
    return is_language and any(_LANGUAGE.fullmatch(other) and other != text for other in others)


def _warn_of_header(name: str, lines: Sequence[str], translations: Sequence[str]) -> None:
    """Warn of a first line that is a column name, or a language code if the translations begin with a different one."""
    first = lines[0].strip()
    if len(lines) > 1 and is_header(first, translations[:1]):
        warn(
            f"{name} begins with {first!r}, which looks like a column name but counts as text; remove this line, "
            "or, in a TSV corpus, give columns by name (src_column, tgt_column)"
        )


def describe_format(filled: Sequence[str]) -> str:
    """Describe the format of nonempty lines: an n-best list, a JSON array, a WMT test set or TMX; "" for others."""
    if filled and all(line.count(" ||| ") >= 2 for line in filled):
        return "a Moses n-best list, whose indices and scores count as text"
    if found := next(filter(None, map(_XML.match, filled[:5])), None):
        return f"{'a TMX file' if found[1] else 'an SGM or XML test set'}, whose markup counts as text"
    if _JSON_ARRAY.match("\n".join(filled[:3])):
        return "a JSON array, whose brackets and field names count as text"
    return ""


def warn_of_fields(
    name: str, lines: Sequence[str], *, translations: Sequence[str] = (), checks_markup: bool = False
) -> None:
    """Warn of plain text that has a header or looks like TSV, JSON, subwords, an n-best list, a WMT test set or TMX.

    translations:  aligned with the lines, if known
    checks_markup: whether to also warn of tags and entities, as in training and validation sets
    """
    filled = [line for line in lines if line.strip()]
    if not filled:
        return
    _warn_of_header(name, filled, translations)
    if all("\t" in line for line in filled):
        warn(f"all lines of {name} have tabs; columns such as scores count as text; extract the text first (cut -f)")
    elif all(line.startswith("{") and line.rstrip().endswith("}") for line in filled):
        warn(f"all lines of {name} are JSON, which counts as text; extract the text first (jq -r .translation)")
    elif kind := describe_format(filled):
        warn(f"{name} looks like {kind}; extract the text first")
    elif found := _describe_matches(_SUBWORDS, filled):
        warn(
            f"{name} has subword marks {found}; it must be plain text; decode it (spm_decode, or for @@: sed -E "
            "'s/@@( |$)//g')"
        )
    elif checks_markup and (found := _describe_matches(_MARKUP, filled)):
        warn(f"{name} has tags or entities {found}; they count as text; remove or unescape them, unless you want this")


def _describe_matches(pattern: re.Pattern[str], lines: Sequence[str]) -> str:
    """Describe the matches of a pattern; return "" if it matches less than a tenth of the lines."""
    matches = [found[0] for found in map(pattern.search, lines) if found]
    if len(matches) < max(_MIN_MARKED * len(lines), 1):
        return ""
    return f"such as {matches[0]} in {len(matches):,} of {counted(len(lines), 'line')}"


def is_csv_quoted(text: str) -> bool:
    """Return whether a column is in quotes and has doubled quotes inside, as `csv` and pandas write it."""
    inner = text[1:-1]
    return text[:1] == text[-1:] == '"' and '""' in inner and '"' not in inner.replace('""', "")


def has_csv_name(path: Path) -> bool:
    """Return whether the extension of a file, ignoring that of a compression format, is .csv."""
    extensions = [extension.lower() for extension in path.suffixes[-2:]]
    uncompressed = [extension for extension in extensions if extension not in COMPRESSED_EXTENSIONS]
    return uncompressed[-1:] == [".csv"]


def warn_of_csv(
    name: str,
    lines: Iterable[str],
    use: str = "read",
    remedy: str = "extract the text first, or rename the file if it is plain text",
) -> None:
    """Warn of plain text with a CSV file name if a line has a separator or a quote."""
    if has_csv_name(Path(name)) and any(map(_SEPARATOR.search, lines)):
        warn(f"{name} is {use} as plain text, including commas and quotes; {remedy}")


def read_plain_text(path: Path, *, allow_pipe: bool = False) -> Iterator[str]:
    """Read lines like `read_lines`; warn if the first ones look like another format."""
    lines = read_lines(path, allow_pipe=allow_pipe)
    first = list(islice(lines, _NUM_CHECKED))
    warn_of_fields(f"{input_name(path)}, lines 1 to {len(first):,},", first)
    warn_of_csv(input_name(path), first)
    return chain(first, lines)


def warn_of_pairs(src: Path, sources: Sequence[str], tgt: Path | None, targets: Sequence[str]) -> None:
    """Warn if two files look like TSV, JSON, CSV or similar, or are equal; `tgt` is None if there is only one."""
    warn_of_fields(input_name(src), sources, translations=targets if tgt is not None else ())
    warn_of_csv(input_name(src), sources)
    if tgt is not None:
        warn_of_fields(input_name(tgt), targets)
        warn_of_csv(input_name(tgt), targets)
        warn_of_equal(src, sources, tgt, targets)


def warn_of_sides(name: str, src: Sequence[str] | None, tgt: Sequence[str], remark: str) -> None:
    """Warn of empty lines (with a remark), other formats and equal sides of a text; `src` is None without a source."""
    sides = {"target": tgt} if src is None else {"source": src, "target": tgt}
    for side, lines in sides.items():
        others = [other for key, other in sides.items() if key != side]
        warn_of_empty(f"the {side} of {name}", lines, others, remark)
        warn_of_fields(f"the {side} of {name}", lines, translations=others[0] if others else (), checks_markup=True)
    if src == tgt:
        warn(f"the target of {name} is identical to the source; is it the right file?")


def with_format_warnings(
    name: str, on_read: Callable[[int, Sequence[tuple[str, str]]], None] | None
) -> Callable[[int, Sequence[tuple[str, str]]], None]:
    """Wrap a callback that receives pairs of several corpora; call `warn_of_fields` for the first pairs of each."""
    seen: set[int] = set()

    def receive(index: int, pairs: Sequence[tuple[str, str]]) -> None:
        if index not in seen:
            seen.add(index)
            sources, targets = zip(*pairs, strict=True)
            where = f"{name}.{index}, lines 1 to {len(pairs):,},"
            warn_of_fields(f"the source of {where}", sources, translations=targets, checks_markup=True)
            warn_of_fields(f"the target of {where}", targets, translations=sources, checks_markup=True)
        if on_read is not None:
            on_read(index, pairs)

    return receive


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
            if magic.startswith(_GZIP):
                with gzip.GzipFile(fileobj=file) as plain:
                    yield io.BufferedReader(plain, _BLOCK_BYTES)
            elif magic.startswith(_XZ):
                start = partial(lzma.LZMADecompressor, lzma.FORMAT_XZ)
                with _Decompressor(file, "stream", start, padding=b"\0") as plain:
                    yield io.BufferedReader(plain, _BLOCK_BYTES)
            elif _ZSTD.match(magic):
                start_frame = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj  # for --long=31
                with _Decompressor(file, "frame", start_frame, padding=b"") as plain:
                    yield io.BufferedReader(plain, _BLOCK_BYTES)
            elif _BZIP2.match(magic):
                with _Decompressor(file, "stream", bz2.BZ2Decompressor, padding=b"", limits=(_BLOCK_BYTES,)) as plain:
                    yield io.BufferedReader(plain, _BLOCK_BYTES)
            else:
                _reject_compressed(magic, name)
                yield file
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
        raise UserError(f"{name} is damaged or truncated ({error}); download it again") from error
    except OSError as error:
        raise unreadable(path, error) from error


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


def _has_control_bytes(half: bytes) -> bool:
    """Return whether most bytes are control characters, as one byte of each UTF-16 code unit is in most alphabets.

    In some alphabets this byte is a tab or a line feed. UTF-8 text with many blank lines also has many of these, but
    few other control characters.
    """
    controls = bytes(byte for byte in half if byte < 0x20)
    num_others = len(controls.translate(None, b"\t\n\r"))
    return len(controls) > max(3, 0.8 * len(half)) and (num_others > 3 or (num_others > 0 and len(half) >= 20))
