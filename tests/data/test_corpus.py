"""Reading corpora: text, columns, records, labels and trees."""

import json
import os
import re
import tarfile
from pathlib import Path
from typing import Any, Literal

import pyarrow
import pyarrow.parquet
import pytest

from nmt.data.corpus import (
    ReadOptions,
    alignment_file,
    count_pairs,
    input_files,
    read_documents,
    read_labels,
    read_pairs,
)
from nmt.errors import UserError
from nmt.recipe import Corpus, JsonLinesCorpus, ParquetCorpus, TextCorpus, TreesCorpus, TsvCorpus
from nmt.text.lines import read_lines
from tests.data.corpus_files import COMPRESSORS, SRC, TGT, one_line_error, options, read, write, write_parquet

# --- Text ---


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_text_files_are_read_line_by_line(suffix: str, tmp_path: Path) -> None:
    write(tmp_path / f"a.{suffix}", SRC, suffix)
    write(tmp_path / "b", TGT)
    corpus = TextCorpus(src=f"a.{suffix}", tgt=tmp_path / "b")
    assert read(corpus, tmp_path) == list(zip(SRC, TGT, strict=True))
    assert count_pairs(corpus, tmp_path) == len(SRC)
    assert input_files(corpus, tmp_path) == [tmp_path / f"a.{suffix}", tmp_path / "b"]


@pytest.mark.parametrize(("src_count", "tgt_count"), [(3, 1204), (1204, 3), (0, 2), (2500, 3000)])
def test_sides_of_different_length(src_count: int, tgt_count: int, tmp_path: Path) -> None:
    write(tmp_path / "a", ["x"] * src_count)
    write(tmp_path / "b", ["y"] * tgt_count)
    expected = rf"a has {src_count:,} sentences and .*b has {tgt_count:,}"
    one_line_error(TextCorpus(src="a", tgt="b"), tmp_path, expected)
    with pytest.raises(UserError, match=expected):
        count_pairs(TextCorpus(src="a", tgt="b"), tmp_path)


def test_missing_file(tmp_path: Path) -> None:
    one_line_error(TextCorpus(src="a", tgt="b"), tmp_path / "nowhere", r"nowhere/a: No such file.*data\.root")
    with pytest.raises(UserError, match=r"No such file.*data\.root"):
        count_pairs(TextCorpus(src="a", tgt="b"), tmp_path)
    one_line_error(TextCorpus(src=".", tgt="."), tmp_path, "Is a directory")


def test_missing_file_error_has_the_resolved_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tried = re.escape(str(tmp_path / "texts" / "a.en"))
    relative = TextCorpus(src="a.en", tgt="a.de")
    with pytest.raises(UserError, match=rf"{tried}: No such file; a\.en is relative to data\.root, which is texts;"):
        list(read_pairs(relative, options(Path("texts"))))
    absolute = TextCorpus(src=str(tmp_path / "b.en"), tgt="a.de")
    with pytest.raises(UserError, match=r"b\.en: No such file; correct the path of the corpus") as caught:
        count_pairs(absolute, Path("texts"))
    assert "data.root" not in str(caught.value)
    with pytest.raises(UserError, match=r"/texts/~nobody0/a\.en: No such file; ~nobody0/a\.en is relative to"):
        count_pairs(TextCorpus(src="~nobody0/a.en", tgt="a.de"), Path("texts"))
    with pytest.raises(UserError, match=rf"{re.escape(str(tmp_path / 'none'))}: No such file") as caught:
        list(read_lines(Path("none")))
    assert "data.root" not in str(caught.value)


