"""Readers of sentence pairs, one per corpus kind."""

from __future__ import annotations

import logging
import os
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import accumulate, chain, islice, pairwise
from pathlib import Path
from typing import Any, Literal, assert_never

import pyarrow.parquet
from pyarrow.lib import ArrowException

from nmt.data.store import Side
from nmt.errors import UserError, message_of
from nmt.grammar import generate, source_files
from nmt.logs import counted
from nmt.recipe import (
    NO_CONTEXT,
    Context,
    Corpus,
    HuggingFaceCorpus,
    JsonLinesCorpus,
    MonolingualCorpus,
    ParquetCorpus,
    Recipe,
    SacrebleuCorpus,
    SgmCorpus,
    TextCorpus,
    TmxCorpus,
    ToyCorpus,
    TreesCorpus,
    TsvCorpus,
    named_files,
)
from nmt.storage.shards import require_all_shards
from nmt.text.clean import Pair
from nmt.text.context import join_lines, last_lines
from nmt.text.format_warnings import has_csv_name
from nmt.text.json_fields import parse_json, text_field
from nmt.text.lines import InvalidUtf8, count_lines, decompressed, read_lines, reject_pipe, unreadable
from nmt.text.sacrebleu_sets import sacrebleu_documents, sacrebleu_files
from nmt.text.tmx import tmx_pairs
from nmt.text.trees import read_treebank
from nmt.text.tsv import TsvCheck
from nmt.text.wmt_files import check_same_order, segment_ids, sgm_segments, xml_documents

Labels = tuple[str, ...]
OnRead = Callable[[int, Sequence[Pair]], None]
"""Receives the index of a corpus and its next pairs."""

PAIRS_PER_CHUNK = 4096
_RECORDS_PER_BATCH = 4096


@dataclass(frozen=True)
class ReadOptions:
    """Options common to all corpora of a recipe. Relative paths are relative to `root`.

    accept_integers: accept integers in fields of records and read them as text; labels are often integers
    """

    root: Path
    src_lang: str
    tgt_lang: str
    invalid_utf8: InvalidUtf8 = "error"
    accept_integers: bool = False

    @classmethod
    def from_recipe(cls, recipe: Recipe) -> ReadOptions:
        """Return the options of a recipe."""
        return cls(recipe.data.root, recipe.src_lang, recipe.tgt_lang, recipe.data.invalid_utf8)

    def of(self, corpus: Corpus) -> ReadOptions:
        """Return the options with the languages of a corpus."""
        src_lang, tgt_lang = corpus.languages(self)
        return replace(self, src_lang=src_lang, tgt_lang=tgt_lang)


def read_chunks(
    corpora: Sequence[Corpus],
    options: ReadOptions,
    on_read: OnRead | None = None,
    context: Context = NO_CONTEXT,
) -> Iterator[tuple[int, list[Pair]]]:
    """Yield the pairs of all corpora in chunks, with the index of their corpus; a chunk never spans two corpora.

    on_read: receives the pairs of each chunk, without context
    context: context to prepend to each pair, see `join_lines`

    Raises UserError as `read_pairs` does.
    """
    for index, corpus in enumerate(corpora):
        pairs = read_pairs(corpus, options)
        if context.size:
            pairs = join_lines(pairs, context, read_documents(corpus, options))
        while chunk := list(islice(pairs, PAIRS_PER_CHUNK)):
            if on_read is not None:
                on_read(index, list(map(last_lines, chunk)) if context.size else chunk)
            yield index, chunk


