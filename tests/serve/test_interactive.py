"""Fields of /v1/translate for interactive clients: partial words, alternatives, attention and search options."""

import asyncio
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nmt.decode.translator import Translator
from nmt.export.engine import CTranslate2Translator
from nmt.recipe import DecodeRecipe
from nmt.serve.app import build_app
from nmt.serve.service import ApiKeys, Limits
from nmt.storage.model_metadata import read_model_metadata
from tests.extras import import_ctranslate2
from tests.serve.conftest import EchoTranslator, MakeService, serve_model

LINE = "The cat sees a dog."
SEARCH = {"max_length_ratio": 9.0, "max_extra_tokens": 20}


@pytest.fixture
def long_client(model: Path, translator: Translator) -> Iterator[TestClient]:
    """A client of a service whose translations may be long."""
    with serve_model(translator, read_model_metadata(model).decode.model_copy(update=SEARCH)) as client:
        yield client


@pytest.fixture
def long_translator(model: Path, translator: Translator) -> Translator:
    return translator.with_decode(read_model_metadata(model).decode.model_copy(update=SEARCH))


def test_a_partial_word_is_completed(long_client: TestClient, long_translator: Translator) -> None:
    body = {"text": LINE, "prefix": "the ca", "partial_word": True}
    ((translation,),) = long_client.post("/v1/translate", json=body).json()["translations"]
    assert translation["text"].startswith("the ca")
    ((expected,),) = long_translator.translate_n_best([LINE], 1, ["the ca"], partial_word=True)
    assert translation["text"] == expected.text


def test_alternatives_differ_after_the_prefix(long_client: TestClient, long_translator: Translator) -> None:
    body = {"text": LINE, "prefix": "the", "alternatives": True, "n_best": 6, "scores": True}
    (found,) = long_client.post("/v1/translate", json=body).json()["translations"]
    expected = long_translator.alternatives(LINE, "the", 6)
    assert len(found) > 2  # more than the beam
    assert [one["text"] for one in found] == [one.text for one in expected]
    assert [one["log_prob"] for one in found] == pytest.approx([one.log_prob for one in expected])


def test_each_translation_has_its_attention(client: TestClient, translator: Translator) -> None:
    body = {"text": LINE, "n_best": 2, "attention": True}
    (found,) = client.post("/v1/translate", json=body).json()["translations"]
    for fields, translation in zip(found, translator.translate_n_best([LINE], 2)[0], strict=True):
        assert fields["attention"] == asdict(translator.attention(LINE, translation))


