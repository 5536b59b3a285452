"""Translated files in the web page."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nmt.decode.task import TranslatorInput
from nmt.decode.translation import Translation
from nmt.decode.translator import Translator
from nmt.recipe import Context, ContextSides
from nmt.serve.service import Limits
from tests.extras import import_ctranslate2
from tests.serve.browser.chromium import Browser
from tests.serve.browser.conftest import SENTENCES, ServePage, best, download, needs_chromium, select_file, texts
from tests.serve.conftest import EchoTranslator, MakeService

pytestmark = needs_chromium


@pytest.mark.parametrize(
    ("name", "column", "header"), [("a.txt", None, ""), ("b.TSV", 0, ""), ("c.tsv", 1, "number\tsentence\tlast")]
)
def test_a_file_is_translated_and_downloaded(
    page: Browser, reference: Translator, tmp_path: Path, name: str, column: int | None, header: str
) -> None:
    lines = [*SENTENCES, "", *(f"a dog {number}" for number in range(9))]  # more than the limit of a request
    rows, end = lines, "\n"
    if column is not None:
        cells = [["x", "y"] for _ in lines]
        for row, line in zip(cells, lines, strict=True):
            row.insert(column, line)
        rows, end = ["\t".join(row) for row in cells], "\r\n"
    content = "".join(f"{row}{end}" for row in ([header] if header else []) + rows)
    (tmp_path / name).write_text(content, encoding="utf-8", newline="")
    select_file(page, tmp_path / name)
    if column is not None:
        page.wait("!document.querySelector('#file-table').hidden")
        assert page.run("document.activeElement.id") == "file-column"
        assert texts(page, "#file-column option")[1] == ("2 (sentence)" if header else "2 (x)")
        page.run(f"document.querySelector('#file-column').value = '{column}'")
        if header:
            page.click("#file-header")
        page.click("#file-translate")
    expected = [translation.text for translation in best(reference, lines)]
    if column is not None:
        expected = [f"{row}\t{text}" for row, text in zip(rows, expected, strict=True)]
    if header:
        expected.insert(0, f"{header}\ttranslation")
    assert download(page, tmp_path, name) == "".join(f"{line}\n" for line in expected)
    assert texts(page, "#file-status") == [f"{name}: {len(lines)} lines translated"]


HTML = (
    "<!DOCTYPE html>\n<html><body><p class='x'>The <b>cat</b> sees a dog.</p>\n<script>1 < 2</script></body></html>\n"
)
SRT = "".join(
    f"{number}\r\n00:00:0{number},000 --> 00:00:0{number},900\r\n<i>A tree & a dog</i>\r\n\r\nA tree & a dog\r\n\r\n"
    for number in range(1, 8)
)


@pytest.mark.parametrize(("name", "content", "status"), [("a.html", HTML, "1 page"), ("a.srt", SRT, "7 subtitles")])
@pytest.mark.parametrize("engine", ["exact", "fast"])
def test_a_document_is_translated_and_downloaded(
    page: Browser, tmp_path: Path, name: str, content: str, status: str, engine: str
) -> None:
    if engine == "fast":
        import_ctranslate2()
    page.run(f"document.querySelector('#model').value = '{engine}'")
    (tmp_path / name).write_text(content, encoding="utf-8", newline="")
    select_file(page, tmp_path / name)
    translated = download(page, tmp_path, name)
    assert texts(page, "#file-status") == [f"{name}: {status} translated"]
    pattern = re.escape(content)
    for text in ("The ", "cat", " sees a dog.", "A tree & a dog"):
        pattern = pattern.replace(re.escape(text), "[^<>\n]*")
    assert re.fullmatch(pattern, translated)
    assert translated != content
    assert "&amp;" not in translated or name == "a.html"


def record_contexts(echo: EchoTranslator, sides: ContextSides, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Translate to upper case with a context of two lines; returns the context of each text, once translated."""
    found: dict[str, Any] = {}

    def translate(inputs: Sequence[TranslatorInput], **_: object) -> list[list[Translation]]:
        found.update((one.text, list(one.context)) for one in inputs)
        return [[Translation(one.text.upper(), 0.0, 0.0, [])] for one in inputs]

    monkeypatch.setattr(echo, "translate_inputs", translate)
    monkeypatch.setattr(echo, "context", Context(2, sides))
    return found


