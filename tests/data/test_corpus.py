"""Reading of corpora of all kinds: their lines, pairs, labels and errors."""

import bz2
import gzip
import io
import json
import lzma
import os
import re
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pyarrow
import pyarrow.parquet
import pytest
import sacrebleu
import zstandard
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nmt.data.corpus import (
    ReadOptions,
    alignment_file,
    count_pairs,
    input_files,
    read_documents,
    read_labels,
    read_pairs,
    require_files,
)
from nmt.errors import UserError
from nmt.recipe import (
    Corpus,
    HuggingFaceCorpus,
    JsonLinesCorpus,
    ParquetCorpus,
    SacrebleuCorpus,
    SgmCorpus,
    TextCorpus,
    ToyCorpus,
    TreesCorpus,
    TsvCorpus,
)
from nmt.text import lines as lines_module
from nmt.text.lines import InvalidUtf8, count_lines, decode_lines, read_lines

HOSTILE = [
    "plain",
    "a\u2028b",
    "c\u0085d",
    "e\rf",
    "g\x1ch",
    "i\x00j",
    "k\x0bl\x0cm",
    "",
    " ",
    "שלום",
    "crlf\r",
    "\u2029",
]
SRC = [f"source {line}" for line in HOSTILE]
TGT = [f"{line} target" for line in HOSTILE]
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "txt": bytes,
    "gz": gzip.compress,
    "xz": lzma.compress,
    "zst": zstandard.compress,
}


def options(root: Path, tgt_lang: str = "de", invalid_utf8: InvalidUtf8 = "error") -> ReadOptions:
    return ReadOptions(root, "en", tgt_lang, invalid_utf8)


def read(corpus: Corpus, root: Path, invalid_utf8: InvalidUtf8 = "error") -> list[tuple[str, str]]:
    return list(read_pairs(corpus, options(root, invalid_utf8=invalid_utf8)))


def write(path: Path, lines: list[str], suffix: str = "txt") -> None:
    path.write_bytes(COMPRESSORS[suffix]("".join(f"{line}\n" for line in lines).encode()))


def one_line_error(corpus: Corpus, root: Path, match: str) -> None:
    with pytest.raises(UserError, match=match) as caught:
        read(corpus, root)
    assert "\n" not in str(caught.value)


