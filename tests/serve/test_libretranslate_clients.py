"""Clients of LibreTranslate: their requests, byte for byte, over a real connection."""

import json
import socket
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nmt.serve.access import check_origin
from nmt.serve.app import build_app
from nmt.serve.service import ApiKeys, Limits
from tests.serve.conftest import TIMEOUT, MakeService, run_in_thread

Answer = tuple[int, dict[str, str], Any]


@pytest.fixture
def address(echo_service: MakeService, tmp_path: Path) -> Iterator[tuple[str, int]]:
    """A running server that requires the key `a key` and allows web pages of https://example.org."""
    (tmp_path / "keys").write_text("a key\n")
    service = echo_service(Limits(), ApiKeys(tmp_path / "keys"))
    with run_in_thread(service, ["https://example.org"]) as address:
        yield address


def exchange(address: tuple[str, int], head: str, body: bytes = b"") -> Answer:
    """Send a request with CRLF line endings in its head; return status, headers and body of the answer."""
    with socket.create_connection(address, timeout=TIMEOUT) as connection:
        connection.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
        answer = b""
        while not (found := _complete(answer)):
            received = connection.recv(65_536)
            assert received, answer
            answer += received
    return found


def _complete(answer: bytes) -> Answer | None:
    """Return a complete answer, without the interim `100 Continue`."""
    head, separator, body = answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    if not separator or len(body) < int(headers["content-length"]):
        return None
    return int(status.split()[1]), headers, json.loads(body)


def multipart(fields: Mapping[str, str], boundary: str) -> bytes:
    """Encode the fields of a form as `multipart/form-data`."""
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    return ("".join(parts) + f"--{boundary}--\r\n").encode()


URLLIB = "Accept-Encoding: identity\nContent-Type: application/x-www-form-urlencoded"
END = "Host: localhost:5000\nUser-Agent: Python-urllib/3.11\nConnection: close"


def test_requests_of_libretranslatepy_are_answered(address: tuple[str, int]) -> None:
    body = b"q=H%C3%A9llo+%26%0D%0Agood+bye%21&source=en&target=de&api_key=a+key"
    head = f"POST /translate HTTP/1.1\n{URLLIB}\nContent-Length: {len(body)}\n{END}"
    assert exchange(address, head, body)[::2] == (200, {"translatedText": "HÉLLO &\nGOOD BYE!"})
    body = b"q=Hello&api_key=a+key"
    head = f"POST /detect HTTP/1.1\n{URLLIB}\nContent-Length: {len(body)}\n{END}"
    assert exchange(address, head, body)[::2] == (200, [{"language": "en", "confidence": 100.0}])
    for body in (b"", b"api_key=a+key"):
        head = f"GET /languages HTTP/1.1\n{URLLIB}\nContent-Length: {len(body)}\n{END}"
        status, _, languages = exchange(address, head, body)
        assert (status, [language["code"] for language in languages]) == (200, ["en", "de"])
    body = b"q=Hello&source=en&target=de"
    head = f"POST /translate HTTP/1.1\n{URLLIB}\nContent-Length: {len(body)}\n{END}"
    assert exchange(address, head, body)[0] == 401