def test_attention_with_many_weights_is_refused(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.serve.app._MAX_WEIGHTS", 10)
    response = client.post("/v1/translate", json={"text": LINE, "n_best": 2, "attention": True})
    message = "the attention has more than 10 weights; reduce n_best, or send a shorter text"
    assert (response.status_code, response.json()["error"]) == (413, message)


def test_a_server_that_samples_limits_their_number_and_refuses_what_needs_a_search(model: Path) -> None:
    search = DecodeRecipe(sampling=True)
    with serve_model(Translator.load(model, "cpu", "fp32", search), search) as client:
        answers = [client.post("/v1/translate", json={"text": LINE, "n_best": count}) for count in (32, 33)]
        unsupported = client.get("/v1/models").json()["models"][0]["unsupported"]
        refused = client.post("/v1/translate", json={"text": LINE, "preferred": {"cat": 1.0}})
    assert unsupported.keys() == {"required", "preferred", "glossary"}
    assert refused.json()["error"] == "preferred is not supported: it needs a search, and this model samples"
    assert len(answers[0].json()["translations"][0]) == 32
    assert (answers[1].status_code, answers[1].json()["error"]) == (
        400,
        "n_best is 33; it must be at most 32; request fewer",
    )


def test_phrases_are_compared_outside_the_event_loop(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many long phrases take seconds, which other requests must not wait for."""
    has_loop: list[bool] = []

    def compare(*_: str, ignores_case: bool) -> bool:
        has_loop.append(asyncio._get_running_loop() is not None)
        return False

    monkeypatch.setattr("nmt.serve.app.contains_phrase", compare)
    assert client.post("/v1/translate", json={"text": LINE, "forbidden": ["cat"]}).status_code == 200
    assert has_loop == [False]


def test_attention_has_the_tag_of_the_request(client: TestClient, translator: Translator) -> None:
    body = {"text": LINE, "attention": True, "tag": "<news>"}
    ((fields,),) = client.post("/v1/translate", json=body).json()["translations"]
    tagged = translator.with_decode(DecodeRecipe(tag="<news>"))
    ((translation,),) = tagged.translate_n_best([LINE], 1)
    assert fields["attention"] == asdict(tagged.attention(LINE, translation))
    assert fields["attention"] != asdict(translator.attention(LINE, translation))


# In addition to those of the guide; see `test_bad_input`.
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text": LINE, "prefix": "the cat", "forbidden": ["a", "cat"]}, "prefix contains 'cat', which is forbidden"),
        (
            {"text": LINE, "required": ["the dog", "a cat"], "forbidden": ["dogs", "cat"]},
            "required phrase 'a cat' contains 'cat', which is forbidden; change one of them",
        ),
        (
            {"text": LINE, "required": [["a cat", "dog"], "dogs|a cat"], "forbidden": ["dogs", "cat"]},
            "required phrase 'dogs' contains 'dogs', which is forbidden; change one of them",
        ),
        (
            {"text": LINE, "preferred": {"cat": -1, "a cat": 1}, "forbidden": ["dog", "cat"]},
            "preferred phrase 'a cat' contains 'cat', which is forbidden; change one of them",
        ),
        ({"text": LINE, "attention": True, "context": ["Hi."]}, "attention and context are mutually exclusive"),
        ({"text": LINE, "attention": True, "stream": True}, "attention needs a request with one text"),
        ({"text": "the cat sees a dog. " * 20, "attention": True}, "the line is split"),
        ({"text": LINE, "prefix": "a" * 10_001}, "prefix must have at most 10000 characters"),
        ({"text": LINE, "forbidden": ["a" * 1_001]}, "forbidden.0 must have at most 1000 characters"),
        ({"text": LINE, "glossary": [["a", "b" * 1_001]]}, "glossary.0.1 must be at most 100 texts of at most 1,000"),
        ({"text": LINE, "glossary": [["a", ["b"] * 101]]}, "glossary.0.1 must be at most 100 texts of at most 1,000"),
        ({"text": LINE, "beam_size": 0}, "beam_size must be"),
        ({"text": LINE, "length_alpha": "x"}, "length_alpha must be a number"),
    ],
)
def test_invalid_requests_get_status_400(client: TestClient, fields: dict[str, Any], message: str) -> None:
    response = client.post("/v1/translate", json=fields)
    assert (response.status_code, response.json()["error"][: len(message)]) == (400, message)


def test_the_models_are_listed_with_limits_and_the_need_for_keys(
    client: TestClient, echo_service: MakeService, tmp_path: Path
) -> None:
    listed = client.get("/v1/models").json()
    assert listed["limits"] == {"bytes": 20_000, "characters": 2_000, "lines": 20, "seconds": 60.0}
    assert listed["models"][0]["unsupported"] == {}
    assert listed["requires_key"] is False
    (tmp_path / "keys").write_text("good\n", encoding="utf-8")
    with_keys = TestClient(build_app(echo_service(Limits(), ApiKeys(tmp_path / "keys"))))
    assert with_keys.get("/v1/models").json()["requires_key"] is True


def test_fields_that_ctranslate2_does_not_support_are_listed_and_refused(model: Path) -> None:
    import_ctranslate2()
    engine = CTranslate2Translator.load(model, "cpu", "fp32")
    values = {
        "required": ["cat"],
        "preferred": {"cat": 1.0},
        "glossary": [["cat", "cat"]],
        "partial_word": True,
        "alignments": True,
        "attention": True,
    }
    alternatives = {"text": LINE, "prefix": "the", "alternatives": True, "n_best": 3}
    with serve_model(engine, read_model_metadata(model).decode) as client:
        assert set(client.get("/v1/models").json()["models"][0]["unsupported"]) == set(values)
        for field, value in values.items():
            response = client.post("/v1/translate", json={"text": LINE, "prefix": "th", field: value})
            assert response.status_code == 400, field
            expected = f"{field} is not supported: CTranslate2 does not support it; use --engine torch"
            assert response.json()["error"] == expected
        assert len(client.post("/v1/translate", json=alternatives).json()["translations"][0]) > 1


def test_beam_size_and_length_penalty_are_those_of_the_request(echo: EchoTranslator, echo_service: MakeService) -> None:
    client = TestClient(build_app(echo_service()))
    client.post("/v1/translate", json={"text": "a", "beam_size": 7, "length_alpha": 0.0})
    assert [(decode.beam_size, decode.length_alpha) for decode in echo.decode_options] == [(7, 0.0)]
