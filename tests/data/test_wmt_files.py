"""Corpora in the SGM and XML files of WMT."""

from pathlib import Path

import pytest

from nmt.data.corpus import input_files, read_documents
from nmt.recipe import SgmCorpus
from tests.data.corpus_files import one_line_error, options, read, write

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