# --- Lines ---


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_lines_end_at_line_feeds_only(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"lines.{suffix}"
    write(path, HOSTILE, suffix)
    assert list(read_lines(path)) == HOSTILE


@pytest.mark.slow
@given(st.lists(st.text(max_size=10).map(lambda text: text.replace("\n", "")), max_size=10))
def test_arbitrary_lines_round_trip(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    assume(len(re.findall(r"[\x00-\x1f]", "".join(lines))) <= 3)  # with more, the file may look like UTF-16
    path = tmp_path_factory.mktemp("lines") / "lines.txt"
    write(path, lines)
    expected = [line.removeprefix("\ufeff") if number == 0 else line for number, line in enumerate(lines)]
    assert list(read_lines(path)) == expected


def test_byte_order_mark_and_missing_final_line_feed(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes(b"\xef\xbb\xbffirst\n\xef\xbb\xbfsecond")
    assert list(read_lines(path)) == ["first", "\ufeffsecond"]
    path.write_bytes(b"")
    assert list(read_lines(path)) == []


def test_invalid_utf8_error_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes(b"fine\nfine\nna\xefve\nfine\n")
    with pytest.raises(UserError, match=r"lines\.txt, line 3: byte 0xef is not UTF-8"):
        list(read_lines(path))
    assert list(read_lines(path, "replace")) == ["fine", "fine", "na\ufffdve", "fine"]


PARTS = [b"\n", b"\n", b"\n", b"a", b"thirteen bytes", "ö€😀".encode(), b"\xe2\x82", b"\xff", b"\xef\xbb\xbf", b"\r"]


@pytest.mark.slow
@settings(max_examples=200)
@given(st.lists(st.sampled_from(PARTS), max_size=20).map(b"".join), st.integers(1, 9))
def test_lines_are_independent_of_block_size(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, block_bytes: int
) -> None:
    """Overlong lines and invalid bytes are reported with their line number for any block size."""
    path = tmp_path_factory.mktemp("blocks") / "lines.txt"
    path.write_bytes(content)
    lines = content.removesuffix(b"\n").split(b"\n") if content else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines_module, "_BLOCK_BYTES", block_bytes)
        patch.setattr(lines_module, "MAX_LINE_BYTES", 12)
        too_long = [n for n, line in enumerate(re.findall(rb"[^\n]*\n|[^\n]+", content), 1) if len(line) > 12]
        if too_long:
            with pytest.raises(UserError, match=f"line {too_long[0]} is longer"):
                list(read_lines(path, "replace"))
            return
        plain = [line.decode("utf-8", "replace") for line in lines]
        if content.startswith(b"\xef\xbb\xbf"):
            plain[0] = lines[0][3:].decode("utf-8", "replace")
        assert list(read_lines(path, "replace")) == plain
        wrong = [number for number, line in enumerate(lines, 1) if not is_utf8(line)]
        if wrong:
            with pytest.raises(UserError, match=f"line {wrong[0]}: byte 0x.. is not UTF-8"):
                list(read_lines(path))
        else:
            assert list(read_lines(path)) == plain


def is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("suffix", ["gz", "xz", "zst"])
def test_truncated_compressed_file(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"lines.{suffix}"
    whole = COMPRESSORS[suffix](bytes(range(1, 128)) * 1000 + b"\n")
    for size in (len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(UserError, match="damaged or truncated"):
            list(read_lines(path))


def test_truncated_standard_input_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lines").write_bytes(gzip.compress(b"text\n")[:-1])
    with (tmp_path / "lines").open() as file:
        monkeypatch.setattr("sys.stdin", file)
        with pytest.raises(UserError, match=r"^standard input is damaged or truncated"):
            list(read_lines(Path("-"), allow_pipe=True))


def test_unreadable_standard_input_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "write-only").open("w") as file:
        monkeypatch.setattr("sys.stdin", file)
        with pytest.raises(UserError, match=r"^cannot read standard input: "):
            list(read_lines(Path("-"), allow_pipe=True))


def test_concatenated_compressed_members(tmp_path: Path) -> None:
    for suffix, compress in COMPRESSORS.items():
        path = tmp_path / f"lines.{suffix}"
        path.write_bytes(compress(b"one\ntw") + compress(b"o\nthree\n"))
        assert list(read_lines(path)) == ["one", "two", "three"]


@pytest.mark.parametrize("suffix", ["gz", "xz", "zst"])
def test_damage_after_the_first_compressed_member(suffix: str, tmp_path: Path) -> None:
    """The header of the second member is damaged. `lzma.LZMAFile` ends there without an error."""
    path, compress = tmp_path / "lines", COMPRESSORS[suffix]
    for second in (b"\xff" + compress(b"two\n")[1:], b"garbage", compress(b"two\n")[:5]):
        path.write_bytes(compress(b"one\n") + second)
        with pytest.raises(UserError, match="damaged or truncated"):
            list(read_lines(path))


@pytest.mark.slow
def test_padding_of_xz_streams(tmp_path: Path) -> None:
    text = b"".join(b"%d\n" % number for number in range(300_000))
    (tmp_path / "lines").write_bytes(lzma.compress(text, preset=0) + bytes(8) + lzma.compress(b"last") + bytes(1 << 21))
    assert list(read_lines(tmp_path / "lines")) == [*map(str, range(300_000)), "last"]


def test_zstandard_file_starting_with_a_skippable_frame(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + COMPRESSORS["zst"](b"one\n"))
    assert list(read_lines(tmp_path / "lines")) == ["one"]


def test_zstandard_file_with_a_large_window(tmp_path: Path) -> None:
    stream = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(window_log=28)
    ).compressobj()  # as zstd --long=28
    (tmp_path / "lines").write_bytes(stream.compress(b"one\n") + stream.flush())
    assert list(read_lines(tmp_path / "lines")) == ["one"]


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress, bz2.compress, zstandard.compress])
def test_compressed_text_where_plain_text_is_expected(compress: Callable[[bytes], bytes], tmp_path: Path) -> None:
    for text in (b"", b"one\ntwo\n"):
        with pytest.raises(UserError, match="standard input is compressed; expected text"):
            list(decode_lines(io.BytesIO(compress(text)), "standard input"))
        path = tmp_path / "text"
        path.write_bytes(bz2.compress(compress(text)))
        with pytest.raises(UserError, match="text is compressed; expected text"):
            count_lines(path)
    assert list(decode_lines([b"BZhelp\n"], "text")) == ["BZhelp"]


