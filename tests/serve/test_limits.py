"""Limits of requests, disconnected clients, API keys and logs."""

import asyncio
import errno
import io
import json
import sys
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from starlette.types import Message

from nmt.decode.translator import Translator
from nmt.errors import UserError
from nmt.recipe import DecodeRecipe
from nmt.serve.app import build_app
from nmt.serve.batching import BatchingOptions
from nmt.serve.models import Line, RequestOptions, ServedModel
from nmt.serve.service import ApiKeys, Limits
from tests.serve.conftest import PAIR, EchoTranslator, MakeService, S, T, V, serve_model


def test_a_request_that_exceeds_the_queue_is_refused(echo_service: MakeService) -> None:
    client = TestClient(build_app(echo_service(batching=BatchingOptions(queue_size=2, max_delay=0.0))))
    response = client.post("/translate", json={"q": "1\n2\n3"} | PAIR)
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert response.json() == {"error": "the queue is full; try again later"}


def test_clients_are_identified_by_key_or_address(
    echo_service: MakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys").write_text("one\ntwo\n")
    clients: list[Hashable] = []

    def submit(_model: ServedModel, _options: RequestOptions, _lines: Sequence[Line], client: Hashable) -> list[Any]:
        clients.append(client)
        return []

    monkeypatch.setattr("nmt.serve.models.ServedModel.submit", submit)
    body = {"q": "a"} | PAIR
    app = build_app(echo_service(None, ApiKeys(tmp_path / "keys")))
    with TestClient(app, raise_server_exceptions=False) as client:
        client.post("/translate", json=body, headers={"authorization": "Bearer one"})
        client.post("/translate", json=body | {"api_key": "two"})
    with TestClient(build_app(echo_service()), raise_server_exceptions=False) as client:
        client.post("/translate", json=body | {"api_key": "two"})
    assert clients == ["one", "two", "testclient"]


def test_a_timeout_frees_the_queue(echo: EchoTranslator, echo_service: MakeService) -> None:
    echo.may_run.clear()
    service = echo_service(Limits(seconds=0.1), batching=BatchingOptions(batch_size=1, max_delay=0.0))
    response = TestClient(build_app(service)).post("/translate", json={"q": "1\n2\n3"} | PAIR)
    assert response.status_code == 504
    assert response.json()["error"].startswith("timeout after 0.1 seconds")
    assert service.models["en-de"].batcher.num_waiting == 0


async def _call(app: Any, messages: list[Message], *, waits: bool = False) -> list[Message]:
    """Call the ASGI application. waits: block after the last message instead of failing"""
    sent: list[Message] = []

    async def receive() -> Message:
        if not messages and waits:
            await asyncio.sleep(60)
        return messages.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/translate", "headers": [], "query_string": b""}
    await app(scope, receive, send)
    return sent


def test_a_disconnect_within_the_body_is_counted(echo_service: MakeService) -> None:
    app = build_app(echo_service())
    part = {"type": "http.request", "body": b'{"q": ', "more_body": True}
    sent = asyncio.run(_call(app, [part, {"type": "http.disconnect"}]))
    assert sent[0]["status"] == 499
    assert 'nmt_requests_total{path="/translate",status="499"} 1\n' in TestClient(app).get("/metrics").text


def test_a_disconnect_frees_the_queue(echo: EchoTranslator, echo_service: MakeService) -> None:
    echo.may_run.clear()
    service = echo_service(batching=BatchingOptions(batch_size=1, max_delay=0.0))
    body = json.dumps({"q": "1\n2\n3"} | PAIR).encode()
    sent = asyncio.run(_call(build_app(service), [{"type": "http.request", "body": body}, {"type": "http.disconnect"}]))
    assert sent[0]["status"] == 499
    assert service.models["en-de"].batcher.num_waiting == 0
    echo.may_run.set()


def test_a_slow_body_times_out(echo_service: MakeService) -> None:
    app = build_app(echo_service(Limits(seconds=0.1)))
    part = {"type": "http.request", "body": b'{"q": ', "more_body": True}
    sent = asyncio.run(_call(app, [part], waits=True))
    assert sent[0]["status"] == 408
    assert (b"connection", b"close") in sent[0]["headers"]


def test_reading_stops_at_the_body_limit(echo_service: MakeService) -> None:
    parts: list[Message] = [{"type": "http.request", "body": b" " * 600, "more_body": True} for _ in range(5)]
    sent = asyncio.run(_call(build_app(echo_service(Limits(body_bytes=1_000))), parts))
    assert sent[0]["status"] == 413
    assert len(parts) == 3


# In addition to those of the guide; see `test_bad_input`.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({}, {"api_key": "\ud800"}, 403),
        ({"authorization": "Bearer good"}, {}, 200),
        ({"authorization": "Bearer bétter".encode()}, {}, 200),
        ({"authorization": "Bearer bétter".encode("latin-1")}, {}, 200),
        ({"authorization": b"Bearer b\xe9tte"}, {}, 403),
        ({}, {"api_key": "bétter"}, 200),
        ({}, {"api_key": "# of partners"}, 403),
        ({}, {"api_key": "key#1"}, 200),
    ],
)
def test_a_request_needs_a_key_of_the_file(
    tmp_path: Path, echo_service: MakeService, headers: dict[str, Any], body: dict[str, str], status: int
) -> None:
    keys = "good\n\n# of partners\n bétter \nkey#1\n"
    (tmp_path / "keys").write_text(keys, encoding="utf-8-sig")  # as Windows editors write it
    client = TestClient(build_app(echo_service(Limits(), ApiKeys(tmp_path / "keys"))))
    content = json.dumps({"q": "a"} | PAIR | body)
    assert client.post("/translate", content=content, headers=headers).status_code == status
    assert client.get("/languages").status_code == 200


