"""The field `context` of requests."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nmt.decode.task import TranslatorInput
from nmt.decode.translation import Translation
from nmt.recipe import Context, ContextSides
from nmt.serve.app import build_app
from nmt.serve.batching import QueueFullError
from tests.serve.conftest import EchoTranslator, MakeService


@pytest.mark.parametrize("more", [{}, {"keep": ["numbers"]}])
def test_the_context_reaches_the_translator(
    more: dict[str, Any], echo_service: MakeService, echo: EchoTranslator, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []

    def translate(inputs: Sequence[TranslatorInput], **_: object) -> list[list[Translation]]:
        found.extend((one.text, list(one.context)) for one in inputs)
        return [[Translation(one.text, 0.0, 0.0, [])] for one in inputs]

    monkeypatch.setattr(echo, "translate_inputs", translate)
    with TestClient(build_app(echo_service())) as client:
        for context in ([], ["b", "c\ud800"], [["b", "B"]]):
            body = json.dumps({"text": "a", "context": context} | more)
            response = client.post("/v1/translate", content=body)
            assert response.json()["translations"] == [[{"text": "a"}]]
    assert found == [("a", []), ("a", ["b", "c\ufffd"]), ("a", [("b", "B")])]


@pytest.mark.parametrize("sides", ["source", "both"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/translate", {"q": ["a\nb\nc\nd\n \ne\nf", "g"], "source": "en", "target": "de"}),
        ("/translate", {"q": ["<p>a<p>b<p>c<p>d", "<p>e<p>f", "g"], "format": "html", "source": "en", "target": "de"}),
        ("/v1/translate", {"text": ["<p>a<p>b<p>c<p>d", "<p>e<p>f", "g"], "format": "html"}),
    ],
)
def test_the_lines_of_a_document_are_the_context_of_later_ones(
    sides: ContextSides,
    path: str,
    body: dict[str, Any],
    echo_service: MakeService,
    echo: EchoTranslator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: dict[str, Any] = {}

    def translate(inputs: Sequence[TranslatorInput], **_: object) -> list[list[Translation]]:
        found.update((one.text, list(one.context)) for one in inputs)
        return [[Translation(one.text.upper(), 0.0, 0.0, [], alignment=[])] for one in inputs]

    monkeypatch.setattr(echo, "translate_inputs", translate)
    monkeypatch.setattr(echo, "context", Context(2, sides))
    with TestClient(build_app(echo_service())) as client:
        response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    expected = {"a": "", "b": "a", "c": "ab", "d": "bc", "e": "", "f": "e", "g": ""}
    for text, context in expected.items():
        assert found[text] == [one if sides == "source" else (one, one.upper()) for one in context], text


def test_later_lines_of_a_document_wait_while_the_queue_is_full(
    echo_service: MakeService, echo: EchoTranslator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(echo, "context", Context(2, "both"))
    monkeypatch.setattr("nmt.serve.service._RETRY_SECONDS", 0.01)
    service = echo_service()
    batcher = service.models["en-de"].batcher
    submit, calls = batcher.submit, []

    def refuse_third(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 3:
            raise QueueFullError
        return submit(*arguments, **options)

    monkeypatch.setattr(batcher, "submit", refuse_third)
    response = TestClient(build_app(service)).post("/translate", json={"q": "a\nb\nc", "source": "en", "target": "de"})
    assert response.json() == {"translatedText": "A\nB\nC"}
    assert len(calls) == 4


# In addition to those of the guide; see `test_bad_input`.
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"text": "a", "context": "b"}, "context must be a list"),
        ({"text": "a", "context": ["b"] * 101}, "context must have at most 100 items"),
        ({"text": "a", "context": ["b"], "alternatives": True}, "the model translates without context; "),
    ],
)
def test_an_invalid_context_is_an_error(client: TestClient, body: dict[str, Any], message: str) -> None:
    response = client.post("/v1/translate", json=body)
    assert response.status_code == 400
    assert response.json()["error"].startswith(message)