def test_an_office_document_where_text_is_expected() -> None:
    with pytest.raises(UserError, match=r"letter\.docx is a zip archive or an office document; expected a text file"):
        list(decode_lines([b"PK\x03\x04\n"], "letter.docx"))


def test_compression_is_detected_by_content(tmp_path: Path) -> None:
    write(tmp_path / "lines", HOSTILE, "gz")
    assert list(read_lines(tmp_path / "lines")) == HOSTILE


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


def write_parquet(path: Path, columns: dict[str, list[Any]]) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pydict(columns), path, row_group_size=5)


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


# --- WMT test sets ---

SGM = """<{set}set setid="newstest" srclang="any">
<DOC sysid="ref" docid="one" genre="news">
<P>
<SEG id="1">{a}</SEG>
<seg id=2> R&D &amp; &lt;b&gt; &#8364;
over two lines </seg>
</P>
</DOC>
<doc docid="two"><p><seg id="1">{b}\u2028c</seg></p></doc>
</{set}set>
"""


@pytest.mark.parametrize("suffix", ["txt", "gz"])
def test_segments_of_sgm_files_are_paired(suffix: str, tmp_path: Path) -> None:
    write(tmp_path / "src.sgm", [SGM.format(set="src", a="first", b="last")], suffix)
    write(tmp_path / "ref.sgm", [SGM.format(set="ref", a="erstes", b="letztes")], suffix)
    middle = "R&D & <b> € over two lines"
    expected = [("first", "erstes"), (middle, middle), ("last\u2028c", "letztes\u2028c")]
    assert read(SgmCorpus(src="src.sgm", tgt="ref.sgm"), tmp_path) == expected


def test_line_feed_entity_becomes_a_space(tmp_path: Path) -> None:
    for name in ("src", "ref"):
        write(
            tmp_path / f"{name}.sgm",
            [f"<seg id=1>{name}&#10;one&#xA;two &amp;#10; three</seg>", "<seg>&#13;a\r\nb&#xD;c</seg>"],
        )
    pairs = read(SgmCorpus(src="src.sgm", tgt="ref.sgm"), tmp_path)
    assert pairs == [("src one two &#10; three", "ref one two &#10; three"), ("a b c", "a b c")]
    xml = ["<dataset><doc id='a'>", "<src lang='en'><seg id='1'>a&#10;b&#13;</seg></src>"]
    write(tmp_path / "test.xml", [*xml, "<ref lang='de'><seg id='1'>c&#10;d</seg></ref></doc></dataset>"])
    assert read(SgmCorpus(src="test.xml"), tmp_path) == [("a b", "c d")]


def test_bad_sgm(tmp_path: Path) -> None:
    write(tmp_path / "src.sgm", [SGM.format(set="src", a="first", b="last")])
    write(tmp_path / "ref.sgm", ["<seg>only one</seg>"])
    one_line_error(SgmCorpus(src="src.sgm", tgt="ref.sgm"), tmp_path, r"src\.sgm has 3 .*ref\.sgm has 1")
    write(tmp_path / "ref.sgm", ["no segments"])
    one_line_error(SgmCorpus(src="src.sgm", tgt="ref.sgm"), tmp_path, r"ref\.sgm has no <seg>")
    write(tmp_path / "src.sgm", ["<srcset><doc><seg>well-formed</seg></doc></srcset>"])
    one_line_error(SgmCorpus(src="src.sgm"), tmp_path, r"src\.sgm .*reference of an \.sgm file as tgt")


