"""The tables of bad input in the guide: each row gets the answer that it states, and no field or option is missing."""

import asyncio
import json
import re
import shlex
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import BaseModel, ValidationError

from nmt.cli.program import COMMANDS
from nmt.serve.app import build_app
from nmt.serve.documents import split_texts
from nmt.serve.messages import DetectRequest, LibreTranslateRequest, ScoreRequest, SentencesRequest, TranslateRequest
from nmt.serve.service import ApiKeys
from tests.calling import Nmt, one_line
from tests.serve.conftest import MakeService
from tests.serve.test_api import GUIDE

KINDS: dict[str, type[BaseModel]] = {
    "/translate": LibreTranslateRequest,
    "/detect": DetectRequest,
    "/v1/translate": TranslateRequest,
    "/v1/score": ScoreRequest,
    "/v1/sentences": SentencesRequest,
}
VALID: dict[str, dict[str, Any]] = {
    "/translate": {"q": "Hello", "source": "en", "target": "de"},
    "/detect": {"q": "Hello"},
    "/v1/translate": {"text": "Hello"},
    "/v1/score": {"pairs": [["Hello", "Hallo"]]},
    "/v1/sentences": {"text": "Hello"},
}
JSON = {"content-type": "application/json"}
# Inputs that the guide describes in words. The limits are those of the fixture `client`.
DESCRIBED: dict[str, Callable[[dict[str, Any]], dict[str, Any] | bytes]] = {
    "an empty body": lambda valid: b"",
    "a body that is not UTF-8": lambda valid: b'{"q": "\xff"}',
    "JSON with 9,000 levels": lambda valid: b"[" * 9_000,
    "JSON with an integer of 5,000 digits": lambda valid: (
        json.dumps(valid)[:-1].encode() + b', "n_best": %s}' % (b"9" * 5_000)
    ),
    "JSON with 1,001 fields": lambda valid: json.dumps(valid | {str(number): 0 for number in range(1_001)}).encode(),
    "a body of more than `--max-bytes`": lambda valid: b" " * 20_001,
    "more than `--max-characters`": lambda valid: _with_text(valid, "a" * 2_001),
    "more than `--max-lines`": lambda valid: _with_text(valid, *["a"] * 21),
    "no key": lambda valid: valid,
    "": lambda valid: valid,
}


def _with_text(valid: dict[str, Any], *texts: str) -> dict[str, Any]:
    """Replace the text of a valid request."""
    if "pairs" in valid:
        return valid | {"pairs": [["", text] for text in texts]}
    return valid | {next(iter(valid)): list(texts)}