def read_pairs(corpus: Corpus, options: ReadOptions) -> Iterator[Pair]:
    """Yield the sentence pairs of a corpus before cleaning: valid Unicode without line feeds.

    Uses only the first reference; `nmt.data.test_sets` reads all. Raises UserError for files that are unreadable
    or damaged, and for sides of different lengths.
    """
    options = options.of(corpus)
    root, invalid_utf8 = options.root, options.invalid_utf8
    match corpus:
        case TextCorpus():
            return _read_text(_existing(corpus.src, root), _existing(corpus.references[0], root), invalid_utf8)
        case TsvCorpus():
            return _read_tsv(corpus, _existing(corpus.path, root), invalid_utf8)
        case SgmCorpus():
            src = _existing(corpus.src, root)
            if not corpus.references:
                return chain.from_iterable(_read_xml(src, options))
            return _read_sgm(src, _existing(corpus.references[0], root), options)
        case TmxCorpus():
            return _read_tmx(corpus, _existing(corpus.path, root), options)
        case ParquetCorpus():
            return _read_parquet(corpus, _existing(corpus.path, root), options)
        case JsonLinesCorpus():
            return _read_json_lines(corpus, _existing(corpus.path, root), options)
        case HuggingFaceCorpus():
            return _read_hugging_face(corpus, options)
        case SacrebleuCorpus():
            src, refs = sacrebleu_files(corpus.test_set, f"{options.src_lang}-{options.tgt_lang}")
            return _read_text(src, refs[0], "error")
        case TreesCorpus():
            path = _existing(corpus.path, root)
            return read_treebank(read_lines(path, invalid_utf8), str(path))
        case MonolingualCorpus():
            return (("", line) for line in read_lines(_existing(corpus.path, root), invalid_utf8))
        case ToyCorpus():
            toy = generate(corpus.split, corpus.pairs, corpus.seed, documents=corpus.documents)
            return ((pair.src, pair.tgt) for pair in toy)
        case _:
            assert_never(corpus)


def read_labels(corpus: Corpus, options: ReadOptions) -> Iterator[Labels] | None:
    """Yield the labels of each pair, such as its domain; return None if the corpus has none.

    Raises UserError as `read_pairs` does.
    """
    if isinstance(corpus, ToyCorpus):
        return (pair.labels for pair in generate(corpus.split, corpus.pairs, corpus.seed, documents=corpus.documents))
    labels = _read_values(corpus, options, "label")
    return None if labels is None else (tuple(text.split()) for text in labels)


def _read_values(corpus: Corpus, options: ReadOptions, name: Literal["label", "document"]) -> Iterator[str] | None:
    """Yield the label or document of each pair, without the CR of CRLF; return None if the recipe names no field."""
    match corpus:
        case TsvCorpus() if (column := getattr(corpus, f"{name}_column")) is not None:
            swapped = {"tgt_column": column, f"{name}_column": corpus.tgt_column}  # keeps `has_header`
            other: Corpus = corpus.model_copy(update=swapped)
        case ParquetCorpus() | JsonLinesCorpus() | HuggingFaceCorpus() if field := getattr(corpus, f"{name}_field"):
            other = corpus.model_copy(update={"tgt_field": field})
        case _:
            return None
    return (value.removesuffix("\r") for _, value in read_pairs(other, replace(options, accept_integers=True)))


