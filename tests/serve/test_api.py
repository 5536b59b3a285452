"""Requests and responses of the server: translations, errors, and the examples of the guide."""

import json
import re
import shlex
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient

from nmt.checkpoint import load_model, model_files, model_tensors
from nmt.decode.scoring import TextScore, TextScorer
from nmt.decode.translator import Translator
from nmt.engines import load_scorer
from nmt.recipe import DecodeRecipe
from nmt.serve.app import build_app
from nmt.serve.messages import JsonLine
from nmt.storage.model_metadata import read_model_metadata
from nmt.storage.sealed import manifest_digest, write_directory
from nmt.text.tokenizer import Tokenizers
from tests.cli.nasty_lines import nasty_lines
from tests.serve.conftest import PAIR, EchoTranslator, MakeService, S, T, V, serve_model

TEXT = "The cat sees a dog.\n\n  \nA tree\r\n"


# --- Translations -----------------------------------------------------------------------------------------------------


def test_a_text_is_translated_line_by_line(client: TestClient, translator: Translator) -> None:
    expected = "\n".join(translator.translate(TEXT.split("\n")))
    assert expected.count("\n") == 4
    assert expected.strip()
    assert client.post("/translate", json={"q": TEXT} | PAIR).json() == {"translatedText": expected}
    assert client.post("/translate", data={"q": TEXT} | PAIR).json() == {"translatedText": expected}
    several = {"q": [TEXT, "", "Go!"], "source": "auto", "target": "de", "unknown": 1}
    assert client.post("/translate", json=several).json() == {
        "translatedText": [expected, "", *translator.translate(["Go!"])],
        "detectedLanguage": [{"language": "en", "confidence": 100.0}] * 3,
    }


def test_alternatives_differ(client: TestClient, translator: Translator) -> None:
    lines = ["The cat sees a dog.", "a dog"]
    best, other = ([n_best[rank].text for n_best in translator.translate_n_best(lines, 2)] for rank in (0, 1))
    single = client.post("/translate", json={"q": "\n".join(lines), "alternatives": 9} | PAIR).json()
    assert single == {"translatedText": "\n".join(best), "alternatives": ["\n".join(other)]}
    assert best != other
    lists = client.post("/translate", json={"q": lines, "alternatives": 1} | PAIR).json()
    assert lists == {"translatedText": best, "alternatives": [[text] for text in other]}


def test_alternatives_of_a_model_with_low_patience(translator: Translator, model: Path) -> None:
    changes = {"stop": "patience", "patience": 0.5, "beam_size": 4, "n_best": 1}
    decode = read_model_metadata(model).decode.model_copy(update=changes)
    with serve_model(translator, decode) as client:
        response = client.post("/translate", json={"q": "a cat", "alternatives": 3} | PAIR)
    assert response.status_code == 200 and len(response.json()["alternatives"]) <= 1


@pytest.mark.slow
def test_alternatives_do_not_change_the_choice_of_mbr(translator: Translator, model: Path) -> None:
    changes = {"mbr_metric": "chrf", "n_best": 2, "beam_size": 8, "max_length_ratio": 2.0}
    decode = read_model_metadata(model).decode.model_copy(update=changes)
    lines = nasty_lines(10, num_longest=0)
    with serve_model(translator, decode) as client:
        bodies: list[dict[str, Any]] = [{"q": lines} | PAIR, {"q": lines, "alternatives": 3} | PAIR]
        first, second = (client.post("/translate", json=body).json()["translatedText"] for body in bodies)
    assert first == second == translator.with_decode(decode).translate(lines)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"n_best": 2}, {"n_best": 2}),
        ({"tag": "<web>"}, {"tag": "<web>"}),
        ({"forbidden": ["cat", "dog"]}, {"forbid": ("cat", "dog")}),
        ({"preferred": {"tree": 3.0, "3.14": -2.0}}, {"bias": {"tree": 3.0, "3.14": -2.0}}),
        ({"alignments": True}, {"alignments": True}),
        ({"prefix": "the"}, {}),
        ({"required": ["tree", "3.14"]}, {}),
        ({"required": [["tree", "cat"], ["3.14"]]}, {}),
    ],
    ids=lambda value: str(value),
)
def test_request_options_are_passed_to_the_search(
    client: TestClient, translator: Translator, model: Path, fields: dict[str, Any], options: dict[str, Any]
) -> None:
    lines = ["The cat sees a dog.", "A tree likes it."]
    reference = translator.with_decode(read_model_metadata(model).decode.model_copy(update=options))
    prefixes = [str(fields["prefix"])] * 2 if "prefix" in fields else None
    required = [list(fields["required"])] * 2 if "required" in fields else None
    expected = reference.translate_n_best(lines, None, prefixes, required)
    response = client.post("/v1/translate", json={"text": lines, "scores": True} | fields)
    assert response.status_code == 200, response.text
    for n_best, translations in zip(response.json()["translations"], expected, strict=True):
        for actual, translation in zip(n_best, translations, strict=True):
            assert (actual["text"], actual["tokens"]) == (translation.text, translation.pieces)
            assert actual["log_prob"] == pytest.approx(translation.log_prob)
            links = None if translation.alignment is None else [list(link) for link in translation.alignment]
            assert actual.get("alignment") == links


