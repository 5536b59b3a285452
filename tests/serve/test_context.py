"""The field `context` of requests."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nmt.decode.task import TranslatorInput
from nmt.decode.translation import Translation
from nmt.serve.app import build_app
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


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"text": ["a", "b"], "context": ["c"]}, "context needs a request with one text; send each line with its own"),
        ({"text": "a", "context": "b"}, "context: "),
        ({"text": "a", "context": [["b"]]}, "context.0"),
        ({"text": "a", "context": ["b"] * 101}, "context: "),
        ({"text": "a", "context": ["b"]}, "the model translates without context; train one with data.context, or omit"),
        ({"text": "a", "context": ["b"], "alternatives": True}, "the model translates without context; "),
    ],
)
def test_wrong_requests(client: TestClient, body: dict[str, Any], message: str) -> None:
    response = client.post("/v1/translate", json=body)
    assert response.status_code == 400
    assert response.json()["error"].startswith(message)