def test_requests_of_the_page_of_libretranslate_are_answered(address: tuple[str, int]) -> None:
    """The page sends FormData, in which browsers use CRLF line endings, and an empty key if there is none."""
    browser = "Host: localhost:5000\nConnection: keep-alive\nUser-Agent: Mozilla/5.0\nAccept: */*"
    browser += "\nOrigin: http://localhost:5000\nSec-Fetch-Mode: cors\nAccept-Encoding: gzip, deflate, br, zstd"
    _, _, settings = exchange(address, f"GET /frontend/settings HTTP/1.1\n{browser}")
    _, _, languages = exchange(address, f"GET /languages HTTP/1.1\n{browser}")
    names = {language["code"]: language["name"] for language in languages}
    source, target = settings["language"]["source"], settings["language"]["target"]
    assert names[source["code"]] == source["name"] == "English"
    assert [names[code] for code in languages[0]["targets"]] == [target["name"]] == ["German"]
    assert (settings["charLimit"], settings["keyRequired"], settings["filesTranslation"]) == (100_000, True, False)
    boundary = "----WebKitFormBoundaryePkpFF7tjBAqx29L"
    fields = {"q": "<p>a</p>\r\n<p>c</p>", "source": "en", "target": "de", "format": "html", "alternatives": "1"}
    for key, expected in (("a key", 200), ("", 401)):
        body = multipart(fields | {"api_key": key}, boundary)
        head = f"POST /translate HTTP/1.1\n{browser}\nContent-Type: multipart/form-data; boundary={boundary}"
        status, _, answer = exchange(address, f"{head}\nContent-Length: {len(body)}", body)
        assert status == expected
        if status == 200:
            assert answer == {"translatedText": "<p>A</p>\n<p>C</p>", "alternatives": ["<p>a</p>\n<p>c</p>"]}


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        (  # the example of LibreTranslate's documentation in Node
            "connection: keep-alive\nContent-Type: application/json\naccept: */*\naccept-language: *\n"
            "sec-fetch-mode: cors\nuser-agent: node\naccept-encoding: gzip, deflate",
            '"format":"text","alternatives":1,',
        ),
        (  # axios
            "Accept: application/json, text/plain, */*\nContent-Type: application/json\nUser-Agent: axios/1.7.2\n"
            "Accept-Encoding: gzip, compress, deflate, br\nConnection: keep-alive",
            '"format":null,"alternatives":1,',
        ),
        ("Content-Type: application/json; charset=utf-8\nConnection: Keep-Alive", '"alternatives":1,'),  # .NET
    ],
)
def test_requests_of_clients_in_javascript_and_dotnet_are_answered(
    address: tuple[str, int], headers: str, fields: str
) -> None:
    body = f'{{"q":["Hello","é\\n!"],"source":"auto","target":"de",{fields}"api_key":"a key"}}'.encode()
    head = f"POST /translate HTTP/1.1\nhost: localhost:5000\n{headers}\ncontent-length: {len(body)}"
    assert exchange(address, head, body)[::2] == (
        200,
        {
            "translatedText": ["HELLO", "É\n!"],
            "alternatives": [["hello"], ["é\n!"]],
            "detectedLanguage": [{"language": "en", "confidence": 100.0}] * 2,
        },
    )


def test_query_strings_and_empty_forms_of_a_client_in_php_are_answered(address: tuple[str, int]) -> None:
    boundary = "------------------------sVZyUuKNxmxmGDXIiYzEBT"
    head = f"Host: localhost:5000\nAccept: */*\nContent-Type: multipart/form-data; boundary={boundary}"
    empty = multipart({}, boundary)
    for start in ("GET /frontend/settings", "GET /languages", "POST /detect?q=Hall%C3%B6chen+du&api_key=a+key"):
        assert exchange(address, f"{start} HTTP/1.1\n{head}\nContent-Length: {len(empty)}", empty)[0] == 200
    fields = {"q": "Hi &amp; bye", "format": "html", "source": "en", "target": "de", "api_key": "a key"}
    body = multipart(fields, boundary)
    head = f"POST /translate HTTP/1.1\n{head}\nContent-Length: {len(body)}\nExpect: 100-continue"
    assert exchange(address, head, body)[::2] == (200, {"translatedText": "HI &amp; BYE"})


@pytest.mark.parametrize("headers", ["Content-Type: application/x-www-form-urlencoded\n", ""])
def test_a_query_string_without_a_body_is_answered(address: tuple[str, int], headers: str) -> None:
    query = "q=Hello%20you%2B&source=en&target=de&format=text&api_key=a%20key"
    head = f"POST /translate?{query} HTTP/1.1\nHost: localhost:5000\n{headers}Content-Length: 0"
    assert exchange(address, head)[::2] == (200, {"translatedText": "HELLO YOU+"})


# --- Other origins ----------------------------------------------------------------------------------------------------


def test_only_allowed_origins_get_cors_headers(address: tuple[str, int]) -> None:
    asked = "Access-Control-Request-Method: POST\nAccess-Control-Request-Headers: authorization,content-type"
    for origin, expected in (("https://example.org", "https://example.org"), ("https://example.com", None)):
        with socket.create_connection(address, timeout=TIMEOUT) as connection:
            preflight = f"OPTIONS /translate HTTP/1.1\nHost: a\nOrigin: {origin}\n{asked}\n\n"
            connection.sendall(preflight.replace("\n", "\r\n").encode())
            answer = connection.recv(65_536).decode().lower()
        assert (f"access-control-allow-origin: {origin}\r\n" in answer) == bool(expected)
        assert ("200 ok" in answer) == bool(expected)
        _, headers, _ = exchange(address, f"GET /languages HTTP/1.1\nHost: a\nOrigin: {origin}")
        assert headers.get("access-control-allow-origin") == expected