def test_swapped_sgm_files_are_an_error(tmp_path: Path) -> None:
    write(tmp_path / "src.sgm", ['<srcset setid="t" srclang="en"><seg>first</seg></srcset>'])
    write(tmp_path / "ref.sgm", ['<REFSET srclang="any" TrgLang="DE"><seg>erstes</seg></REFSET>'])
    assert read(SgmCorpus(src="src.sgm", tgt="ref.sgm"), tmp_path) == [("first", "erstes")]
    swapped = SgmCorpus(src="ref.sgm", tgt="src.sgm")
    one_line_error(swapped, tmp_path, r"ref\.sgm declares language 'de' \(trglang\).* in 'en'; swap src and tgt")
    write(tmp_path / "ref.sgm", ['<refset srclang="de" trglang="xx"><seg>erstes</seg></refset>'])
    one_line_error(swapped, tmp_path, r"src\.sgm declares language 'en' \(srclang\)")


def test_sgm_segments_without_an_end(tmp_path: Path) -> None:
    write(tmp_path / "src.sgm", ["<doc><seg id=1/><seg id='2' /><seg id=3>c</seg><seg>d</seg></doc>"])
    assert read(SgmCorpus(src="src.sgm", tgt="src.sgm"), tmp_path) == [("", ""), ("", ""), ("c", "c"), ("d", "d")]
    write(tmp_path / "src.sgm", ["<doc><seg id=1>a", "<seg id=2>b</seg></doc>"])
    one_line_error(SgmCorpus(src="src.sgm", tgt="src.sgm"), tmp_path, "has a <seg> without </seg>: 'a <seg id=2>b'")
    write(tmp_path / "src.sgm", ["<seg>a"] * 100_000)  # in linear time
    one_line_error(SgmCorpus(src="src.sgm", tgt="src.sgm"), tmp_path, "has a <seg> without </seg>: 'a <seg>a")
    for end in ("b</doc>", "b", ""):  # such as a truncated download
        write(tmp_path / "src.sgm", [f"<doc><seg id=1>a</seg><seg id=2>{end}"])
        one_line_error(SgmCorpus(src="src.sgm", tgt="src.sgm"), tmp_path, f"has a <seg> without </seg>: '{end}'")


def test_comments_of_sgm_files_have_no_segments(tmp_path: Path) -> None:
    lines = ["<doc docid=a><seg/><!-- <seg>old</seg>", "<doc> --><seg id=2>b <!-- c --></seg></doc>"]
    write(tmp_path / "src.sgm", lines)
    write(tmp_path / "ref.sgm", ["<doc docid=a><seg id=1></seg><seg id=2>B</seg></doc>"])
    corpus = SgmCorpus(src="src.sgm", tgt="ref.sgm")
    assert read(corpus, tmp_path) == [("", ""), ("b <!-- c -->", "B")]
    assert list(read_documents(corpus, options(tmp_path)) or ()) == [1, 1]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('docid="two"', 'docid="three"', "segment 3 is '1' of document 'two' in .*'1' of document 'three' in"),
        ("<seg id=2>", "<seg id='3'>", "segment 2 is '2' of document 'one' in .*'3' of document 'one' in"),
    ],
)
def test_sgm_files_in_different_order(old: str, new: str, message: str, tmp_path: Path) -> None:
    write(tmp_path / "src.sgm", [SGM.format(set="src", a="first", b="last")])
    write(tmp_path / "ref.sgm", [SGM.format(set="ref", a="erstes", b="letztes").replace(old, new)])
    one_line_error(SgmCorpus(src="src.sgm", tgt="ref.sgm"), tmp_path, message)
    write(tmp_path / "ref.sgm", ["<seg>a</seg><seg>b</seg><seg>c</seg>"])
    assert [tgt for _, tgt in read(SgmCorpus(src="src.sgm", tgt="ref.sgm"), tmp_path)] == ["a", "b", "c"]