def test_invalid_utf8_replacement(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xff\n")
    write(tmp_path / "b", ["b"])
    one_line_error(TextCorpus(src="a", tgt="b"), tmp_path, "a, line 1")
    assert read(TextCorpus(src="a", tgt="b"), tmp_path, invalid_utf8="replace") == [("\ufffd", "b")]


# --- Columns, records ---


def test_columns_of_tsv_are_selected_by_number(tmp_path: Path) -> None:
    lines = [f"{number}\t{tgt}\t{src}" for number, (src, tgt) in enumerate(zip(SRC, TGT, strict=True))]
    write(tmp_path / "pairs.tsv", lines)
    corpus = TsvCorpus(path="pairs.tsv", src_column=2, tgt_column=1)
    assert read(corpus, tmp_path) == list(zip(SRC, TGT, strict=True))
    assert count_pairs(corpus, tmp_path) == len(SRC)
    write(tmp_path / "pairs.tsv", ["a\tb\tc", "a\tb"])
    one_line_error(corpus, tmp_path, r"pairs\.tsv, line 2 has 2 columns; expected at least 3")
    write(tmp_path / "pairs.tsv", ["a b c"])
    one_line_error(corpus, tmp_path, r"pairs\.tsv, line 1 has 1 column; expected at least 3")


def test_csv_quotes_in_tsv_are_a_warning(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`csv` and pandas write them into TSV as well."""
    write(tmp_path / "plain.tsv", ['"Yes."\t"Ja."', '"\t"', '"" a ""\t""', '"A" and "B"\tb', 'an ""a""\ta'])
    assert read(TsvCorpus(path="plain.tsv", src_column=0, tgt_column=0), tmp_path)
    assert "quotes" not in capfd.readouterr().err
    write(tmp_path / "quoted.tsv", ["A man.\tEin Mann.", '"He said ""no""."\t"Er sagte ""nein""."'])
    assert read(TsvCorpus(path="quoted.tsv"), tmp_path)[1][0] == '"He said ""no""."'
    message = 'quoted.tsv has columns in quotes with "" inside, as in CSV (first: line 2); quotes in TSV are text;'
    assert message in capfd.readouterr().err


def test_tsv_lines_of_different_lengths_are_a_warning(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A superfluous tab moves a part of the source to the target."""
    corpus = TsvCorpus(path="pairs.tsv")
    write(tmp_path / "pairs.tsv", ["A man.\tEin Mann.", "", "A girl.\tEin Kind.", "A big\tdog.\tEin Hund."])
    for _ in range(2):  # a corpus may be read several times
        assert read(corpus, tmp_path)[-1] == ("A big", "dog.")
    assert capfd.readouterr().err == (
        f"warning: {tmp_path / 'pairs.tsv'} has different numbers of columns (2 columns in line 1, 3 columns in line "
        "4); an extra tab shifts columns; check these lines\n"
    )


def test_documents_of_a_file_with_crlf(tmp_path: Path) -> None:
    """The last line may lack a line ending; the document column is the same with and without it."""
    (tmp_path / "pairs.tsv").write_bytes("the cat\tdie Katze\t7\r\n\r\nit runs\tsie läuft\t7".encode())
    documents = read_documents(TsvCorpus(path="pairs.tsv", document_column=2), ReadOptions(tmp_path, "en", "de"))
    assert documents is not None
    assert list(documents) == ["7", "", "7"]


def test_tsv_with_a_header(tmp_path: Path) -> None:
    rows = [f"{number}\t{tgt}\t{src}" for number, (src, tgt) in enumerate(zip(SRC, TGT, strict=True))]
    write(tmp_path / "pairs.tsv", ["id\tGerman\tEnglish", *rows])
    for src_column in ("English", 2):  # one name implies a header
        corpus = TsvCorpus(path="pairs.tsv", src_column=src_column, tgt_column="German")
        assert read(corpus, tmp_path) == list(zip(SRC, TGT, strict=True))
        assert count_pairs(corpus, tmp_path) == len(SRC)
    missing = TsvCorpus(path="pairs.tsv", src_column="French", tgt_column="German")
    one_line_error(missing, tmp_path, r"pairs\.tsv, line 1 has no column 'French'; its columns are 'id', 'German', 'En")
    write(tmp_path / "pairs.tsv", [])
    assert count_pairs(missing, tmp_path) == 0
    one_line_error(missing, tmp_path, r"pairs\.tsv, line 1 has no column 'French'")


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_json_lines_have_nested_fields(suffix: str, tmp_path: Path) -> None:
    records = [{"translation": {"en": src, "de": tgt}, "id": 7} for src, tgt in zip(SRC, TGT, strict=True)]
    write(tmp_path / f"pairs.{suffix}", [json.dumps(record, ensure_ascii=False) for record in records], suffix)
    corpus = JsonLinesCorpus(path=f"pairs.{suffix}", src_field="translation.en", tgt_field="translation.de")
    assert read(corpus, tmp_path) == list(zip(SRC, TGT, strict=True))


def test_json_escapes(tmp_path: Path) -> None:
    (tmp_path / "pairs").write_text('{"s": "two\\nlines", "t": "\\ud800 lone"}\n\n{"s": null, "t": "\\ud83d\\ude00"}\n')
    corpus = JsonLinesCorpus(path="pairs", src_field="s", tgt_field="t")
    assert read(corpus, tmp_path) == [("two lines", "\ufffd lone"), ("", "\U0001f600")]


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ('{"s": "a"}', "line 1 has no field 't'; its fields are 's'"),
        ('{"s": "a", "t": 3}', "field 't' is of type int"),
        (' [{"s": "a", "t": "b"}]', r"line 1 starts an array; .*jq -c '\.\[\]'"),
        ("{broken", "line 1 is not JSON"),
    ],
)
def test_bad_json_lines(line: str, match: str, tmp_path: Path) -> None:
    write(tmp_path / "pairs", [line])
    one_line_error(JsonLinesCorpus(path="pairs", src_field="s", tgt_field="t"), tmp_path, match)