def test_cors_headers_are_absent_by_default_and_present_on_errors(echo_service: MakeService) -> None:
    service = echo_service()
    origin = {"origin": "https://example.org"}
    assert "access-control-allow-origin" not in TestClient(build_app(service)).get("/languages", headers=origin).headers
    everybody = TestClient(build_app(service, ["*"]), raise_server_exceptions=False)
    fields = {"q": "a", "source": "en", "target": "de"}
    for text, status in (("a", 200), ("bad", 500)):
        answer = everybody.post("/translate", json=fields | {"q": text}, headers=origin)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, "*")


@pytest.mark.parametrize("origin", ["*", "https://example.org", "http://[::1]:8080", "moz-extension://0a-b"])
def test_a_valid_origin_is_accepted(origin: str) -> None:
    assert check_origin(origin) == origin


@pytest.mark.parametrize(
    "origin", ["", "example.org", "https://example.org/", "https://Example.org", "https://a:443", "http://a:80", "null"]
)
def test_an_origin_that_no_browser_sends_is_an_error(origin: str) -> None:
    with pytest.raises(ValueError, match="is not an origin; it must be"):
        check_origin(origin)


# --- Invalid forms ----------------------------------------------------------------------------------------------------


def part(name: str, value: str = "a", more: str = "") -> str:
    return f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n{value}\r\n'


PAIR = part("source", "en") + part("target", "de")


# In addition to those of the guide; see `test_bad_input`.
@pytest.mark.parametrize(
    ("content_type", "body", "problem"),
    [
        ("multipart/form-data; boundary=b", part("q") + PAIR, "the form has no closing boundary, so it is incomplete"),
        ("multipart/form-data; boundary=b", (part("q") + PAIR)[:-3] + "--b--", "the form has no closing boundary"),
        ("multipart/form-data; boundary=b", "--b\r\n\r\na\r\n--b--", "a part of the form has no name"),
        ("multipart/form-data; boundary=b", part("q", more='; filename="a"') + "--b--", "field 'q' is a file"),
        ("multipart/form-data; boundary=b", part("q", more="; " * 999) + "--b--", "a header of the form has more than"),
        ("multipart/form-data; boundary=b", part("q") * 1_001 + "--b--", "the form has more than 1,000 fields"),
        (
            "multipart/form-data; boundary=b",
            part("q", "Y2F0", "\r\nContent-Transfer-Encoding: base64") + "--b--",
            "field 'q' has encoding utf-8, base64; it must be UTF-8",
        ),
        (
            "multipart/form-data; boundary=b",
            part("q", "a", "\r\nContent-Type: text/plain; charset=latin1") + "--b--",
            "field 'q' has encoding latin1, 8bit; it must be UTF-8",
        ),
        ("application/x-www-form-urlencoded", "q=a&" * 1_001, "Max number of fields exceeded"),
    ],
)
def test_the_error_of_an_invalid_form_names_the_problem(
    echo_service: MakeService, content_type: str, body: str, problem: str
) -> None:
    client = TestClient(build_app(echo_service()))
    answer = client.post("/translate", content=body.encode(), headers={"content-type": content_type})
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(f"invalid request body: {problem}")


def test_a_query_string_adds_fields_to_a_body(echo_service: MakeService) -> None:
    client = TestClient(build_app(echo_service()))
    body = {"q": "a", "source": "en"}
    assert client.post("/translate?target=de", json=body).json() == {"translatedText": "A"}


def test_a_boundary_within_a_line_is_text(echo_service: MakeService) -> None:
    client = TestClient(build_app(echo_service()))
    headers = {"content-type": 'Multipart/Form-Data; Boundary="b c"'}
    for text, status in (("\n\n--b cd\r\n --b c\r\n\n-", 200), ("a\r\n--b cd", 400)):
        form = (part("q", text) + PAIR + "--b--").replace("--b\r", "--b c\r").replace("--b--", "--b c--")
        answer = client.post("/translate", content=f"preamble\r\n{form}\r\nepilogue".encode(), headers=headers)
        assert answer.status_code == status
        if status == 200:
            assert answer.json() == {"translatedText": text.replace("\r\n", "\n").upper()}


def test_head_is_get_without_body(address: tuple[str, int]) -> None:
    connection = HTTPConnection(*address, timeout=TIMEOUT)
    for path in ("/", "/page/page.js", "/health", "/languages", "/v1/models", "/openapi.json", "/none", "/translate"):
        answers = []
        for method in ("HEAD", "GET"):
            connection.request(method, path)
            response = connection.getresponse()
            length = len(response.read())
            answers.append((response.status, response.headers["content-type"], response.headers["content-length"]))
        head, get = answers
        assert head == get
        assert get[2] == str(length)
    connection.request("HEAD", "/metrics")
    assert connection.getresponse().status == 200
    connection.close()
