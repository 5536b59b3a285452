"""Requests that web pages of other sites may cause, and too many connections."""

from http.client import HTTPConnection
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nmt.serve import server
from nmt.serve.access import check_host
from nmt.serve.app import build_app
from tests.calling import Nmt
from tests.serve.conftest import TIMEOUT, MakeService, run_in_thread

BODY = {"text": "a"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:5000", 200),
        ("LOCALHOST.", 200),
        ("nmt.localhost", 200),
        ("127.0.0.1:5000", 200),
        ("[::1]:5000", 200),
        ("192.168.0.7", 200),
        ("example.org", 200),
        ("", 200),
        ("other.org", 421),
        ("localhost.other.org", 421),
        ("127.0.0.1.other.org", 421),
        ("[::1", 421),
    ],
)
def test_only_allowed_hosts_are_served(echo_service: MakeService, host: str, status: int) -> None:
    client = TestClient(build_app(echo_service(), hosts=["example.org"]))
    answers = [client.get("/v1/models", headers={"host": host}), client.post("/detect", headers={"host": host})]
    assert [answers[0].status_code, answers[1].status_code] == [status, 400 if status == 200 else status]
    if status == 421:
        problem = f"host {host!r} is not allowed; start the server with --allow-host NAME, or use its address"
        assert answers[0].json() == answers[1].json() == {"error": problem}
    assert TestClient(build_app(echo_service())).get("/v1/models", headers={"host": host}).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "http://localhost:5000"}, 200),
        ({"origin": "https://LOCALHOST:5000"}, 403),
        ({"origin": "http://localhost:8000"}, 403),
        ({"origin": "https://other.org"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://[::1"}, 403),
        ({"origin": "https://example.org"}, 200),
        ({"origin": "https://example.org", "sec-fetch-site": "cross-site"}, 200),
        ({"origin": "https://proxy.org", "sec-fetch-site": "same-origin"}, 200),
        ({"origin": "https://proxy.org", "sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "none"}, 200),
    ],
)
def test_pages_of_other_origins_cannot_send_posts(
    echo_service: MakeService, headers: dict[str, str], status: int
) -> None:
    headers = {"host": "localhost:5000", "content-type": "text/plain"} | headers
    client = TestClient(build_app(echo_service(), ["https://example.org"]))
    response = client.post("/v1/translate", json=BODY, headers=headers)
    assert response.status_code == status
    if status == 403:
        assert response.json()["error"].endswith(" may not use the server; start it with --cors ORIGIN to allow them")
    assert client.get("/languages", headers=headers).status_code == 200
    everybody = TestClient(build_app(echo_service(), ["*"]))
    assert everybody.post("/v1/translate", json=BODY, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--host", "Localhost"], ["localhost"]),
        (["--allow-host", "A.org", "--allow-host", "b"], ["127.0.0.1", "a.org", "b"]),
        (["--host", "0.0.0.0"], ["0.0.0.0", "*"]),
        (["--host", "0.0.0.0", "--allow-host", "a.org"], ["0.0.0.0", "a.org"]),
    ],
)
def test_hosts_are_limited_on_loopback_addresses_or_by_option(
    model: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch, options: list[str], expected: list[str]
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(import_module("nmt.cli.serve"), "run_server", lambda *arguments: given.append(arguments[3]))
    status, _, err = nmt("serve", model, "--port", 0, "--device", "cpu", "--engine", "torch", *options)
    assert (status, given) == (0, [expected]), err


@pytest.mark.parametrize("name", ["http://a.org", "a.org:80", "a.org/", "*.a.org", ""])
def test_an_invalid_host_name_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match="is not a host name"):
        check_host(name)


def test_a_connection_above_the_limit_gets_status_503(
    echo_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "max_connections", lambda: 2)
    with run_in_thread(echo_service()) as address:
        connections = [HTTPConnection(*address, timeout=TIMEOUT) for _ in range(3)]
        statuses = []
        for connection in connections:
            connection.request("GET", "/health")
            response = connection.getresponse()
            statuses.append(response.status)
            content = response.read()
        assert statuses == [200, 200, 503]
        assert content == b'{"error": "the server has too many connections; try again later"}\n'
        assert (response.getheader("retry-after"), response.getheader("connection")) == ("1", "close")
        connections[0].request("GET", "/health")
        assert connections[0].getresponse().status == 200
        for connection in connections:
            connection.close()