XML = """<?xml version='1.0' encoding='utf-8'?>
<dataset id="newstest"><collection id="general">
<doc origlang="en" id="one">
<src lang="en"><p><seg id="1">A &amp; B</seg></p><p><seg id="2">two</seg></p></src>
<ref lang="de" translator="A"><p><seg id="2">zwei</seg><seg id="1">A und B</seg></p></ref>
<ref lang="de" translator="B"><p><seg id="1">other</seg><seg id="2">other</seg></p></ref>
<hyp system="x" lang="de"><p><seg id="1">no</seg><seg id="2">no</seg></p></hyp>
</doc>
<doc origlang="en" id="two"><src lang="en"><p><seg id="1">three</seg></p></src>
<ref lang="fr"><p><seg id="1">trois</seg></p></ref><ref lang="de"><p><seg id="1">drei</seg></p></ref></doc>
</collection></dataset>"""


def test_xml_has_the_first_reference_of_the_target_language(tmp_path: Path) -> None:
    write(tmp_path / "test.xml", [XML])
    corpus = SgmCorpus(src="test.xml")
    assert read(corpus, tmp_path) == [("A & B", "A und B"), ("two", "zwei"), ("three", "drei")]
    assert input_files(corpus, tmp_path) == [tmp_path / "test.xml"]
    one_line_error(SgmCorpus(src="test.xml", tgt="test.xml"), tmp_path, r"test\.xml is an XML test set; .*remove tgt")


def test_bad_xml(tmp_path: Path) -> None:
    corpus = SgmCorpus(src="test.xml")
    write(tmp_path / "test.xml", [XML.replace('<seg id="2">zwei</seg>', "")])
    one_line_error(corpus, tmp_path, "document 'one' has 2 source and 1 reference segments in en and de")
    write(tmp_path / "test.xml", [XML.replace("&amp;", "&")])
    one_line_error(corpus, tmp_path, "not well-formed XML")
    write(tmp_path / "test.xml", [XML.replace("encoding='utf-8'", "encoding='gbk'")])
    one_line_error(corpus, tmp_path, r"test\.xml cannot be read \(multi-byte encodings.*convert it")
    write(tmp_path / "test.xml", [XML.replace("encoding='utf-8'", "encoding='utf-7x'")])
    one_line_error(corpus, tmp_path, r"test\.xml cannot be read \(unknown encoding.*convert it")
    write(tmp_path / "test.xml", [XML.replace('<seg id="2">', '<seg id="1">')])
    one_line_error(corpus, tmp_path, "document 'one' has <src> segments with the same id '1'")
    write(tmp_path / "test.xml", [XML.replace("</src>", '</src><src lang="en"><seg id="9">lost</seg></src>', 1)])
    one_line_error(corpus, tmp_path, "document 'one' has 2 <src> elements in en")
    write(tmp_path / "test.xml", ["<dataset/>"])
    one_line_error(corpus, tmp_path, "no <src> segments in 'en'")


# --- By name ---


@pytest.mark.parametrize("dataset", ["./none", "../none", "/none", "~/none"])
def test_a_missing_local_dataset_is_not_looked_up_on_the_hub(dataset: str, tmp_path: Path) -> None:
    corpus = HuggingFaceCorpus(dataset=dataset, split="train")
    one_line_error(corpus, tmp_path, r"cannot read /.*none: No such file; (.*none is relative to data.root|correct)")