@pytest.mark.parametrize(
    ("path", "content", "headers", "status"),
    [
        (V, "{", {}, 401),
        (V, "{", {"authorization": "Bearer wrong"}, 403),
        (V, "{", {"authorization": "Bearer good"}, 400),
        (S, "", {}, 401),
        (V, "a" * 11, {"content-encoding": "gzip"}, 401),
        (V, "a" * 101, {}, 401),
        (T, '{"q": 5}', {}, 401),
        (T, '{"q": 5, "api_key": "wrong"}', {}, 403),
        (T, '{"q": 5, "api_key": ["good"]}', {}, 401),
        (T, '{"api_key": "good"}', {}, 400),
        ("/detect", "{}", {}, 401),
        (T, "{", {}, 400),  # the body may have a key
    ],
)
def test_keys_are_checked_before_the_rest_of_a_request(
    echo_service: MakeService, tmp_path: Path, path: str, content: str, headers: dict[str, str], status: int
) -> None:
    (tmp_path / "keys").write_text("good\n")
    client = TestClient(build_app(echo_service(Limits(body_bytes=100), ApiKeys(tmp_path / "keys"))))
    response = client.post(path, content=content, headers=headers)
    assert response.status_code == status, response.text


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "contains no API key"),
        (b"\n \n", "contains no API key"),
        (b" # no key yet\n", "contains no API key"),
        (b"\xff", "it is not UTF-8"),
        (None, "No such file or directory"),
    ],
)
def test_a_file_without_api_keys_is_an_error(tmp_path: Path, content: bytes | None, problem: str) -> None:
    if content is not None:
        (tmp_path / "keys").write_bytes(content)
    with pytest.raises(UserError, match=f"{problem}; it must contain one API key per line"):
        ApiKeys(tmp_path / "keys")


@pytest.mark.parametrize("logs_text", [False, True])
@pytest.mark.parametrize("verbosity", ["normal", "quiet"])
def test_texts_are_logged_only_on_request(
    echo_service: MakeService,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    logs_text: bool,
    verbosity: str,
) -> None:
    monkeypatch.setattr("nmt.logs._verbosity", verbosity)
    client = TestClient(build_app(echo_service(Limits(), logs_text=logs_text)))
    client.post("/translate", json={"q": "a secret"} | PAIR)
    client.post("/translate", json={"q": "a secret", "source": "a secret", "target": "a secret"})
    logged = '{"model": "en-de", "texts": ["a secret"], "translations": ["A SECRET"]}\n' if logs_text else ""
    assert capfd.readouterr() == ("", logged)


def test_a_failed_write_to_the_log_does_not_fail_the_request(
    echo_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FullDisk(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    client = TestClient(build_app(echo_service(Limits(), logs_text=True)), raise_server_exceptions=False)
    monkeypatch.setattr(sys, "stderr", FullDisk())
    assert client.post("/translate", json={"q": "a"} | PAIR).json() == {"translatedText": "A"}


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{}, {"alternatives": True}, {"beam_size": 1, "stream_tokens": True}])
def test_the_first_long_line_is_logged(
    translator: Translator, capfd: pytest.CaptureFixture[str], fields: dict[str, Any]
) -> None:
    with serve_model(translator, DecodeRecipe(beam_size=2, max_extra_tokens=1)) as client:
        for text in ("the cat sees a dog.", "the cat sees a dog. " * 20, "the cat sees a dog. " * 20):
            assert client.post(V, json={"text": text} | fields).status_code == 200
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("warning: a line for en-de was too long for the model and was translated in parts; if sent")


def test_a_draining_server_refuses_requests(echo_service: MakeService) -> None:
    service = echo_service()
    client = TestClient(build_app(service))
    service.is_draining = True
    for response in (client.post("/translate", json={"q": "a"} | PAIR), client.get("/health")):
        assert (response.status_code, response.json()) == (503, {"error": "the server is shutting down"})
    assert client.get("/metrics").status_code == 200
    assert service.num_active == 0
