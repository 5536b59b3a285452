"""Detection of the source language: `/detect`, and `source` "auto"."""

from collections.abc import Sequence
from typing import cast

import pytest
from fastapi.testclient import TestClient

from nmt.decode.text_translator import TextTranslator
from nmt.errors import UserError
from nmt.recipe import DecodeRecipe
from nmt.serve.app import build_app
from nmt.serve.batching import BatchingOptions
from nmt.serve.detection import rank_languages
from nmt.serve.models import ServedModel
from nmt.serve.service import Limits, Service
from tests.serve.conftest import EchoTranslator, no_scorer

pytest.importorskip("py3langid", reason="py3langid is not installed: pip install 'nmt[serve]'")

ENGLISH = "The children are playing in the garden behind the house."
GERMAN = "Die Kinder spielen im Garten hinter dem Haus und lachen."
FRENCH = "Les enfants jouent dans le jardin derrière la maison."


def make_client(pairs: Sequence[tuple[str, str]]) -> TestClient:
    models = []
    for languages in pairs:
        translator = cast(TextTranslator, EchoTranslator())
        name = "-".join(languages)
        batching = BatchingOptions(max_delay=0.0)
        models.append(ServedModel(name, languages, DecodeRecipe(), translator, no_scorer, batching, "echo"))
    return TestClient(build_app(Service(models, Limits())))


@pytest.mark.slow
def test_languages_are_ranked_among_the_served_sources() -> None:
    client = make_client([("en", "de"), ("de", "en"), ("fr", "en")])
    for text, language in ((ENGLISH, "en"), (GERMAN, "de"), (FRENCH, "fr")):
        ranked = client.post("/detect", json={"q": text}).json()
        assert ranked == client.post("/detect", data={"q": text}).json()
        assert ranked[0]["language"] == language
        assert ranked[0]["confidence"] > 90.0
        assert {one["language"] for one in ranked} == {"en", "de", "fr"}
        assert sum(one["confidence"] for one in ranked) == pytest.approx(100.0, abs=0.2)


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.slow
def test_auto_detects_one_of_the_sources_of_the_target(as_list: bool) -> None:
    client = make_client([("en", "es"), ("fr", "es"), ("de", "en")])
    response = client.post("/translate", json={"q": [FRENCH] if as_list else FRENCH, "source": "auto", "target": "es"})
    detected = response.json()["detectedLanguage"]
    assert (detected[0] if as_list else detected)["language"] == "fr"
    # No model translates German to Spanish, so German is not a candidate.
    german = client.post("/translate", json={"q": GERMAN, "source": "auto", "target": "es"}).json()
    assert german["detectedLanguage"]["language"] in ("en", "fr")


def test_the_language_of_a_page_is_detected_from_its_text() -> None:
    client = make_client([("en", "es"), ("de", "es")])
    style = "body { margin: 0; color: black; font-family: sans-serif; } " * 50
    page = f"<html><head><style>{style}</style></head><body><p>{GERMAN}</p></body></html>"
    body = {"q": page, "format": "html", "source": "auto", "target": "es"}
    assert client.post("/translate", json=body).json()["detectedLanguage"]["language"] == "de"


def test_language_models_are_not_source_languages() -> None:
    client = make_client([("zxx", "en"), ("de", "en"), ("fr", "en")])
    for text in ("AAAA", "12345 !!!"):
        detected = client.post("/translate", json={"q": text, "source": "auto", "target": "en"}).json()
        assert detected["detectedLanguage"]["language"] in ("de", "fr")
        assert {one["language"] for one in client.post("/detect", json={"q": text}).json()} == {"de", "fr"}
    assert [one["code"] for one in client.get("/languages").json()] == ["de", "fr", "en"]
    assert client.get("/frontend/settings").json()["language"]["source"]["code"] == "de"
    only = make_client([("zxx", "en")])
    assert only.get("/languages").json() == []
    assert only.get("/frontend/settings").json()["language"]["source"]["code"] == "zxx"
    for path, body, message in (
        ("/detect", {"q": "a"}, "no model has a source language"),
        ("/translate", {"q": "a", "source": "auto", "target": "en"}, "no model translates 'auto'"),
    ):
        response = only.post(path, json=body)
        assert (response.status_code, message in response.text) == (400, True)


def test_a_single_source_needs_no_detection() -> None:
    client = make_client([("xx", "de")])
    assert client.post("/detect", json={"q": GERMAN}).json() == [{"language": "xx", "confidence": 100.0}]


def test_regional_names_match_their_language() -> None:
    detected = rank_languages(["en_US", "de-CH"], [GERMAN])
    assert [language for language, _ in detected] == ["de-CH", "en_US"]


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        (("en", "xx"), "language 'xx' cannot be detected: it is unknown; name the source language"),
        (("pt-BR", "pt-PT"), "language 'pt-PT' cannot be detected: it has the same code as 'pt-BR'; name"),
    ],
)
def test_languages_that_cannot_be_told_apart_are_an_error(languages: tuple[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        rank_languages(languages, [GERMAN])
    client = make_client([(language, "de") for language in languages])
    response = client.post("/translate", json={"q": "a", "source": "auto", "target": "de"})
    assert (response.status_code, response.json()["error"][: len(message)]) == (400, message)


def test_a_request_to_detect_needs_a_text() -> None:
    response = make_client([("en", "de")]).post("/detect", json={})
    assert response.status_code == 400
    assert response.json()["error"].startswith("q is missing")
