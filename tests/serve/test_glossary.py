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
from nmt.errors import NoTranslationError
from nmt.recipe import DecodeRecipe, GlossaryMode
from nmt.serve import app
from nmt.serve.app import build_app
from nmt.storage.model_metadata import read_model_metadata
from tests.serve.conftest import EchoTranslator, MakeService, serve_model


@pytest.fixture
def found(echo: EchoTranslator, monkeypatch: pytest.MonkeyPatch) -> list[TranslatorInput]:
    """The inputs that the translator gets."""
    found: list[TranslatorInput] = []

    def translate(inputs: Sequence[TranslatorInput], **_: object) -> list[list[Translation]]:
        found.extend(inputs)
        return [[Translation(one.text, 0.0, 0.0, [])] for one in inputs]

    monkeypatch.setattr(echo, "translate_inputs", translate)
    return found


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
    assert one.required == ()
    assert one.glossary is not None
    assert [term.forms for term in one.glossary.find(one.text)] == [("x", "y")]


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({}, 400),
        ({"text": "the dog"}, 200),
        ({"glossary": [["cat", "Katze|Kater"]]}, 200),
        ({"text": "see www.a.de/cat", "keep": ["urls"]}, 200),  # the term does not match within the URL
    ],
)
def test_a_term_all_of_whose_translations_are_forbidden_is_named(
    more: dict[str, Any], status: int, client: TestClient
) -> None:
    body = {"text": "the cat", "glossary": [["cat", "Katze"]], "forbidden": ["Katze"]} | more
    response = client.post("/v1/translate", json=body)
    assert response.status_code == status, response.text
    if status == 400:
        problem = "glossary translation 'Katze' of 'cat' contains 'Katze', which is forbidden; change one of them"
        assert response.json() == {"error": problem}


def test_a_term_is_compared_with_forbidden_phrases_once(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines, terms, forms and phrases multiply, and could block the server for minutes."""
    compared: list[str] = []

    def compare(text: str, *_: object, **__: object) -> bool:
        compared.append(text)
        return False

    monkeypatch.setattr(app, "contains_phrase", compare)
    body = {"text": ["the cat"] * 3, "glossary": [["cat", "Katze|Kater"]], "forbidden": ["Hund"]}
    assert client.post("/v1/translate", json=body).status_code == 200
    assert compared.count("Katze") == 1


def test_an_impossible_translation_has_advice_for_clients(
    echo_service: MakeService, echo: EchoTranslator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(inputs: Sequence[TranslatorInput], **_: object) -> list[list[Translation]]:
        raise NoTranslationError("no translation is possible; train with a lower rate")

    monkeypatch.setattr(echo, "translate_inputs", fail)
    response = TestClient(build_app(echo_service())).post("/v1/translate", json={"text": "a"})
    assert response.status_code == 400
    assert response.json()["error"].endswith("; relax the constraints, or choose another model")


def test_alternatives_leave_out_terms_that_exceed_the_maximum_length(client: TestClient) -> None:
    body = {"text": "the cat", "alternatives": True}
    plain = client.post("/v1/translate", json=body).json()
    response = client.post("/v1/translate", json=body | {"glossary": [["cat", "x " * 200]]})
    assert (response.status_code, response.json()) == (200, plain)


@pytest.mark.parametrize("more", [{"keep": ["markup"]}, {"format": "html"}])
def test_terms_match_text_without_tags(
    more: dict[str, Any], echo_service: MakeService, found: list[TranslatorInput]
) -> None:
    body = {"text": "the h<b>ot</b> dog &amp; Co", "glossary": [["hot dog & co", "X"]]} | more
    assert TestClient(build_app(echo_service())).post("/v1/translate", json=body).status_code == 200
    assert found[0].glossary is not None
    assert (found[0].text, found[0].glossary.required(found[0].text)) == ("the hot dog & Co", [("X",)])


@pytest.mark.slow
def test_each_sentence_of_a_line_has_its_own_terms(model: Path, translator: Translator) -> None:
    line, pairs = "The cat sees it. A dog likes it. A cat likes it.", [["cat", "house"], ["dog", "tree"]]
    decode = read_model_metadata(model).decode.model_copy(update={"split_sentences": True})
    body = {"text": line, "glossary": pairs}
    with serve_model(translator, decode) as client:
        ((found,),) = client.post("/v1/translate", json=body).json()["translations"]
        response = client.post("/v1/translate", json=body | {"alternatives": True, "n_best": 2})
    glossary = Glossary([Term(source, (target,)) for source, target in pairs])
    assert [found["text"]] == translator.with_decode(decode).translate([line], glossary=glossary)
    assert found["text"].lower().count("house") == 2
    assert "house" in response.json()["translations"][0][0]["text"].lower()
