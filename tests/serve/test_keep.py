"""Markup and items in translations of the server."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from fastapi import HTTPException
from fastapi.testclient import TestClient

from nmt.decode.task import TranslatorInput
from nmt.decode.text_translator import TextTranslator
from nmt.decode.translation import Translation
from nmt.decode.translator import Translator
from nmt.keep.documents import DocumentSegment
from nmt.keep.translator import PreservingTranslator
from nmt.serve.app import build_app
from nmt.serve.documents import TextFormat, split_texts
from nmt.serve.service import Limits
from nmt.storage.model_metadata import read_model_metadata
from tests.serve.conftest import EchoTranslator, MakeService, serve_model

PAGE = "<p>A <b>red hat</b> &amp; more</p>\n<script>a < b</script><p>Two<br>lines</p>"


@pytest.fixture
def new_client(model: Path, translator: Translator) -> Iterator[TestClient]:
    """A client of a service that has not logged a problem yet."""
    with serve_model(translator, read_model_metadata(model).decode) as client:
        yield client


def post(client: TestClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@pytest.mark.slow
def test_html_keeps_its_tags(client: TestClient) -> None:
    body = {"q": [PAGE, "A &lt; b"], "source": "en", "target": "de", "format": "html"}
    page, text = post(client, "/translate", body)["translatedText"]
    assert re.fullmatch(r"<p>[^\n]*<b>[^\n]*</b>[^\n]*</p>\n<script>a < b</script><p>[^<\n]*<br>[^<\n]*</p>", page)
    assert "<" not in text


def test_html_is_translated_without_alignments(echo_service: MakeService, echo: EchoTranslator) -> None:
    with TestClient(build_app(echo_service())) as client:
        body = {"q": PAGE, "source": "en", "target": "de", "format": "html", "alternatives": 1}
        answer = post(client, "/translate", body)
    expected = "<p>A <b>RED HAT</b> &amp; MORE</p>\n<script>a < b</script><p>TWO<br>LINES</p>"
    assert answer["translatedText"] == expected
    other = "<p>a <b>red hat</b> &amp; more</p>\n<script>a < b</script><p>two<br>lines</p>"
    assert answer["alternatives"] == [other]
    assert echo.batches == [["A red hat & more", "Two", "lines"]]


@pytest.mark.parametrize(("path", "field"), [("/translate", "q"), ("/v1/translate", "text")])
def test_lines_of_documents_are_counted_and_limited(echo_service: MakeService, path: str, field: str) -> None:
    body = {"format": "html"} | ({"source": "en", "target": "de"} if field == "q" else {})
    with TestClient(build_app(echo_service(Limits(lines=2)))) as client:
        assert "<p>A</p><p>B</p>" in str(post(client, path, {field: ["<p>a</p><p>b</p>", ""]} | body))
        assert 'nmt_lines_total{model="en-de"} 2\n' in client.get("/metrics").text
        response = client.post(path, json={field: "<p>a</p><p>b</p><p>c</p>"} | body)
    assert (response.status_code, response.json()["error"]) == (
        413,
        "the request has more than 2 lines; split it",
    )


@pytest.mark.parametrize("kind", ["text", "html", "srt"])
def test_splitting_ends_at_the_limit_of_lines(kind: TextFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []

    def segment(*fields: Any) -> DocumentSegment:
        found.append(fields[1])
        return DocumentSegment(*fields)

    monkeypatch.setattr("nmt.keep.documents.DocumentSegment", segment)
    monkeypatch.setattr("nmt.serve.documents.DocumentSegment", segment)
    text = {"text": "a\n", "html": "<p>a</p>", "srt": "1\n0:01 --> 0:02\na\n\n"}[kind] * 1_000
    with pytest.raises(HTTPException, match="the request has more than 20 lines; split it"):
        split_texts([text], kind, 20)
    assert len(found) < 25


def test_markup_in_a_language_without_spaces_is_reported(
    echo_service: MakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    service = echo_service()
    with TestClient(build_app(service)) as client:
        warning = "text in ja has no spaces between words, so a tag may enclose more text than in the source"
        for language, text, kind, num_warnings in (
            ("de", "a <b>b</b>", "markup", 0),
            ("ja", "<b> 1", "numbers", 0),
            ("ja", "a b", "markup", 0),
            ("ja", "a <b>b</b>", "markup", 1),
            ("ja", "a <b>b</b>", "markup", 0),  # only the first line is reported
        ):
            service.models["en-de"].languages = ("en", language)
            post(client, "/v1/translate", {"text": text, "keep": [kind]})
            assert capsys.readouterr().err.count(warning) == num_warnings


def test_tags_do_not_depend_on_other_lines(
    echo_service: MakeService, echo: EchoTranslator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reverse(inputs: Sequence[TranslatorInput], **_: object) -> list[list[Translation]]:
        return [[Translation(" ".join(one.text.upper().split()[::-1]), 0.0, 0.0, [])] for one in inputs]

    monkeypatch.setattr(echo, "translate_inputs", reverse)
    lines = ["a <b>b</b> c d", *"abcd"]
    with TestClient(build_app(echo_service())) as client:
        alone, together = (
            post(client, "/v1/translate", {"text": text, "keep": ["markup"]})["translations"][0][0]["text"]
            for text in (lines[0], lines)
        )
    assert alone == together
    jointly = PreservingTranslator(cast(TextTranslator, echo), ["markup"], ("en", "de"))
    assert jointly.start_translation(list(map(TranslatorInput, lines)))()[0][0].text != alone


def test_documents_without_text_are_copied(echo_service: MakeService, echo: EchoTranslator) -> None:
    with TestClient(build_app(echo_service())) as client:
        body = {"q": ["<p>1</p>", ""], "source": "en", "target": "de", "format": "html", "alternatives": 1}
        assert post(client, "/translate", body) == {"translatedText": ["<p>1</p>", ""], "alternatives": [[], []]}
        answer = post(client, "/v1/translate", {"text": ["", "<p>1</p>"], "format": "html"})
        assert answer["translations"] == [[{"text": ""}], [{"text": "<p>1</p>"}]]
    assert echo.batches == []


def test_kept_items_are_in_the_translation(client: TestClient) -> None:
    answer = post(
        client, "/v1/translate", {"text": "Pay <i>1,234.5</i> to {name}", "keep": ["markup", "numbers", "placeholders"]}
    )
    text = answer["translations"][0][0]["text"]
    assert "1.234,5" in text and "{name}" in text
    assert re.search("<i>.*</i>", text)


@pytest.mark.slow
def test_the_first_contradicting_phrase_is_logged(new_client: TestClient, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        body = {"text": "Visit http://a.org", "keep": ["urls"], "forbidden": ["http://a.org"]}
        assert "http://a.org" in post(new_client, "/v1/translate", body)["translations"][0][0]["text"]
    warning = "without its prefix or a required phrase, or with a forbidden one, because of keep; later"
    assert capfd.readouterr().err.count(warning) == 1


def test_the_first_line_that_is_not_translated_is_logged(
    new_client: TestClient, capfd: pytest.CaptureFixture[str]
) -> None:
    text = f"{'<b>' * 101}a{'</b>' * 101}"
    for _ in range(2):
        body = {"text": text, "keep": ["markup"]}
        assert post(new_client, "/v1/translate", body)["translations"][0][0]["text"] == text
    assert capfd.readouterr().err.count("was not translated, because its translation would lack items or tags; la") == 1


def test_terms_within_items_are_not_required(client: TestClient) -> None:
    body = {"text": "A {cat}", "keep": ["placeholders"], "glossary": [["cat", "2x"]]}
    assert "2x" not in post(client, "/v1/translate", body)["translations"][0][0]["text"]
    assert "2x" in post(client, "/v1/translate", {**body, "keep": []})["translations"][0][0]["text"]


def test_subtitles_keep_their_layout_and_meet_constraints(client: TestClient) -> None:
    subtitles = "1\n00:00:01,000 --> 00:00:02,000\n- <i>A red hat & 3,5</i>\n- Two\n\n"
    body = {
        "text": [subtitles, ""],
        "format": "srt",
        "keep": ["numbers"],
        "required": ["tree"],
        "glossary": [["Two", "2x"]],
    }
    (document,), (empty,) = post(client, "/v1/translate", body)["translations"]
    pattern = r"1\n00:00:01,000 --> 00:00:02,000\n- [^<\n]*<i>[^<\n]*</i>[^<\n]*\n- [^<\n]*2x[^<\n]*\n\n"
    assert re.fullmatch(pattern, document["text"])
    assert document["text"].count("tree") == 2
    assert "3,5" in document["text"] and "&amp;" not in document["text"]
    assert empty == {"text": ""}


def test_both_apis_translate_html_equally(client: TestClient) -> None:
    answer = post(client, "/translate", {"q": PAGE, "source": "en", "target": "de", "format": "html"})
    native_answer = post(client, "/v1/translate", {"text": PAGE, "format": "html"})
    assert native_answer["translations"] == [[{"text": answer["translatedText"]}]]


# In addition to those of the guide; see `test_bad_input`.
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"format": "html", "n_best": 2}, "format html and n_best are mutually exclusive"),
        ({"format": "html", "prefix": "A"}, "format html and prefix are mutually exclusive"),
        ({"keep": ["markup"], "partial_word": True, "prefix": "a"}, "keep and partial_word are mutually exclusive"),
    ],
)
def test_invalid_requests_get_status_400(client: TestClient, body: dict[str, Any], message: str) -> None:
    response = client.post("/v1/translate", json={"text": "a"} | body)
    assert response.status_code == 400
    assert message in response.json()["error"]