def test_hugging_face_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def load_dataset(name: str, config: str | None, **options: object) -> list[object]:
        asked.append((name, config, options))
        return [{"translation": {"en": "a", "de": "b"}}]

    monkeypatch.setattr("datasets.load.load_dataset", load_dataset)
    corpus = HuggingFaceCorpus(dataset="wmt/wmt14", config="de-en", revision="b199e406369ec1b7634206d3ded5ba45de2fe696")
    assert read(corpus, tmp_path) == [("a", "b")]
    assert asked == [("wmt/wmt14", "de-en", {"split": "train", "revision": corpus.revision, "streaming": True})]


def test_files_of_a_dataset_include_those_of_linked_folders(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    write_parquet(tmp_path / "disk" / "train.parquet", {"a": SRC, "b": TGT})
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "data").symlink_to(tmp_path / "disk")
    (tmp_path / "set" / "itself").symlink_to(tmp_path / "set")
    files = input_files(HuggingFaceCorpus(dataset="set", src_field="a", tgt_field="b"), tmp_path)
    assert files == [tmp_path / "set" / "data" / "train.parquet"]


@pytest.mark.slow
def test_hugging_face_from_a_local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "json").mkdir()
    (tmp_path / "parquet").mkdir()
    nested = [{"en": src, "de": tgt} for src, tgt in zip(SRC, TGT, strict=True)]
    write(tmp_path / "json" / "train.jsonl", [json.dumps({"translation": record}) for record in nested])
    write_parquet(tmp_path / "parquet" / "train.parquet", {"a": SRC, "b": TGT})
    assert read(HuggingFaceCorpus(dataset="json"), tmp_path) == list(zip(SRC, TGT, strict=True))
    parquet = HuggingFaceCorpus(dataset="parquet", src_field="b", tgt_field="a")
    assert read(parquet, tmp_path) == list(zip(TGT, SRC, strict=True))
    (tmp_path / "parquet" / ".cache").mkdir()
    write(tmp_path / "parquet" / ".cache" / "train.metadata", ["time of the download"])
    assert input_files(parquet, tmp_path) == [tmp_path / "parquet" / "train.parquet"]
    one_line_error(HuggingFaceCorpus(dataset="json", revision="main"), tmp_path, "remove revision")
    one_line_error(HuggingFaceCorpus(dataset="json", split="nope"), tmp_path, "Bad split: nope")
    one_line_error(HuggingFaceCorpus(dataset="parquet"), tmp_path, "no field 'translation.en'")
    write(tmp_path / "json" / "train.jsonl", [])
    one_line_error(HuggingFaceCorpus(dataset="json"), tmp_path, "its files are empty")