@pytest.mark.parametrize("sides", ["source", "both"])
def test_the_lines_of_a_file_are_the_context_of_later_ones(
    browser: Browser,
    serve_page: ServePage,
    echo: EchoTranslator,
    echo_service: MakeService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sides: ContextSides,
) -> None:
    found = record_contexts(echo, sides, monkeypatch)
    serve_page(echo_service())
    (tmp_path / "a.txt").write_text("a\nb\nc\nd\n \ne\n", encoding="utf-8")
    select_file(browser, tmp_path / "a.txt")
    assert download(browser, tmp_path, "a.txt") == "A\nB\nC\nD\n \nE\n"
    expected = {"a": "", "b": "a", "c": "ab", "d": "bc", " ": "cd", "e": ""}
    assert found == {
        text: [one if sides == "source" else (one, one.upper()) for one in context]
        for text, context in expected.items()
    }


@pytest.mark.parametrize("sides", ["source", "both"])
def test_subtitles_of_one_request_are_the_context_of_the_next(
    browser: Browser,
    serve_page: ServePage,
    echo: EchoTranslator,
    echo_service: MakeService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sides: ContextSides,
) -> None:
    found = record_contexts(echo, sides, monkeypatch)
    serve_page(echo_service(Limits(lines=16)))  # four subtitles per request
    content = "".join(f"{i}\n00:00:01,000 --> 00:00:02,500\n{text}\n\n" for i, text in enumerate("abcdefghij"))
    (tmp_path / "a.srt").write_text(content, encoding="utf-8")
    select_file(browser, tmp_path / "a.srt")
    assert download(browser, tmp_path, "a.srt") == re.sub("(?m)^[a-j]$", lambda line: line[0].upper(), content)
    sources = {text: [one if sides == "source" else one[0] for one in context] for text, context in found.items()}
    assert {text: "".join(sources[text]) for text in "befij"} == {"b": "a", "e": "cd", "f": "de", "i": "gh", "j": "hi"}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.pdf",
            b"x",
            "a.pdf: unsupported format; the file must be one of .txt, .tsv, .html, .htm, .xhtml, .srt; convert it",
        ),
        ("a.txt", b"x" * 19_900, "a.txt: a line is too large; the limit is 20000 bytes; split it"),
        (
            "a.srt",
            b"a dog",
            "a.srt: the text has no subtitles; each must follow a line such as "
            "00:00:01,000 --> 00:00:02,500; correct it",
        ),
        ("a.txt", b"\xff\xfe", "a.txt: not UTF-8; convert it"),
        ("a.txt", "The cat".encode("utf-16-le"), "a.txt: UTF-16; convert it to UTF-8"),
        ("a.tsv", b"", "a.tsv: empty; select another file"),
    ],
)
def test_a_wrong_file_is_an_error(page: Browser, tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    select_file(page, tmp_path / name)
    page.wait(f"document.querySelector('#file-status').textContent === {json.dumps(message)}")
    page.problems.clear()  # Chromium logs the status 400


@pytest.mark.parametrize(
    ("content", "column", "has_header", "message"),
    [
        ("a\tb\nc\n", 1, False, "line 2 has no column 2; every line must have it; select another one"),
        (
            "a\tb\nc\n",
            0,
            False,
            "line 2 differs from line 1 in its number of columns (1 and 2); correct the file",
        ),
        (
            "id\ttranslation\n1\ta dog\n",
            1,
            True,
            "the file already has a column 'translation', the name of the new column; rename the existing one",
        ),
    ],
)
def test_a_wrong_table_is_an_error(
    page: Browser, tmp_path: Path, content: str, column: int, has_header: bool, message: str
) -> None:
    (tmp_path / "a.tsv").write_text(content, encoding="utf-8")
    select_file(page, tmp_path / "a.tsv")
    page.wait("!document.querySelector('#file-table').hidden")
    page.run(f"document.querySelector('#file-column').value = '{column}'")
    if has_header:
        page.click("#file-header")
    page.click("#file-translate")
    assert texts(page, "#file-status") == [f"a.tsv: {message}"]


def test_a_wrong_column_hides_the_progress_of_the_column_before(page: Browser, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("id\ttranslation\n1\ta dog\n", encoding="utf-8")
    select_file(page, tmp_path / "a.tsv")
    page.wait("!document.querySelector('#file-table').hidden")
    page.click("#file-translate")
    page.wait("!document.querySelector('#download').hidden")
    page.click("#file-header")
    page.click("#file-translate")
    assert page.run("document.querySelector('#file-progress').hidden")