def read_table(heading: str) -> list[list[str]]:
    """Return the cells of the table under a heading of the guide, without its header row."""
    section = re.split(r"^#", GUIDE.partition(f"\n{heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


REQUESTS = [
    (request, *cells) for requests, *cells in read_table("### Invalid requests") for request in requests.split(", ")
]


@pytest.mark.parametrize(
    ("path", "fields"), [("/v1/score", {"pairs": [[]] * 9}), ("/v1/translate", {"text": "a", "keep": ["a"] * 9})]
)
def test_a_list_is_checked_up_to_its_first_invalid_item(path: str, fields: dict[str, Any]) -> None:
    """Collecting the errors of all items of a 1 MB body would need 500 MB of memory."""
    with pytest.raises(ValidationError) as raised:
        KINDS[path].model_validate(fields)
    assert raised.value.error_count() <= 2


def test_a_large_request_is_refused_before_its_lines_are_prepared(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preparing the lines of a body with 260,000 empty texts would block the server for a second."""
    prepared: list[object] = []
    monkeypatch.setattr("nmt.serve.app._make_lines", lambda *arguments: prepared.append(arguments))
    assert client.post("/v1/translate", json={"text": [""] * 21}).status_code == 413
    assert prepared == []


@pytest.mark.parametrize(
    ("path", "fields"),
    [("/v1/translate", {"text": "a"}), ("/translate", {"q": "a", "source": "en", "target": "de"})],
)
def test_documents_are_split_outside_the_event_loop(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, path: str, fields: dict[str, str]
) -> None:
    has_loop: list[bool] = []

    def split(*arguments: Any) -> Any:
        has_loop.append(asyncio._get_running_loop() is not None)
        return split_texts(*arguments)

    for module in ("app", "libretranslate"):
        monkeypatch.setattr(f"nmt.serve.{module}.split_texts", split)
    assert client.post(path, json=fields | {"format": "html"}).status_code == 200
    assert has_loop == [False]


def make_request(valid: dict[str, Any], given: str) -> tuple[dict[str, str], str, dict[str, Any] | bytes]:
    """Apply the change `given` of a row to a valid body; return the headers, the query string and the body."""
    if given in DESCRIBED:
        return JSON, "", DESCRIBED[given](valid)
    change = re.fullmatch(r"(?:(\w+) )?`(.*)`", given)
    assert change, given
    kind, code = change.groups()
    match kind:
        case None:
            return JSON, "", valid | json.loads(code)
        case "no":
            return JSON, "", {name: value for name, value in valid.items() if name != code}
        case "body":
            return JSON, "", code.encode()
        case "form":
            return {"content-type": "application/x-www-form-urlencoded"}, "", code.encode()
        case "header":
            name, _, value = code.partition(": ")
            return JSON | {name: value}, "", valid
        case "query":
            return JSON, f"?{code}", valid
        case _:
            raise AssertionError(f"unknown kind of change: {kind}")


def send(client: TestClient, request: str, given: str) -> tuple[int, str]:
    """Send the request of a row; return the status and the error of the response."""
    method, _, path = request.strip("`").rpartition(" ")
    headers, query, body = make_request(VALID.get(path, {}), given)
    content = body if isinstance(body, bytes) else json.dumps(body)
    response = client.request(method or "POST", path + query, content=content, headers=headers)
    assert response.text.count("\n") == 1
    return response.status_code, response.json()["error"]


@pytest.mark.slow
@pytest.mark.parametrize(("request_", "given", "status", "answer"), REQUESTS, ids=lambda cell: cell[:30])
def test_a_bad_request_gets_the_answer_of_the_guide(
    client: TestClient,
    echo_service: MakeService,
    tmp_path: Path,
    request_: str,
    given: str,
    status: str,
    answer: str,
) -> None:
    if given.endswith(", with `--api-keys`"):
        (tmp_path / "keys").write_text("key\n")
        client, given = TestClient(build_app(echo_service(None, ApiKeys(tmp_path / "keys")))), given.rpartition(", ")[0]
    actual, error = send(client, request_, given)
    assert actual == int(status), error
    assert error.startswith(answer.strip("`"))
    if actual == 400:
        assert not re.search(r"(?<!\S)\(?--\w", error), "clients set fields, not options"


def test_the_guide_has_a_bad_request_for_every_endpoint_and_field(client: TestClient) -> None:
    requests = {request.strip("`").rpartition(" ")[2] for request, *_ in REQUESTS}
    assert set(client.get("/openapi.json").json()["paths"]) <= requests
    for path, kind in KINDS.items():
        inputs = " ".join(given for request, given, *_ in REQUESTS if request.strip("`") == path)
        missing = [name for name in kind.model_fields if f'"{name}":' not in inputs]
        assert not missing, path


OPTIONS = read_table("### Invalid options")


@pytest.mark.slow
@pytest.mark.parametrize(("options", "status", "answer"), OPTIONS, ids=lambda cell: cell[:30])
def test_bad_options_get_the_answer_of_the_guide(
    model: Path, nmt: Nmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, status: str, answer: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").touch()
    Path("notes.txt").write_text("Notes\n")
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        values = {"MODEL": str(model), "IN_USE": str(occupied.getsockname()[1])}
        given = re.sub("MODEL|IN_USE", lambda found: values[found[0]], options.strip("`"))
        defaults = {"--device": "cpu", "--engine": "torch", "--port": "0"}
        arguments = [word for name, value in defaults.items() if name not in given for word in (name, value)]
        actual, out, err = nmt("serve", model, *arguments, *shlex.split(given))
    assert (actual, out) == (int(status), "")
    messages = [line for line in err.splitlines(keepends=True) if not line.startswith("converting ")]
    assert one_line("".join(messages)).startswith(answer.replace("MODEL", str(model)))


def test_the_guide_has_a_bad_value_for_every_option() -> None:
    given = {option for options, *_ in OPTIONS for option in re.findall(r"--[a-z-]+", options)}
    command = COMMANDS["serve"].load("serve")
    options = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
    assert options - {"--help"} == given
