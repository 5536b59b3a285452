"""Glossaries of requests, for models that require terms and for those that annotate them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nmt.decode.glossary import Glossary, Term
from nmt.decode.task import TranslatorInput
from nmt.decode.translation import Translation
from nmt.decode.translator import Translator
from nmt.recipe import DecodeRecipe, GlossaryMode
from nmt.serve.app import build_app
from nmt.serve.batching import BatchingOptions
from nmt.serve.models import ServedModel
from nmt.serve.service import Limits, Service
from nmt.storage.model_metadata import read_model_metadata
from tests.serve.conftest import LANGUAGES, EchoTranslator, MakeService, no_scorer


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
    assert (one.required, one.glossary is None) == ((), False)
    assert one.glossary is not None
    assert [term.forms for term in one.glossary.find(one.text)] == [("x", "y")]
    if mode == "annotate":
        response = client.post("/v1/translate", json=body | {"alternatives": True, "keep": []})
        problem = "alternatives and glossary are mutually exclusive for this model; send one of them"
        assert (response.status_code, response.json()) == (400, {"error": problem})


@pytest.mark.parametrize("more", [{"keep": ["markup"]}, {"format": "html"}])
def test_terms_match_text_without_tags(
    more: dict[str, Any], echo_service: MakeService, found: list[TranslatorInput]
) -> None:
    body = {"text": "the h<b>ot</b> dog &amp; Co", "glossary": [["hot dog & co", "X"]]} | more
    assert TestClient(build_app(echo_service())).post("/v1/translate", json=body).status_code == 200
    assert found[0].glossary is not None
    assert (found[0].text, found[0].glossary.required(found[0].text)) == ("the hot dog & Co", [("X",)])


def test_each_sentence_of_a_line_has_its_own_terms(model: Path, translator: Translator) -> None:
    line, pairs = "The cat sees it. A dog likes it. A cat likes it.", [["cat", "house"], ["dog", "tree"]]
    decode = read_model_metadata(model).decode.model_copy(update={"split_sentences": True})
    served = ServedModel("en-de", LANGUAGES, decode, translator, no_scorer, BatchingOptions(), "torch, fp32")
    body = {"text": line, "glossary": pairs}
    with TestClient(build_app(Service([served], Limits()))) as client:
        ((found,),) = client.post("/v1/translate", json=body).json()["translations"]
        response = client.post("/v1/translate", json=body | {"alternatives": True, "n_best": 2})
    served.batcher.close()
    glossary = Glossary([Term(source, (target,)) for source, target in pairs])
    assert [found["text"]] == translator.with_decode(decode).translate([line], glossary=glossary)
    assert found["text"].lower().count("house") == 2
    assert "house" in response.json()["translations"][0][0]["text"].lower()
