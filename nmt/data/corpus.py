"""Where sentence pairs come from: files of every common kind, test sets by name, and the built-in toy corpus."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, assert_never

import pyarrow.parquet
from pyarrow.lib import ArrowException
from sacrebleu.dataset import DATASETS
from sacrebleu.utils import SACREBLEU_DIR

from nmt.data.wmt_files import sgm_segments, xml_pairs
from nmt.grammar import generate, source_files
from nmt.recipe import (
    Corpus,
    DataRecipe,
    HuggingFaceCorpus,
    JsonLinesCorpus,
    ParquetCorpus,
    SacrebleuCorpus,
    SgmCorpus,
    TextCorpus,
    ToyCorpus,
    TreesCorpus,
    TsvCorpus,
    UserError,
)
from nmt.text.json_fields import one_line, parse_json, text_field
from nmt.text.lines import InvalidUtf8, count_lines, decompressed, read_lines, unreadable
from nmt.text.trees import linearize, read_tree, words

Pair = tuple[str, str]
Labels = tuple[str, ...]

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
        case TreesCorpus():
            return _read_trees(_find(corpus.path, data), data.invalid_utf8)
        case ToyCorpus():
            return ((pair.src, pair.tgt) for pair in generate(corpus.split, corpus.pairs, corpus.seed))
        case _:
            assert_never(corpus)


def read_labels(corpus: Corpus, data: DataRecipe, src_lang: str, tgt_lang: str) -> Iterator[Labels] | None:
    """The labels of each pair, such as its domain or what makes it difficult; None if the corpus has none.

    Raises UserError as `read_pairs` does.
    """
    match corpus:
        case TsvCorpus() if corpus.label_column is not None:
            labeled: Corpus = corpus.model_copy(update={"tgt_column": corpus.label_column})
        case ParquetCorpus() | JsonLinesCorpus() | HuggingFaceCorpus() if corpus.label_field is not None:
            labeled = corpus.model_copy(update={"tgt_field": corpus.label_field})
        case ToyCorpus():
            return (pair.labels for pair in generate(corpus.split, corpus.pairs, corpus.seed))
        case _:
            return None
    return (tuple(labels.split()) for _, labels in read_pairs(labeled, data, src_lang, tgt_lang))


def input_files(corpus: Corpus, data: DataRecipe) -> list[Path]:
    """The local files that decide what a corpus is, in a fixed order; none for what is downloaded."""
    match corpus:
        case TextCorpus() | SgmCorpus():
            return [_locate(path, data) for path in (corpus.src, *corpus.references)]
        case TsvCorpus() | ParquetCorpus() | JsonLinesCorpus() | TreesCorpus():
            return [_locate(corpus.path, data)]
        case HuggingFaceCorpus():
            folder = _locate(Path(corpus.dataset), data)
            visible = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
            return sorted(visible) if folder.is_dir() else []
        case SacrebleuCorpus():
            return []
        case ToyCorpus():
            return source_files()
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
        case ToyCorpus():
            return corpus.pairs
        case SgmCorpus() | HuggingFaceCorpus() | SacrebleuCorpus() | TreesCorpus():
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
            raise UserError(f"{found}; it must have at least {needed}; correct the line, or the columns in the recipe")
        yield columns[src], columns[tgt]


def _column_number(column: int | str, header: Sequence[str], path: Path) -> int:
    """The number of a column, counted from 0; raises UserError for a name that the header does not have once."""
    if isinstance(column, int):
        return column
    if header.count(column) != 1:
        names = ", ".join(map(repr, header))
        raise UserError(
            f"{path}, line 1 has {header.count(column)} columns {column!r}; its columns are {names}; "
            "correct the names in the recipe, or give numbers counted from 0"
        )
    return header.index(column)


def _read_sgm(src: Path, tgt: Path, invalid_utf8: InvalidUtf8) -> Iterator[Pair]:
    return _zip_sides(_sgm_segments(src, invalid_utf8), _sgm_segments(tgt, invalid_utf8), src, tgt)


def _sgm_segments(path: Path, invalid_utf8: InvalidUtf8) -> list[str]:
    return [one_line(segment).strip() for segment in sgm_segments("\n".join(read_lines(path, invalid_utf8)), path)]


def _read_xml(path: Path, src_lang: str, tgt_lang: str) -> Iterator[Pair]:
    with decompressed(path) as file:
        for src, tgt in xml_pairs(file, path, src_lang, tgt_lang):
            yield one_line(src).strip(), one_line(tgt).strip()


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
        raise unreadable(path, error) from error


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


def _read_trees(path: Path, invalid_utf8: InvalidUtf8) -> Iterator[Pair]:
    """The words of each tree, and the tree as a target. A tree may go over several lines, as treebanks print them."""
    begun: list[str] = []
    first = depth = 0
    for number, line in enumerate(read_lines(path, invalid_utf8), start=1):
        if not begun and not line.strip():
            continue
        first = first if begun else number
        begun.append(line)
        depth += line.count("(") - line.count(")")
        if depth <= 0:
            yield _tree_pair(" ".join(begun), f"{path}, line {first}")
            begun, depth = [], 0
    if begun:
        _tree_pair(" ".join(begun), f"{path}, line {first}")


def _tree_pair(text: str, where: str) -> Pair:
    try:
        tree = read_tree(text)
    except ValueError as error:
        raise UserError(
            f"{where}: {error}; it must be a tree such as (S (NP (NN dog)) (VP (VBZ sleeps))); correct it"
        ) from error
    return " ".join(words(tree)), linearize(tree)


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