def test_parquet_has_plain_and_nested_fields(tmp_path: Path) -> None:
    nested = [{"en": src, "de": tgt} for src, tgt in zip(SRC, TGT, strict=True)]
    write_parquet(tmp_path / "pairs.parquet", {"translation": nested, "src": SRC, "tgt": TGT})
    for src_field, tgt_field in (("src", "tgt"), ("translation.en", "translation.de")):
        corpus = ParquetCorpus(path="pairs.parquet", src_field=src_field, tgt_field=tgt_field)
        assert read(corpus, tmp_path) == list(zip(SRC, TGT, strict=True))
        assert count_pairs(corpus, tmp_path) == len(SRC)


def test_column_with_a_dot_takes_precedence_over_a_nested_field(tmp_path: Path) -> None:
    nested = [{"en": "nested", "de": tgt} for tgt in TGT]
    write_parquet(tmp_path / "pairs.parquet", {"t": nested, "t.en": SRC})
    corpus = ParquetCorpus(path="pairs.parquet", src_field="t.en", tgt_field="t.de")
    assert read(corpus, tmp_path) == list(zip(SRC, TGT, strict=True))


def test_bad_parquet(tmp_path: Path) -> None:
    corpus = ParquetCorpus(path="pairs.parquet", src_field="src", tgt_field="tgt")
    one_line_error(corpus, tmp_path, "No such file")
    write_parquet(tmp_path / "pairs.parquet", {"src": SRC})
    one_line_error(corpus, tmp_path, "has no field 'tgt'; its fields are 'src'")
    (tmp_path / "pairs.parquet").write_bytes(b"PAR1 and nothing else")
    one_line_error(corpus, tmp_path, "expected a Parquet file")


# --- Labels ---


@pytest.mark.parametrize("label_column", [0, "labels"])
def test_tsv_labels(label_column: int | str, tmp_path: Path) -> None:
    header = ["labels\tEnglish\tGerman"] if label_column == "labels" else []
    write(tmp_path / "pairs.tsv", [*header, "news  long\ta\tb", "\tc\td", "web\te\tf"])
    corpus = TsvCorpus(path="pairs.tsv", src_column=1, tgt_column=2, label_column=label_column)
    assert read(corpus, tmp_path) == [("a", "b"), ("c", "d"), ("e", "f")]
    assert labels(corpus, tmp_path) == [("news", "long"), (), ("web",)]
    with pytest.raises(
        UserError, match=r"line 1 has no column 'domain'; its columns are .*; correct the names, or use"
    ):
        labels(corpus.model_copy(update={"label_column": "domain"}), tmp_path)


@pytest.mark.parametrize("names", [{"src_column": "English"}, {"tgt_column": "German"}, {"label_column": "labels"}])
def test_one_column_name_implies_a_header_for_labels(names: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path / "pairs.tsv", ["labels\tEnglish\tGerman", "news\ta\tb", "web\tc\td"])
    columns: dict[str, Any] = {"src_column": 1, "tgt_column": 2, "label_column": 0} | names
    corpus = TsvCorpus(path="pairs.tsv", **columns)
    assert read(corpus, tmp_path) == [("a", "b"), ("c", "d")]
    assert labels(corpus, tmp_path) == [("news",), ("web",)]


def test_record_labels(tmp_path: Path) -> None:
    records = [
        {"en": "a", "de": "b", "about": {"labels": "news long"}},
        {"en": "c", "de": "d", "about": {"labels": ""}},
    ]
    write(tmp_path / "pairs.jsonl", [json.dumps(record) for record in records])
    write_parquet(tmp_path / "pairs.parquet", {name: [record[name] for record in records] for name in records[0]})
    for section, path in ((JsonLinesCorpus, "pairs.jsonl"), (ParquetCorpus, "pairs.parquet")):
        corpus = section(path=path, src_field="en", tgt_field="de", label_field="about.labels")
        assert read(corpus, tmp_path) == [("a", "b"), ("c", "d")]
        assert labels(corpus, tmp_path) == [("news", "long"), ()]
        with pytest.raises(UserError, match=r"field 'about\.domain'.*; correct the fields of the corpus"):
            labels(corpus.model_copy(update={"label_field": "about.domain"}), tmp_path)


