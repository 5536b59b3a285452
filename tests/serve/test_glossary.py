"""Glossaries of requests, for models that require terms and for those that annotate them."""

from collections.abc import Sequence
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nmt.decode.task import TranslatorInput
from nmt.decode.translation import Translation
from nmt.recipe import DecodeRecipe, GlossaryMode
from nmt.serve.app import build_app
from tests.serve.conftest import EchoTranslator, MakeService


@pytest.fixture
def found(echo: EchoTranslator, monkeypatch: pytest.MonkeyPatch) -> list[TranslatorInput]:
    """The inputs that the translator gets."""
    inputs: list[TranslatorInput] = []

    def translate(own: Sequence[TranslatorInput], **_: object) -> list[list[Translation]]:
        inputs.extend(own)
        return [[Translation(one.text, 0.0, 0.0, [])] for one in own]

    monkeypatch.setattr(echo, "translate_inputs", translate)
    return inputs


@pytest.mark.parametrize("mode", ["constrain", "annotate"])
@pytest.mark.parametrize("more", [{}, {"keep": ["numbers"]}])
def test_a_repeated_term_is_merged_as_in_a_glossary_file(
    mode: GlossaryMode,
    more: dict[str, Any],
    echo_service: MakeService,
    found: list[TranslatorInput],
) -> None:
    service = echo_service()
    service.models["en-de"].decode = DecodeRecipe(glossary_mode=mode)
    client = TestClient(build_app(service))
    body = {"text": "the cat", "glossary": [["cat", "x"], ["Cat", ["y", "x"]]]} | more
    assert client.post("/v1/translate", json=body).status_code == 200
    (one,) = found
    if mode == "constrain":
        assert (one.required, one.glossary) == ((("x", "y", "X", "Y"),), None)
    else:
        assert one.glossary is not None
        assert [term.forms for term in one.glossary.find(one.text)] == [("x", "y")]
        response = client.post("/v1/translate", json=body | {"alternatives": True, "keep": []})
        problem = "alternatives and glossary are mutually exclusive for this model; send one of them"
        assert (response.status_code, response.json()) == (400, {"error": problem})


@pytest.mark.parametrize("more", [{"keep": ["markup"]}, {"format": "html"}])
def test_terms_match_text_without_tags(
    more: dict[str, Any], echo_service: MakeService, found: list[TranslatorInput]
) -> None:
    body = {"text": "the h<b>ot</b> dog &amp; Co", "glossary": [["hot dog & co", "X"]]} | more
    assert TestClient(build_app(echo_service())).post("/v1/translate", json=body).status_code == 200
    assert (found[0].text, found[0].required) == ("the hot dog & Co", (("X",),))