def read_documents(corpus: Corpus, options: ReadOptions) -> Iterator[Hashable] | None:
    """Yield an identifier of the document of each pair; return None if only empty pairs separate documents.

    Raises UserError as `read_pairs` does.
    """
    options = options.of(corpus)
    match corpus:
        case SgmCorpus():
            src = _existing(corpus.src, options.root)
            if not corpus.references:
                return (number for number, pairs in enumerate(_read_xml(src, options)) for _ in pairs)
            text = "\n".join(read_lines(src, options.invalid_utf8))
            return (document for document, _, _ in segment_ids(text))
        case SacrebleuCorpus():
            ids = sacrebleu_documents(corpus.test_set, f"{options.src_lang}-{options.tgt_lang}")
            return None if ids is None else read_lines(ids)
        case ToyCorpus() if corpus.documents:
            return (number // 2 for number in range(corpus.pairs))
        case _:
            return _read_values(corpus, options, "document")


def alignment_file(corpus: Corpus, root: Path) -> Path | None:
    """Return the file of word alignments of a corpus; raise UserError if it does not exist."""
    return None if corpus.alignment is None else _existing(corpus.alignment, root)


def input_files(corpus: Corpus, root: Path) -> list[Path]:
    """Return the local files that determine the contents of a corpus, in a fixed order; none for downloads."""
    match corpus:
        case HuggingFaceCorpus():
            return sorted(_dataset_files(resolve(Path(corpus.dataset), root)))
        case ToyCorpus():
            return source_files()
        case _:
            return [resolve(path, root) for path in named_files(corpus)]


def _dataset_files(folder: Path, enclosing: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Yield the files of a dataset; follows links to folders, like `datasets`, except to an enclosing folder.

    Excludes hidden files and folders, such as .cache, which downloads rewrite.
    """
    target = folder.resolve()
    if not folder.is_dir() or target in enclosing:
        return
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _dataset_files(path, enclosing | {target})
        elif path.is_file():
            yield path


def require_files(corpora: Iterable[Corpus], root: Path) -> None:
    """Raise UserError if a file that a corpus names does not exist, or if `_local_dataset` rejects a dataset."""
    for corpus in corpora:
        for path in named_files(corpus):
            _existing(path, root)
        if isinstance(corpus, HuggingFaceCorpus):
            _local_dataset(corpus, root)


def count_pairs(corpus: Corpus, root: Path) -> int | None:
    """Return the number of pairs if counting is faster than reading, else None.

    Counts blank lines of JSON Lines too. Raises UserError if two text files have different numbers of lines.
    """
    match corpus:
        case TextCorpus():
            src, tgt = _existing(corpus.src, root), _existing(corpus.references[0], root)
            src_count, tgt_count = count_lines(src), count_lines(tgt)
            if src_count != tgt_count:
                raise _unequal_sides(src, src_count, tgt, tgt_count)
            return src_count
        case TsvCorpus():
            num_lines = count_lines(_existing(corpus.path, root))
            return max(num_lines - 1, 0) if corpus.has_header else num_lines
        case JsonLinesCorpus() | MonolingualCorpus():
            return count_lines(_existing(corpus.path, root))
        case ParquetCorpus():
            with _parquet_file(_existing(corpus.path, root)) as file:
                return int(file.metadata.num_rows)
        case ToyCorpus():
            return corpus.pairs
        case SgmCorpus() | TmxCorpus() | HuggingFaceCorpus() | SacrebleuCorpus() | TreesCorpus():
            return None
        case _:
            assert_never(corpus)


def pair_location(corpus: Corpus, root: Path, number: int, side: Side) -> str:
    """Return the location of pair `number` of a corpus, counted from 1, such as file and line."""
    files = input_files(corpus, root)
    match corpus:
        case TextCorpus() | MonolingualCorpus() | SgmCorpus():
            file = files[1] if side == "tgt" and len(files) > 1 else files[0]
            return f"{file}, segment {number}" if isinstance(corpus, SgmCorpus) else f"{file}:{number}"
        case TsvCorpus():
            return f"{files[0]}:{number + 1 if corpus.has_header else number}"
        case TreesCorpus():
            return f"{files[0]}, tree {number}"
        case JsonLinesCorpus() if files[0].exists():
            return f"{files[0]}:{number + bisect_left(_records_before_blank_lines(files[0]), number)}"
        case TmxCorpus():
            return f"{files[0]}, unit {number} in these languages"
        case ParquetCorpus() | JsonLinesCorpus():
            return f"{files[0]}, record {number}"
        case HuggingFaceCorpus():
            return f"{corpus.dataset} {corpus.split}, record {number}"
        case SacrebleuCorpus():
            return f"{corpus.test_set}:{number}"
        case ToyCorpus():
            return f"toy {corpus.split}, pair {number}"
        case _:
            assert_never(corpus)


# --- Files ----------------------------------------------------------------------------------------------------------


def resolve(path: Path, root: Path) -> Path:
    """Expand ~ and ~USER in a path relative to `root`; without such a user, ~USER is a file name."""
    return Path(os.path.expanduser(root), os.path.expanduser(path))  # noqa: PTH111 - pathlib raises an error


def _existing(path: Path, root: Path) -> Path:
    resolved = reject_pipe(resolve(path, root))
    if resolved.exists():
        return resolved
    wrong = f"cannot read {resolved.absolute()}: No such file"
    if resolve(path, Path()).is_absolute():
        raise UserError(f"{wrong}; correct the path of the corpus")
    raise UserError(f"{wrong}; {path} is relative to data.root, which is {root}; correct one of them")


def _unequal_sides(src: Path, src_count: int, tgt: Path, tgt_count: int) -> UserError:
    return UserError(
        f"{src} has {counted(src_count, 'sentence')} and {tgt} has {tgt_count:,}; both sides must be aligned line by "
        "line; download both files again, or find the misaligned lines"
    )


# --- Corpus kinds ---------------------------------------------------------------------------------------------------


def _read_text(src: Path, tgt: Path, invalid_utf8: InvalidUtf8) -> Iterator[Pair]:
    try:
        yield from zip(read_lines(src, invalid_utf8), read_lines(tgt, invalid_utf8), strict=True)
    except ValueError:
        raise _unequal_sides(src, count_lines(src), tgt, count_lines(tgt)) from None


def _read_tsv(corpus: TsvCorpus, path: Path, invalid_utf8: InvalidUtf8) -> Iterator[Pair]:
    lines = enumerate(read_lines(path, invalid_utf8), start=1)
    header: list[str] = []
    if corpus.has_header:
        _, first_line = next(lines, (1, ""))
        header = first_line.removesuffix("\r").split("\t")
    src = _column_index(corpus.src_column, header, path)
    tgt = _column_index(corpus.tgt_column, header, path)
    min_columns = max(src, tgt) + 1
    check = TsvCheck(path, len(header))
    for number, line in lines:
        if not line.strip("\r"):  # an empty line ends a document
            yield "", ""
            continue
        columns = line.split("\t")
        check.add(number, columns)
        if len(columns) < min_columns:
            wrong = f"{path}, line {number} has {counted(len(columns), 'column')}; expected at least {min_columns}"
            remedy = "correct the line, or the columns of the corpus"
            if has_csv_name(path):
                remedy = "convert the CSV file to TSV"
            raise UserError(f"{wrong}; {remedy}")
        yield columns[src], columns[tgt]
    check.warn()


def _column_index(column: int | str, header: Sequence[str], path: Path) -> int:
    """Return the index of a column; raise UserError unless its name occurs exactly once in the header."""
    if isinstance(column, int):
        return column
    count = header.count(column)
    if count != 1:
        names = ", ".join(map(repr, header))
        found = f"{count} columns" if count else "no column"
        raise UserError(
            f"{path}, line 1 has {found} {column!r}; its columns are {names}; "
            "correct the names, or use column numbers counted from 0"
        )
    return header.index(column)


def _read_sgm(src: Path, tgt: Path, options: ReadOptions) -> Iterator[Pair]:
    src_text, tgt_text = ("\n".join(read_lines(path, options.invalid_utf8)) for path in (src, tgt))
    src_segments, tgt_segments = sgm_segments(src_text, src), sgm_segments(tgt_text, tgt)
    if len(src_segments) != len(tgt_segments):
        raise _unequal_sides(src, len(src_segments), tgt, len(tgt_segments))
    check_same_order(src_text, src, tgt_text, tgt)
    return zip(src_segments, tgt_segments, strict=True)


def _read_xml(path: Path, options: ReadOptions) -> Iterator[list[Pair]]:
    """Yield the pairs of each document."""
    with decompressed(path) as file:
        yield from xml_documents(file, path, options.src_lang, options.tgt_lang)


def _read_tmx(corpus: TmxCorpus, path: Path, options: ReadOptions) -> Iterator[Pair]:
    src, tgt = corpus.src_locale or options.src_lang, corpus.tgt_locale or options.tgt_lang
    with decompressed(path) as file:
        yield from tmx_pairs(file, path, src, tgt)


def _read_parquet(corpus: ParquetCorpus, path: Path, options: ReadOptions) -> Iterator[Pair]:
    fields = (corpus.src_field, corpus.tgt_field)
    with _parquet_file(path) as file:
        names = file.schema_arrow.names
        columns = list(dict.fromkeys(field if field in names else field.partition(".")[0] for field in fields))
        # If a column is missing, read all: the error for the missing field lists the existing ones.
        selected = columns if set(columns) <= set(names) else None
        for batch in file.iter_batches(_RECORDS_PER_BATCH, columns=selected):
            for record in batch.to_pylist():
                yield _fields(record, *fields, str(path), options)


@contextmanager
def _parquet_file(path: Path) -> Iterator[Any]:
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield file
    except (ArrowException, UnicodeDecodeError) as error:
        raise UserError(
            f"{path} cannot be read ({message_of(error)}); expected a Parquet file; download it again"
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error


def _read_json_lines(corpus: JsonLinesCorpus, path: Path, options: ReadOptions) -> Iterator[Pair]:
    for number, line in enumerate(read_lines(path, options.invalid_utf8), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            yield _fields(parse_json(line, where), corpus.src_field, corpus.tgt_field, where, options)


@lru_cache(maxsize=8)
def _records_before_blank_lines(path: Path) -> list[int]:
    """Return the number of records before each blank line of a JSON Lines file."""
    is_record = accumulate((bool(line.strip()) for line in read_lines(path, "replace")), initial=0)
    return [before for before, after in pairwise(is_record) if before == after]


def _read_hugging_face(corpus: HuggingFaceCorpus, options: ReadOptions) -> Iterator[Pair]:
    folder = _local_dataset(corpus, options.root)
    from datasets.load import load_dataset  # noqa: PLC0415 - importing takes a second

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it logs every connection attempt
    name = corpus.dataset if folder is None else str(folder)
    src_field = corpus.src_field or f"translation.{options.src_lang}"
    tgt_field = corpus.tgt_field or f"translation.{options.tgt_lang}"
    load: Callable[..., Any] = partial(
        load_dataset, name, corpus.config, split=corpus.split, revision=corpus.revision, streaming=True
    )
    try:
        dataset = load()
        if dataset.info.builder_name == "csv":  # pandas would read words such as None as missing, and parse numbers
            dataset = load(keep_default_na=False, converters={src_field: str, tgt_field: str})
        for record in dataset:
            yield _fields(record, src_field, tgt_field, f"dataset {name}", options)
    except UserError:
        raise
    except Exception as error:  # network and file format packages raise many types
        reason = message_of(error) or type(error).__name__
        if isinstance(error, StopIteration):
            reason = "its files are empty"
        remedy = "check files, config and split"
        if "load_from_disk" in reason:
            remedy = "save it in another format, such as dataset.to_parquet(...) in its own directory"
        elif folder is None:
            local = "copy it (hf download --repo-type dataset) and set `dataset` to its path"
            remedy += f"; without network access, {local}"
        raise UserError(f"dataset {name} cannot be read ({reason}); {remedy}") from error


def _local_dataset(corpus: HuggingFaceCorpus, root: Path) -> Path | None:
    """Return a dataset's directory, None if on the Hub; raise UserError for a file, missing shards or a revision."""
    path = resolve(Path(corpus.dataset), root)
    if corpus.dataset.startswith((".", "/", "~")):
        _existing(Path(corpus.dataset), root)
    if path.is_file():
        raise UserError(f"dataset {path} is a file; it must be a directory; name its directory, or use another kind")
    if path.is_dir() and corpus.revision is not None:
        raise UserError(f"the local dataset {path} has no revisions; only the Hub has them; remove revision")
    if not path.is_dir() and Path(corpus.dataset).exists():  # load_dataset would read it instead of the Hub
        raise UserError(f"dataset {path} does not exist, but {Path(corpus.dataset).absolute()} does; correct data.root")
    if not path.is_dir():
        return None
    require_all_shards(file for file in input_files(corpus, root) if corpus.split in str(file.relative_to(path)))
    return path


def _fields(record: Any, src_field: str, tgt_field: str, where: str, options: ReadOptions) -> Pair:
    src = text_field(record, src_field, where, accept_integers=options.accept_integers)
    tgt = text_field(record, tgt_field, where, accept_integers=options.accept_integers)
    return src, tgt