def test_lines_are_split_into_sentences(client: TestClient) -> None:
    texts = ["Dr. Smith is here. Am 3. Oktober kam er.", " "]
    sentences = [["Dr. Smith is here.", "Am 3. Oktober kam er."], []]
    assert client.post("/v1/sentences", json={"text": texts}).json() == {"sentences": sentences}
    assert client.post("/v1/sentences", json={"text": texts[0]}).json() == {"sentences": sentences[:1]}


def test_terms_of_the_glossary_are_required(client: TestClient) -> None:
    pairs = [["dog", "tree|3.14"], ["old cat", ["house"]], ["cat", "red"]]
    texts = ["The old cat sees it.", "A dog likes it."]
    body = {"text": texts, "glossary": pairs}
    response = client.post("/v1/translate", json=body)
    assert response.status_code == 200, response.text
    [[first], [second]] = response.json()["translations"]
    assert "house" in first["text"].lower()
    assert "tree" in second["text"].lower() or "3.14" in second["text"]


def test_duplicate_alternatives_are_removed(echo_service: MakeService) -> None:
    client = TestClient(build_app(echo_service()))
    response = client.post("/translate", json={"q": "Aa\n\nB", "alternatives": 1} | PAIR).json()
    assert response == {"translatedText": "AA\n\nB", "alternatives": ["aa\n\nb"]}


def test_options_of_a_request_are_added_to_those_of_the_model(echo: EchoTranslator, echo_service: MakeService) -> None:
    service = echo_service()
    service.models["en-de"].decode = DecodeRecipe(beam_size=7, forbid=("w",))
    body = {"text": "a", "n_best": 2, "tag": "<web>", "forbidden": ["x", "y"], "alignments": True}
    assert TestClient(build_app(service)).post("/v1/translate", json=body).status_code == 200
    (decode,) = echo.decode_options
    assert (decode.n_best, decode.tag, decode.forbid, decode.alignments) == (2, "<web>", ("w", "x", "y"), True)
    assert decode.beam_size == 7


@pytest.mark.parametrize(
    ("options", "field", "needed"),
    [
        ({"length_penalty": "none"}, {"length_alpha": 1.0}, "a length_penalty other than 'none', and a search"),
        ({"sampling": True}, {"beam_size": 2}, "a search (sampling=false)"),
    ],
)
def test_an_option_without_effect_on_the_search_of_the_server_is_an_error(
    echo_service: MakeService, options: dict[str, Any], field: dict[str, Any], needed: str
) -> None:
    service = echo_service()
    service.models["en-de"].decode = DecodeRecipe.model_validate(options)
    client = TestClient(build_app(service))
    (same,) = client.get("/v1/models").json()["models"]
    unchanged = {"text": "a", "beam_size": same["beam_size"], "length_alpha": same["length_alpha"]}  # sent by the page
    assert client.post("/v1/translate", json=unchanged).status_code == 200
    response = client.post("/v1/translate", json={"text": "a"} | field)
    (name,) = field
    problem = response.json()["error"]
    assert response.status_code == 400 and problem.startswith(f"{name} has no effect without {needed}")
    assert problem.endswith(f"; the server's options do not provide this; leave out {name}")


def test_lone_surrogates_are_replaced_in_responses() -> None:
    assert JsonLine({"ä": "\ud800\n"}).body == '{"ä": "?\\n"}\n'.encode()