def test_datasets_of_the_current_directory_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only `data.root` and the Hub are searched, although `load_dataset` prefers the current directory."""
    (tmp_path / "here" / "json").mkdir(parents=True)
    (tmp_path / "here" / "json" / "train.jsonl").write_text('{"translation": {"en": "a", "de": "b"}}\n')
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    corpus = HuggingFaceCorpus(dataset="json", split="train")
    one_line_error(corpus, tmp_path / "there", f"{tmp_path}/there/json does not exist, but {tmp_path}/here/json does")
    assert read(corpus, tmp_path / "here") == [("a", "b")]


def test_a_dataset_without_one_of_its_shards_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "set" / "data").mkdir(parents=True)
    names = [f"train-0000{index}-of-00003.parquet" for index in range(3)]
    for name in (*names, "test-00000-of-00002.parquet"):
        write_parquet(tmp_path / "set" / "data" / name, {"a": SRC, "b": TGT})
    corpus = HuggingFaceCorpus(dataset="set", src_field="a", tgt_field="b")
    assert len(read(corpus, tmp_path)) == 3 * len(SRC)
    path = tmp_path / "set" / "data" / names[1]
    path.unlink()
    one_line_error(corpus, tmp_path, f"{path} is missing; the dataset must have all 3")
    with pytest.raises(UserError, match="is missing"):  # before any work
        require_files([corpus], tmp_path)
    (tmp_path / "set" / "data" / names[2]).unlink()
    one_line_error(corpus, tmp_path, "and 1 more of these files are missing")
    one_line_error(corpus, tmp_path, r"renumber the existing ones, from train-00000-of-00001\.parquet")
    path.with_name(names[0]).rename(path.with_name("train-00000-of-00001.parquet"))
    assert len(read(corpus, tmp_path)) == len(SRC)


def test_file_instead_of_a_dataset_is_rejected_without_asking_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets.load", None)  # not even imported, which takes seconds
    write(tmp_path / "train.jsonl", [json.dumps({"translation": {"en": "a", "de": "b"}})])
    corpus = HuggingFaceCorpus(dataset="train.jsonl")
    one_line_error(corpus, tmp_path, "is a file; it must be a directory; name its directory, or use another kind")
    with pytest.raises(UserError, match="is a file"):
        require_files([corpus], tmp_path)


def test_hugging_face_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    one_line_error(
        HuggingFaceCorpus(dataset="wmt/wmt14", config="de-en"), tmp_path, "wmt/wmt14.*set `dataset` to its path"
    )


def test_sacrebleu_reads_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test_set = sacrebleu.dataset.DATASETS["wmt14/full"]
    monkeypatch.setattr(test_set, "_outdir", str(tmp_path))
    for field in test_set.fieldnames("en-de"):
        write(Path(test_set._get_txt_file_path("en-de", field)), TGT if field == "ref" else SRC)
    assert read(SacrebleuCorpus(test_set="wmt14/full"), tmp_path) == list(zip(SRC, TGT, strict=True))


def test_sacrebleu_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError("no network")

    test_set = sacrebleu.dataset.DATASETS["wmt14/full"]
    monkeypatch.setattr(test_set, "_outdir", str(tmp_path))
    monkeypatch.setattr(test_set, "_rawdir", str(tmp_path))
    monkeypatch.setattr("urllib.request.urlopen", fail)
    one_line_error(SacrebleuCorpus(test_set="wmt14/full"), tmp_path, "cannot download wmt14/full .no network.")


def test_unknown_sacrebleu_test_set(tmp_path: Path) -> None:
    one_line_error(SacrebleuCorpus(test_set="wmt1814"), tmp_path, "unknown sacreBLEU test set 'wmt1814'")
    with pytest.raises(UserError, match=r"wmt14/full has no pair en-xx; it has .*en-de"):
        list(read_pairs(SacrebleuCorpus(test_set="wmt14/full"), options(tmp_path, "xx")))


def test_the_toy_corpus_is_deterministic_and_without_duplicates(tmp_path: Path) -> None:
    corpus = ToyCorpus(split="valid", pairs=30, seed=3)
    pairs = read(corpus, tmp_path)
    assert len(set(pairs)) == count_pairs(corpus, tmp_path) == 30
    assert pairs == read(corpus, tmp_path)
    assert "sampler.py" in {path.name for path in input_files(corpus, tmp_path)}


# --- Labels ---


@pytest.mark.parametrize("label_column", [0, "labels"])
def test_tsv_labels(label_column: int | str, tmp_path: Path) -> None:
    header = ["labels\tEnglish\tGerman"] if label_column == "labels" else []
    write(tmp_path / "pairs.tsv", [*header, "news  long\ta\tb", "\tc\td", "web\te\tf"])
    corpus = TsvCorpus(path="pairs.tsv", src_column=1, tgt_column=2, label_column=label_column)
    assert read(corpus, tmp_path) == [("a", "b"), ("c", "d"), ("e", "f")]
    assert labels(corpus, tmp_path) == [("news", "long"), (), ("web",)]
    with pytest.raises(UserError, match=r"line 1 has no column 'domain'; its columns are .*; correct the names in the"):
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
        with pytest.raises(UserError, match=r"field 'about\.domain'.*; correct the fields in the recipe"):
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


def test_counting_utf16_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("\n".join(SRC).encode("utf-16"))
    write(tmp_path / "b", TGT)
    with pytest.raises(UserError, match="a is UTF-16; nmt reads UTF-8"):
        count_pairs(TextCorpus(src="a", tgt="b"), tmp_path)


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