def test_corpus_without_labels(tmp_path: Path) -> None:
    assert labels(TsvCorpus(path="pairs.tsv"), tmp_path) is None
    assert labels(TextCorpus(src="a", tgt="b"), tmp_path) is None


def labels(corpus: Corpus, root: Path) -> list[tuple[str, ...]] | None:
    found = read_labels(corpus, options(root))
    return None if found is None else list(found)


# --- Trees ---


def test_trees_on_one_or_more_lines(tmp_path: Path) -> None:
    """Blank lines between trees, and a tree on several lines, as in the Penn Treebank."""
    write(
        tmp_path / "wsj.mrg",
        [
            "",
            "( (S",
            "    (NP (DT A) (NN dog) )",
            "    (VP (VBZ barks) ) (. .) ))",
            "",
            "(ROOT (NP (-LRB- -LRB-) (NN b)))",
        ],
        "gz",
    )
    expected = [("A dog barks .", "(S (NP XX XX )NP (VP XX )VP . )S"), ("( b", "(NP XX XX )NP")]
    assert read(TreesCorpus(path="wsj.mrg"), tmp_path) == expected
    assert count_pairs(TreesCorpus(path="wsj.mrg"), tmp_path) is None
    assert input_files(TreesCorpus(path="wsj.mrg"), tmp_path) == [tmp_path / "wsj.mrg"]


@pytest.mark.parametrize(
    ("lines", "where"),
    [(["(S (NN a))", "dog"], "line 2"), (["(S (NN a))", "", "(S", "(NN b)"], "line 3"), (["(S (NN a)))"], "line 1")],
)
def test_malformed_tree(tmp_path: Path, lines: list[str], where: str) -> None:
    write(tmp_path / "trees", lines)
    with pytest.raises(UserError, match=rf"trees, {where}: .*; expected a tree such as \(S \(NP \(NN dog\)\)"):
        read(TreesCorpus(path="trees"), tmp_path)


# --- Files that are not plain text ---


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le"])  # with and without byte order mark
def test_utf16_is_an_error(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a").write_bytes("\n".join(["The old cat sleeps."] * len(SRC)).encode(encoding))
    write(tmp_path / "b", TGT)
    for action in (count_pairs, read):
        with pytest.raises(UserError, match="a is UTF-16; nmt reads UTF-8"):
            action(TextCorpus(src="a", tgt="b"), tmp_path)


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_tar_archive_is_an_error(tmp_path: Path, mode: Literal["w", "w:gz"]) -> None:
    write(tmp_path / "a", SRC)
    write(tmp_path / "b", TGT)
    with tarfile.open(tmp_path / "a.tar", mode) as archive:
        archive.add(tmp_path / "a", "a")
    for action in (count_pairs, read):
        with pytest.raises(UserError, match=r"a.tar is a tar archive; expected a text file; extract it first"):
            action(TextCorpus(src="a.tar", tgt="b"), tmp_path)


def test_a_named_pipe_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "a")
    write(tmp_path / "b", TGT)
    corpus = TextCorpus(src="a", tgt="b")  # pydantic opens files for the first one
    monkeypatch.setattr(Path, "open", lambda *arguments: pytest.fail("opening a pipe waits for a writer"))
    with pytest.raises(UserError, match="a is a pipe, but is read more than once; it must be a file"):
        count_pairs(corpus, tmp_path)


def test_a_named_pipe_as_a_parquet_file_or_file_of_alignments_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "a")
    write(tmp_path / "b", TGT)
    monkeypatch.setattr(pyarrow.parquet, "ParquetFile", lambda path: pytest.fail("opening a pipe waits for a writer"))
    with pytest.raises(UserError, match="a is a pipe, but is read more than once; it must be a file"):
        count_pairs(ParquetCorpus(path="a", src_field="en", tgt_field="de"), tmp_path)
    with pytest.raises(UserError, match="a is a pipe, but is read more than once; it must be a file"):
        alignment_file(TextCorpus(src="b", tgt="b", alignment="a"), tmp_path)