def test_scores_equal_those_of_the_scorer(client: TestClient, model: Path) -> None:
    pairs = [("The cat", "Die Katze"), ("", ""), ("A dog", "x")]
    expected = TextScorer.load(model, "cpu").score([src for src, _ in pairs], [tgt for _, tgt in pairs])
    scores = client.post("/v1/score", json={"pairs": pairs}).json()["scores"]
    for score, reference in zip(scores, expected, strict=True):
        assert score["tokens"] == reference.pieces
        assert score["token_log_probs"] == pytest.approx(reference.token_log_probs, abs=1e-5)
        assert score["log_prob"] == pytest.approx(reference.log_prob, abs=1e-5)


def test_scores_have_the_tag_of_the_server(model: Path, tmp_path: Path) -> None:
    loaded = load_model(model, torch.device("cpu"))
    metadata = replace(loaded.metadata, decode=DecodeRecipe(tag="<web>"))
    tensors, tokenizers = model_tensors(loaded.model), Tokenizers.load(model)
    path = tmp_path / "tagged"
    write_directory(path, model_files(loaded.model.recipe, tensors, tokenizers.files(), metadata))
    expected: dict[str | None, list[TextScore]] = {
        tag: TextScorer.load(path, "cpu", tag).score(["The cat"], ["x"]) for tag in ("<web>", "<news>")
    }
    expected[None] = TextScorer.load(model, "cpu").score(["The cat"], ["x"])  # `--set tag=` removes that of the model
    for tag, scores in expected.items():
        assert load_scorer(path, manifest_digest(path), "cpu", tag).score(["The cat"], ["x"]) == scores


@pytest.mark.slow
def test_concurrent_clients_get_their_own_translations(echo_service: MakeService) -> None:
    client = TestClient(build_app(echo_service()))
    wrong: list[object] = []
    num_threads, num_requests, num_lines = 8, 10, 3

    def send_requests(thread: int) -> None:
        for number in range(num_requests):
            text = f"line {thread} {number}\n\nsecond {thread} {number}"
            if number % 2:
                translated = client.post("/translate", json={"q": text} | PAIR).json()["translatedText"]
            else:
                body = {"text": text.split("\n"), "tag": f"<{thread % 3}>"}
                response = client.post("/v1/translate", json=body).json()["translations"]
                translated = "\n".join(n_best[0]["text"] for n_best in response)
            if translated != text.upper():
                wrong.append(translated)

    threads = [threading.Thread(target=send_requests, args=(number,)) for number in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    total = num_threads * num_requests * num_lines
    assert f'nmt_lines_total{{model="en-de"}} {total}\n' in client.get("/metrics").text


def test_models_languages_and_paths_are_listed(client: TestClient) -> None:
    assert client.get("/languages").json() == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": []},
    ]
    (listed,) = client.get("/v1/models").json()["models"]
    assert (listed["name"], listed["source"], listed["target"], listed["beam_size"]) == ("en-de", "en", "de", 2)
    assert client.get("/health").json() == {"status": "ok"}
    paths = client.get("/openapi.json").json()["paths"]
    assert set(paths) == {
        "/translate",
        "/detect",
        "/languages",
        "/frontend/settings",
        "/health",
        "/metrics",
        "/v1/translate",
        "/v1/score",
        "/v1/sentences",
        "/v1/models",
    }
    assert "application/json" in paths["/v1/translate"]["post"]["requestBody"]["content"]
    assert client.get("/docs").status_code == 404


def test_metrics_count_requests_by_route(echo_service: MakeService) -> None:
    client = TestClient(build_app(echo_service()))
    client.post("/translate", json={"q": "a"} | PAIR)
    client.get("/a%0ab")
    text = client.get("/metrics").text
    assert 'nmt_requests_total{path="/translate",status="200"} 1\n' in text
    assert 'nmt_requests_total{path="other",status="404"} 1\n' in text


# --- Invalid requests -------------------------------------------------------------------------------------------------

