"""`nmt translate --keep`: the command line and its messages."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from keep_check.contents import violation

from nmt.keep import translator as keep_translator
from nmt.keep.items import ItemGrammar
from tests.calling import Nmt
from tests.extras import import_ctranslate2

ALL = "markup,numbers,urls,emails,placeholders"
LINES = [
    "A <b>red <i>hat</i></b> for {name}: 1,234.5 &amp; 2",
    "Write to info@example.org<br/>or see http://example.org/a?b=1&amp;c=2.",
    "",
    "Nothing to keep",
]


@pytest.fixture
def marked(tmp_path: Path) -> Path:
    path = tmp_path / "marked.txt"
    path.write_text("".join(f"{line}\n" for line in LINES))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "fallback"), [("torch", "translated again"), ("ctranslate2", "2 lines split at the items")]
)
def test_a_random_model_keeps_all_markup_and_items(
    model: Path, marked: Path, nmt: Nmt, engine: str, fallback: str
) -> None:
    if engine == "ctranslate2":
        import_ctranslate2()
    options = ("--keep", ALL, "--engine", engine, "--device", "cpu", "--beam-size", 64)
    status, out, err = nmt("translate", model, marked, *options)
    assert status == 0
    grammar = ItemGrammar(ALL.split(","), "en", "de")
    lines = out.split("\n")[:-1]
    assert [violation(grammar, source, line) for source, line in zip(LINES, lines, strict=True)] == [""] * len(LINES)
    assert lines[2] == ""
    assert "kept all items; " in err
    assert fallback in err


def test_a_forbidden_item_gives_a_warning(model: Path, nmt: Nmt, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("visit http://a.org\na dog\n")
    options = ("--keep", "urls", "--device", "cpu", "--set", 'forbid=["http://a.org"]')
    status, out, err = nmt("translate", model, tmp_path / "in", *options)
    assert status == 0 and out.count("http://a.org") == 1
    assert "warning: 1 line lacks its prefix or a required phrase, or has a forbidden one, because --keep takes" in err


def test_markup_selects_torch(model: Path, marked: Path, nmt: Nmt) -> None:
    import_ctranslate2()
    _, _, err = nmt("translate", model, marked, "--keep", "markup", "--device", "cpu")
    assert "engine: torch" in err
    assert "alignments" in err
    _, _, err = nmt("translate", model, marked, "--keep", "numbers", "--device", "cpu")
    assert "engine: CTranslate2" in err


def test_markup_of_languages_without_spaces_gives_a_warning(
    model: Path, marked: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keep_translator, "WITHOUT_SPACES", frozenset(["de"]))
    _, _, err = nmt("translate", model, marked, "--keep", "markup", "--device", "cpu")
    assert "warning: text in de has no spaces between words, so a tag may enclose more text than in the source" in err
    assert "; --keep markup places tags only at spaces\n" in err


def test_options_of_alignments_affect_the_place_of_markup(model: Path, marked: Path, nmt: Nmt) -> None:
    options = ("--keep", "markup", "--set", "alignment_heads=[0]")
    status, out, _ = nmt("translate", model, marked, *options, "--engine", "torch")
    assert status == 0 and "<b>" in out
    status, _, err = nmt("translate", model, marked, *options, "--engine", "ctranslate2")
    assert status == 2 and "alignment_heads has no effect without alignments" in err


def test_json_lines_have_no_alignment(model: Path, marked: Path, nmt: Nmt) -> None:
    status, out, _ = nmt(
        "translate", model, marked, "--keep", "markup", "--output-format", "jsonl", "--engine", "torch"
    )
    assert status == 0
    assert "alignment" not in out
    assert "<b>" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--keep", "numbers,tags"],
            "Invalid value for '--keep': 'tags' is unknown; it must be one of markup, numbers, urls, emails, placeh",
        ),
        (["--keep", "markup", "--with-alignments"], "--keep and --with-alignments are mutually exclusive"),
    ],
)
def test_wrong_options_are_usage_errors(
    model: Path, marked: Path, nmt: Nmt, arguments: list[str], message: str
) -> None:
    status, out, err = nmt("translate", model, marked, *arguments)
    assert (status, out) == (2, "")
    assert message in err


PAGE = "<html><body>\n<p class='x'>A <b>red hat</b> &amp; more</p>\n<script>a < b</script>\n<p>Two</p></body></html>\n"
PAGE_PATTERN = (
    r"<html><body>\n<p class='x'>[^\n]*<b>[^\n]*</b>[^\n]*</p>\n"
    r"<script>a < b</script>\n<p>[^<\n]*</p></body></html>\n"
)
SUBTITLES = "1\n00:00:01,000 --> 00:00:02,000\n<i>A red hat &\nmore</i>\n\n2\n00:00:03,000 --> 00:00:04,000\nTwo\n"
SUBTITLES_PATTERN = r"1\n00:00:01,000 --> 00:00:02,000\n<i>[^<]*</i>\n\n2\n00:00:03,000 --> 00:00:04,000\n[^<\n]*\n"


@pytest.mark.parametrize(
    ("name", "content", "pattern"),
    [("page.html", PAGE, PAGE_PATTERN), ("film.srt", SUBTITLES, SUBTITLES_PATTERN)],
)
def test_documents_keep_their_layout(
    model: Path, nmt: Nmt, tmp_path: Path, name: str, content: str, pattern: str
) -> None:
    path, out = tmp_path / name, tmp_path / f"out-{name}"
    path.write_text(content)
    status, _, err = nmt("translate", model, path, "-o", out, "--engine", "torch", "--device", "cpu")
    assert status == 0, err
    translated = out.read_text()
    assert re.fullmatch(pattern, translated)
    assert name == "page.html" or "&amp;" not in translated, "subtitles have no entities"
    assert translated != content
    assert "kept all items" in err
    assert "translated 2 lines in " in err


@pytest.mark.parametrize(("name", "content"), [("page.html", "<p>1</p>\n"), ("film.srt", "")])
def test_documents_without_text_are_copied(model: Path, nmt: Nmt, tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    status, out, err = nmt("translate", model, tmp_path / name, "--engine", "torch", "--device", "cpu")
    assert (status, out) == (0, content)
    assert "translated 0 lines in " in err


@pytest.mark.parametrize(
    ("declaration", "encoding"),
    [
        ('<meta http-equiv="Content-Type" content="text/html; charset=iso-8859-1">', "iso-8859-1"),
        ("<meta charset='windows-1252'/>", "windows-1252"),
        ("<?xml version='1.0' encoding='ISO-8859-15'?>", "ISO-8859-15"),
        ('<meta charset="UTF-8">', None),
        ("<p>The charset = latin-1</p>", None),
    ],
)
def test_only_a_page_that_declares_another_encoding_gives_a_warning(
    model: Path, nmt: Nmt, tmp_path: Path, declaration: str, encoding: str | None
) -> None:
    path = tmp_path / "page.html"
    path.write_text(f"{declaration}\n{PAGE}")
    status, _, err = nmt("translate", model, path, "--engine", "torch", "--device", "cpu", "--window", 1)
    assert status == 0
    assert err.count("warning: ") == int(encoding is not None)
    assert encoding is None or f"{path} declares the encoding {encoding}, but the translation is UTF-8" in err


def test_an_interrupted_document_starts_over(
    model: Path, nmt: Nmt, tmp_path: Path, interrupt_after: Callable[[int], None]
) -> None:
    path, out = tmp_path / "page.html", tmp_path / "out.html"
    path.write_text(PAGE)
    command = ["translate", model, path, "-o", out, "--engine", "torch", "--device", "cpu", "--window", 1]
    interrupt_after(1)
    status, _, err = nmt(*command)
    assert (status, err.strip()) == (130, "nmt: interrupted")
    assert sorted(tmp_path.iterdir()) == [path]
    assert nmt(*command)[0] == 0
    assert out.exists()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--output-format", "text"], 2, "is read as html and - is written as text; a document keeps its format"),
        (["--with-scores"], 2, "--with-scores does not support html"),
        (["--n-best", "2"], 2, "--n-best does not support html"),
        (["--column", "1"], 2, "--column is for TSV"),
        (["--resume"], 1, "--resume does not support html"),
        (["--with-alignments"], 2, "--with-alignments does not support"),
        (["--keep", ""], 2, "Invalid value for '--keep': the list is empty; give at least one of markup, numbers"),
    ],
)
def test_wrong_options_of_documents_are_errors(
    model: Path, nmt: Nmt, tmp_path: Path, arguments: list[str], status: int, message: str
) -> None:
    path = tmp_path / "page.html"
    path.write_text(PAGE)
    found, _, err = nmt("translate", model, path, *arguments, "--engine", "torch", "--device", "cpu")
    assert found == status
    assert message in " ".join(err.split())
