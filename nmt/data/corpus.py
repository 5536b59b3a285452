"""Where sentence pairs come from: files of every common kind, test sets by name, and the embedded grammar.

A line ends at a line feed and nowhere else. Carriage returns, U+0085, U+2028 and their like are part of the text (and
become spaces when it is normalised): a reader that breaks lines there loses the alignment of the two sides.
"""

from __future__ import annotations

import gzip
import io
import json
import logging
import lzma
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, assert_never

import pyarrow.parquet
import zstandard
from pyarrow.lib import ArrowException
from sacrebleu.dataset import DATASETS
from sacrebleu.utils import SACREBLEU_DIR

from nmt.data.clean import valid_unicode
from nmt.data.embedded import generate
from nmt.data.wmt_files import sgm_segments, xml_pairs
from nmt.recipe import (
    Corpus,
    DataRecipe,
    EmbeddedCorpus,
    HuggingFaceCorpus,
    JsonLinesCorpus,
    ParquetCorpus,
    SacrebleuCorpus,
    SgmCorpus,
    TextCorpus,
    TsvCorpus,
    UserError,
)

Pair = tuple[str, str]
InvalidUtf8 = Literal["error", "replace"]

MAX_LINE_BYTES = 1 << 24
"""A longer line is no text: most likely a file of another kind, whose lines could fill the memory."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BLOCK_BYTES = 1 << 20
_RECORDS_PER_BATCH = 4096
_LINES_AT_ONCE = 1024


def read_pairs(corpus: Corpus, data: DataRecipe, src_lang: str, tgt_lang: str) -> Iterator[Pair]:
    """The sentence pairs of a corpus in their order, as they stand in it: valid Unicode without line feeds.

    Of several references the first is taken: see `nmt.data.test_sets`.
    Raises UserError for whatever cannot be read, is damaged, or does not have as many sentences on both sides.
    """
    match corpus:
        case TextCorpus():
            return _read_text(_find(corpus.src, data), _find(corpus.references[0], data), data.invalid_utf8)
        case TsvCorpus():
            return _read_tsv(corpus, _find(corpus.path, data), data.invalid_utf8)
        case SgmCorpus():
            src = _find(corpus.src, data)
            if not corpus.references:
                return _read_xml(src, src_lang, tgt_lang)
            return _read_sgm(src, _find(corpus.references[0], data), data.invalid_utf8)
        case ParquetCorpus():
            return _read_parquet(corpus, _find(corpus.path, data))
        case JsonLinesCorpus():
            return _read_json_lines(corpus, _find(corpus.path, data), data.invalid_utf8)
        case HuggingFaceCorpus():
            return _read_hugging_face(corpus, data, src_lang, tgt_lang)
        case SacrebleuCorpus():
            return _read_sacrebleu(corpus, src_lang, tgt_lang)
        case EmbeddedCorpus():
            return ((pair.src, pair.tgt) for pair in generate(corpus.split, corpus.pairs, corpus.seed))
        case _:
            assert_never(corpus)


def read_lines(path: Path, invalid_utf8: InvalidUtf8 = "error") -> Iterator[str]:
    """The lines of a UTF-8 file without their line feeds, decompressed if need be; a byte order mark is dropped.

    Raises UserError for a file that cannot be read, is damaged or is UTF-16, and, with file and line number, for bytes
    that are not UTF-8, unless they are to be replaced by U+FFFD, and for a line too long to be text.
    """
    errors = "replace" if invalid_utf8 == "replace" else "strict"
    first = 1
    with _decompressed(path) as file:
        for block in _blocks_of_lines(file, str(path)):
            if first == 1:
                _refuse_utf16(block, str(path))
            text = block.removeprefix(_BYTE_ORDER_MARK) if first == 1 else block
            lines: Iterable[str]
            try:
                lines = text.decode("utf-8", errors).split("\n")
            except UnicodeDecodeError:
                lines = decode_lines(text.split(b"\n"), str(path), first=first)  # It says which line is wrong.
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


def _refuse_utf16(start: bytes, name: str) -> None:
    """Raise UserError for text that begins with the byte order mark of UTF-16."""
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
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
        raise _unreadable(path, error) from error


def input_files(corpus: Corpus, data: DataRecipe) -> list[Path]:
    """The local files that a corpus is read from, in a fixed order; none for what is downloaded or made."""
    match corpus:
        case TextCorpus() | SgmCorpus():
            return [_locate(path, data) for path in (corpus.src, *corpus.references)]
        case TsvCorpus() | ParquetCorpus() | JsonLinesCorpus():
            return [_locate(corpus.path, data)]
        case HuggingFaceCorpus():
            folder = _locate(Path(corpus.dataset), data)
            visible = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
            return sorted(visible) if folder.is_dir() else []
        case SacrebleuCorpus() | EmbeddedCorpus():
            return []
        case _:
            assert_never(corpus)


def count_pairs(corpus: Corpus, data: DataRecipe) -> int | None:
    """How many pairs a corpus holds, where that is quicker to find out than to read them, else None.

    Raises UserError when two text files have different numbers of lines, before any work is spent on them.
    """
    match corpus:
        case TextCorpus():
            src, tgt = _find(corpus.src, data), _find(corpus.references[0], data)
            src_count, tgt_count = count_lines(src), count_lines(tgt)
            if src_count != tgt_count:
                raise _unequal_sides(src, src_count, tgt, tgt_count)
            return src_count
        case TsvCorpus():
            return max(count_lines(_find(corpus.path, data)) - corpus.has_header, 0)
        case JsonLinesCorpus():
            return count_lines(_find(corpus.path, data))
        case ParquetCorpus():
            with _parquet_file(_find(corpus.path, data)) as file:
                return int(file.metadata.num_rows)
        case EmbeddedCorpus():
            return corpus.pairs
        case SgmCorpus() | HuggingFaceCorpus() | SacrebleuCorpus():
            return None
        case _:
            assert_never(corpus)


# --- Files ----------------------------------------------------------------------------------------------------------


def _locate(path: Path, data: DataRecipe) -> Path:
    """Where a path of the recipe leads: relative ones start from `data.root`."""
    return data.root.expanduser() / path.expanduser()


def _find(path: Path, data: DataRecipe) -> Path:
    """Where a file of the recipe is; UserError, which tells how its path came about, where it is not there."""
    found = _locate(path, data)
    if found.exists():
        return found
    wrong = f"cannot read {found.absolute()}: No such file"
    if path.expanduser().is_absolute():
        raise UserError(f"{wrong}; correct the path of the corpus")
    raise UserError(f"{wrong}; {path} starts from data.root, which is {data.root}; correct one of them")


@contextmanager
def _decompressed(path: Path) -> Iterator[io.BufferedIOBase]:
    """The bytes of a file, decompressed according to its first bytes, which could not begin a UTF-8 text."""
    try:
        with path.open("rb") as file:
            magic = file.read(6)
            file.seek(0)
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
        raise _unreadable(path, error) from error


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


def _unreadable(path: Path, error: OSError) -> UserError:
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


def count_lines(path: Path) -> int:
    """Number of lines, the last one too when no line feed closes it."""
    count, last = 0, b"\n"
    with _decompressed(path) as file:
        while block := file.read(_BLOCK_BYTES):
            count += block.count(b"\n")
            last = block
    return count + (not last.endswith(b"\n"))


def _unequal_sides(src: Path, src_count: int, tgt: Path, tgt_count: int) -> UserError:
    return UserError(
        f"{src} has {src_count:,} sentences and {tgt} has {tgt_count:,}; they must be translations line by line; "
        "fetch both again, or find what broke the lines apart"
    )


def _zip_sides(src: Iterable[str], tgt: Iterable[str], src_path: Path, tgt_path: Path) -> Iterator[Pair]:
    """Both sides together; raises UserError with both counts when one ends first."""
    src_lines, tgt_lines = iter(src), iter(tgt)
    count = 0
    while True:
        src_part, tgt_part = (list(islice(lines, _LINES_AT_ONCE)) for lines in (src_lines, tgt_lines))
        yield from zip(src_part, tgt_part, strict=False)
        if len(src_part) != len(tgt_part):
            src_count, tgt_count = (
                count + len(part) + sum(1 for _ in lines)
                for part, lines in ((src_part, src_lines), (tgt_part, tgt_lines))
            )
            raise _unequal_sides(src_path, src_count, tgt_path, tgt_count)
        if not src_part:
            return
        count += len(src_part)


# --- Kinds of corpora -----------------------------------------------------------------------------------------------


def _read_text(src: Path, tgt: Path, invalid_utf8: InvalidUtf8) -> Iterator[Pair]:
    return _zip_sides(read_lines(src, invalid_utf8), read_lines(tgt, invalid_utf8), src, tgt)


def _read_tsv(corpus: TsvCorpus, path: Path, invalid_utf8: InvalidUtf8) -> Iterator[Pair]:
    lines = enumerate(read_lines(path, invalid_utf8), start=1)
    header = next(lines, (1, ""))[1].removesuffix("\r").split("\t") if corpus.has_header else []
    src, tgt = (_column_number(column, header, path) for column in (corpus.src_column, corpus.tgt_column))
    needed = max(src, tgt) + 1
    for number, line in lines:
        columns = line.split("\t")
        if len(columns) < needed:
            found = f"{path}, line {number} has {len(columns)} columns"
            raise UserError(f"{found}; it must have at least {needed}; correct the line, or src_column and tgt_column")
        yield columns[src], columns[tgt]


def _column_number(column: int | str, header: Sequence[str], path: Path) -> int:
    """The number of a column, counted from 0; raises UserError for a name that the header does not have once."""
    if isinstance(column, int):
        return column
    if header.count(column) != 1:
        names = ", ".join(map(repr, header))
        raise UserError(
            f"{path}, line 1 has {header.count(column)} columns {column!r}; its columns are {names}; "
            "correct src_column and tgt_column, or give numbers counted from 0"
        )
    return header.index(column)


def _read_sgm(src: Path, tgt: Path, invalid_utf8: InvalidUtf8) -> Iterator[Pair]:
    return _zip_sides(_sgm_segments(src, invalid_utf8), _sgm_segments(tgt, invalid_utf8), src, tgt)


def _sgm_segments(path: Path, invalid_utf8: InvalidUtf8) -> list[str]:
    return [_one_line(segment).strip() for segment in sgm_segments("\n".join(read_lines(path, invalid_utf8)), path)]


def _read_xml(path: Path, src_lang: str, tgt_lang: str) -> Iterator[Pair]:
    with _decompressed(path) as file:
        for src, tgt in xml_pairs(file, path, src_lang, tgt_lang):
            yield _one_line(src).strip(), _one_line(tgt).strip()


def _read_parquet(corpus: ParquetCorpus, path: Path) -> Iterator[Pair]:
    with _parquet_file(path) as file:
        fields = (corpus.src_field, corpus.tgt_field)
        for record in _parquet_records(file, [field.partition(".")[0] for field in fields]):
            yield _fields(record, *fields, where=str(path))


@contextmanager
def _parquet_file(path: Path) -> Iterator[Any]:
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield file
    except (ArrowException, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} cannot be read ({reason}); it must be a Parquet file; fetch it again") from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _parquet_records(file: Any, columns: list[str]) -> Iterator[dict[str, Any]]:
    present = [column for column in dict.fromkeys(columns) if column in file.schema_arrow.names]
    wanted = present if len(present) == len(set(columns)) else None  # All of them, for the error to name.
    for batch in file.iter_batches(_RECORDS_PER_BATCH, columns=wanted):
        yield from batch.to_pylist()


def _read_json_lines(corpus: JsonLinesCorpus, path: Path, invalid_utf8: InvalidUtf8) -> Iterator[Pair]:
    for number, line in enumerate(read_lines(path, invalid_utf8), start=1):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        yield _fields(parse_json(line, where), corpus.src_field, corpus.tgt_field, where)


def _read_hugging_face(corpus: HuggingFaceCorpus, data: DataRecipe, src_lang: str, tgt_lang: str) -> Iterator[Pair]:
    from datasets.load import load_dataset  # noqa: PLC0415 - takes a second that only those who need it shall wait

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it would announce every attempt to connect
    folder = _locate(Path(corpus.dataset), data)
    name = str(folder) if folder.is_dir() else corpus.dataset
    src_field = corpus.src_field or f"translation.{src_lang}"
    tgt_field = corpus.tgt_field or f"translation.{tgt_lang}"
    try:
        dataset = load_dataset(name, corpus.config, split=corpus.split, revision=corpus.revision, streaming=True)
        records = iter(dataset)
        while (record := next(records, None)) is not None:
            yield _fields(record, src_field, tgt_field, where=f"dataset {name}")
    except UserError:
        raise
    except Exception as error:  # The library lets through errors of a dozen packages: of the network, of file formats.
        reason = " ".join(str(error).split()) or type(error).__name__
        remedy = "without a network, download it elsewhere (hf download --repo-type dataset) and give the folder's path"
        raise UserError(f"dataset {name} cannot be read ({reason}); check name, config and split; {remedy}") from error


def _read_sacrebleu(corpus: SacrebleuCorpus, src_lang: str, tgt_lang: str) -> Iterator[Pair]:
    src, refs = sacrebleu_files(corpus.test_set, f"{src_lang}-{tgt_lang}")
    yield from _read_text(src, refs[0], "error")


def sacrebleu_files(name: str, lang_pair: str) -> tuple[Path, list[Path]]:
    """The source and the reference files of a test set that sacreBLEU knows, from its cache or downloaded now.

    `lang_pair` is written as in `en-de`. Raises UserError for an unknown name or pair, and when it cannot be had.
    """
    if name not in DATASETS:
        raise UserError(f"sacreBLEU knows no test set {name!r}; `sacrebleu --list` shows the names; correct test_set")
    test_set: Any = DATASETS[name]
    if lang_pair not in test_set.langpairs:
        pairs = ", ".join(sorted(test_set.langpairs))
        raise UserError(f"sacreBLEU's {name} has no {lang_pair}; it has {pairs}; choose one")
    try:
        src = Path(test_set.get_source_file(lang_pair))
        refs = [Path(file) for file in test_set.get_reference_files(lang_pair)]
    except (Exception, SystemExit) as error:  # of the network, of archives and XML; it exits for a wrong checksum
        remedy = f"run `sacrebleu -t {name} -l {lang_pair} --echo src` where there is a network, copy its ~/.sacrebleu"
        raise UserError(
            f"sacreBLEU cannot download {name} ({error}); {remedy} to {SACREBLEU_DIR}; or use local files"
        ) from error
    return src, refs


def _fields(record: Any, src_field: str, tgt_field: str, where: str) -> Pair:
    """Source and target sentence of a record."""
    return text_field(record, src_field, where), text_field(record, tgt_field, where)


def parse_json(line: str, where: str) -> Any:
    """What a line of JSON says; raises UserError, with `where` it stands, for anything else."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:  # a number of too many digits is no JSONDecodeError
        reason = " ".join(str(error).split())
        raise UserError(f"{where} is not JSON ({reason}); each line must be one JSON object; mend it") from error


def text_field(record: Any, name: str, where: str, remedy: str = "correct src_field or tgt_field") -> str:
    """The text of a field on one line, which a dotted name finds in nested records; a null is an empty text.

    Raises UserError, with `where` the record stands and what to do, when there is no such field or no text in it.
    """
    value = record
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            names = ", ".join(map(repr, value)) if isinstance(value, dict) else f"no fields but {value!r:.60}"
            raise UserError(f"{where} has no field {name!r}; there are {names}; {remedy}")
        value = value[part]
    if value is not None and not isinstance(value, str):
        kind = type(value).__name__
        raise UserError(f"{where}: field {name!r} is of type {kind}; it must be text; {remedy}")
    return _one_line(valid_unicode(value or ""))


def _one_line(text: str) -> str:
    return text.replace("\n", " ")