# In addition to those of the guide; see `test_bad_input`.
INVALID_REQUESTS: list[tuple[str, str | dict[str, Any] | bytes, int, str]] = [
    (T, "null", 400, "invalid request body: it is not a JSON object"),
    (V, '{"text": "a", "preferred": {"b": 1, "b": 2}}', 400, "invalid request body: field 'b' is repeated"),
    (V, '{"text": "a", "preferred": {"b": -Infinity}}', 400, "invalid request body: -Infinity is not a JSON value"),
    (V, '{"text": "a", "length_alpha": 1e999}', 400, "length_alpha must be less than or equal to 10;"),
    (T, {"q": "a", "source": 1, "target": "de"}, 400, "source must be a string; see the schema"),
    (T, {"q": "a", "source": "auto", "target": "\ud800"}, 400, "no model translates 'auto' to '\ufffd'"),
    (T, {"q": "\n" * 20} | PAIR, 413, "the request has more than 20 lines; split it"),
    (V, {"text": "a", "\ud800": 2}, 400, "the name of a field must be a valid string"),
    (V, {"text": "a", "preferred": {" ": 1}}, 400, "preferred must not be blank"),
    (V, {"text": "a", "beam_size": True}, 400, "beam_size must be an integer"),
    (V, {"text": "a", "required": ["long " * 99]}, 400, "the required phrases"),
    (V, {"text": "a", "glossary": [["a", "b|"]]}, 400, "glossary.0: 'a' has an empty translation"),
    (V, {"text": "a", "forbidden": ["a"] * 101}, 400, "forbidden must have at most 100 items"),
    (S, {"pairs": [["a", "b"], ["a", "x" * 300]]}, 400, "pair 2 exceeds the model's maximum length"),
]


@pytest.mark.parametrize(("path", "body", "status", "message"), INVALID_REQUESTS, ids=lambda value: str(value)[:30])
def test_an_invalid_request_gets_one_line(
    client: TestClient, path: str, body: str | dict[str, Any] | bytes, status: int, message: str
) -> None:
    content = json.dumps(body) if isinstance(body, dict) else body
    response = client.post(path, content=content, headers={"content-type": "application/json"})
    assert response.status_code == status, response.text
    assert response.text.endswith("\n")
    assert response.text.count("\n") == 1
    assert response.json()["error"].startswith(message)
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("PUT", V, 405), ("POST", V + "/", 404)],
)
def test_an_unknown_path_or_method_gets_one_line(client: TestClient, method: str, path: str, status: int) -> None:
    response = client.request(method, path)
    problem = "the path is unknown" if status == 404 else "the path does not accept this method"
    assert (response.status_code, response.json()) == (status, {"error": f"{problem}; see /openapi.json"})


def test_a_body_may_be_named_uncompressed(client: TestClient) -> None:
    assert client.post(V, json={"text": "a"}, headers={"content-encoding": "Identity"}).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["\ud800 cat", "\x00", "a\x00b", "\u2028", "x" * 1_900, *nasty_lines(12, num_longest=0)]
)
def test_any_text_is_translated(client: TestClient, translator: Translator, text: str) -> None:
    content = json.dumps({"q": text} | PAIR)
    assert client.post("/translate", content=content).json() == {"translatedText": translator.translate([text])[0]}


def test_a_model_failure_gets_one_line_and_the_server_keeps_running(echo_service: MakeService) -> None:
    client = TestClient(build_app(echo_service()), raise_server_exceptions=False)
    response = client.post("/translate", json={"q": "bad"} | PAIR)
    assert (response.status_code, response.json()) == (
        500,
        {"error": "internal error: RuntimeError; see the server log"},
    )
    assert client.post("/translate", json={"q": "good"} | PAIR).json() == {"translatedText": "GOOD"}


GUIDE = (Path(__file__).resolve().parents[2] / "nmt" / "guide" / "serving.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"curl localhost:5000(/\S+)(?: -H 'content-type: (\S+)')?(?: \\\n )?(?: -d '(.*)')?\n", GUIDE)
assert len(EXAMPLES) >= 10
FORMS = re.findall(r"curl localhost:5000(/\S+)((?: -F \S+| -F '[^']+')+)\n", GUIDE)
assert len(FORMS) == 1
assert len(EXAMPLES) + len(FORMS) == GUIDE.count("curl localhost:5000")


@pytest.mark.parametrize(("path", "kind", "body"), EXAMPLES)
def test_the_requests_of_the_guide_succeed(client: TestClient, path: str, kind: str, body: str) -> None:
    headers = {"content-type": kind or "application/x-www-form-urlencoded"}  # curl's default
    response = client.post(path, content=body, headers=headers) if body else client.get(path)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(("path", "options"), FORMS)
def test_the_forms_of_the_guide_succeed(client: TestClient, path: str, options: str) -> None:
    fields = dict(option.split("=", 1) for option in shlex.split(options) if option != "-F")
    response = client.post(path, files={name: (None, value) for name, value in fields.items()})
    assert response.status_code == 200, response.text
    assert response.json() == client.post(path, json=fields).json()
