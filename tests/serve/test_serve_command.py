"""`nmt serve` as a process: it listens, bears slow clients, and ends in order."""

import json
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from nmt.cli.program import COMMANDS
from nmt.serve import server
from tests.calling import Nmt, one_line
from tests.serve.test_api import GUIDE

SLOW_START = 120  # seconds; other tests may use the processors


class Server:
    """A running `nmt serve`."""

    def __init__(self, model: Path, errors: Path, *options: object) -> None:
        command = [sys.executable, "-m", "nmt", "serve", model, "--port", 0, "--device", "cpu", *options]
        self.errors = errors
        with errors.open("w") as stderr:
            self.process = subprocess.Popen([*map(str, command)], stderr=stderr)
        self.port = self._port()

    def _port(self) -> int:
        deadline = time.monotonic() + SLOW_START
        while not (found := re.search(r"serving .* on http://127\.0\.0\.1:(\d+)\n", self.errors.read_text())):
            assert self.process.poll() is None, self.errors.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return int(found[1])

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        content = answer.read().decode()
        connection.close()
        return answer.status, content if path == "/metrics" else json.loads(content)

    def wait_for_queue(self, lines: int) -> None:
        while f'nmt_queue_lines{{model="en-de"}} {lines}\n' not in self.ask("GET", "/metrics")[1]:
            time.sleep(0.05)


@pytest.fixture
def start(model: Path, tmp_path: Path) -> Iterator[Any]:
    started: list[Server] = []

    def run(*options: object) -> Server:
        started.append(Server(model, tmp_path / "errors", *options))
        return started[-1]

    yield run
    for one in started:
        one.process.kill()
        one.process.wait()


ONE = {"q": "The cat sees a dog.", "source": "en", "target": "de"}


@pytest.mark.slow
def test_a_signal_lets_the_server_answer_what_it_has_and_refuse_what_comes(start: Any) -> None:
    server = start("--engine", "torch", "--max-delay", 5)
    answers: list[tuple[int, Any]] = []
    asking = threading.Thread(target=lambda: answers.append(server.ask("POST", "/translate", ONE)))
    asking.start()
    server.wait_for_queue(1)
    server.process.send_signal(signal.SIGTERM)
    while (refused := server.ask("GET", "/health"))[0] == 200:  # the signal is on its way
        time.sleep(0.01)
    assert refused == (503, {"error": "the server is shutting down"})
    assert server.ask("POST", "/translate", ONE) == refused
    asking.join(60)
    ((status, answer),) = answers
    assert status == 200
    assert answer["translatedText"]
    assert server.process.wait(60) == 0
    assert server.errors.read_text().count("\n") == 1


@pytest.mark.slow
def test_a_client_that_goes_leaves_the_queue_and_a_second_signal_ends_the_server_at_once(start: Any) -> None:
    server = start("--engine", "torch", "--max-delay", 60)
    leaving = HTTPConnection("127.0.0.1", server.port)
    leaving.request("POST", "/translate", json.dumps(ONE))
    server.wait_for_queue(1)
    leaving.close()
    server.wait_for_queue(0)
    threading.Thread(target=lambda: _ask_in_vain(server), daemon=True).start()
    server.wait_for_queue(1)
    server.process.send_signal(signal.SIGINT)
    while server.ask("GET", "/health")[0] == 200:
        time.sleep(0.01)
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(60) == 130


def _ask_in_vain(server: Server) -> None:
    with suppress(OSError, ValueError):
        server.ask("POST", "/translate", ONE)


@pytest.mark.slow
def test_slow_and_damaged_requests_do_not_hold_the_server(start: Any) -> None:
    server_process = start("--engine", "torch", "--max-seconds", 3, "--max-bytes", 1_000_000)
    address = ("127.0.0.1", server_process.port)
    began = time.monotonic()
    head = b"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Length: "
    slow = {
        "nothing": (b"", b""),
        "half a head": (b"POST /trans", b""),
        "half a body": (head + b"100\r\n\r\n{", b"HTTP/1.1 408"),
        "a huge body": (head + b"%d\r\n\r\n" % 10**10, b"HTTP/1.1 413"),
        "no HTTP": (b"\x16\x03\x01\x00\xff\r\n\r\n", b"HTTP/1.1 400"),
    }
    connections = {name: socket.create_connection(address, timeout=60) for name in slow}
    for name, (sent, _) in slow.items():
        connections[name].sendall(sent)
    assert server_process.ask("POST", "/translate", ONE)[0] == 200
    assert server_process.ask("POST", "/translate", ONE | {"q": "x" * 10_000_000})[0] == 413
    for name, (_, expected) in slow.items():
        answer = b""
        while part := connections[name].recv(10_000):  # b"" as soon as the server has closed the connection
            answer += part
        assert answer[:12] == expected, name
        connections[name].close()
    assert time.monotonic() - began >= min(3, server.SECONDS_FOR_HEADERS)
    assert server_process.ask("GET", "/health")[0] == 200


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["--max-lines", 11, "--queue-lines", 10], 2, "--max-lines is 11; it must be at most --queue-lines (10)"),
        (["en-de=MODEL"], 2, "both named 'en-de'; names must differ; give NAME=PATH"),
        (["--api-keys", "none"], 1, "cannot read none: "),
        (["--host", "a" * 99], 1, "port 5000: "),
        (["--host", "256.0.0.1"], 1, "cannot listen on 256.0.0.1, port 5000: "),
        (["--set", "beam_sise=2"], 2, "beam_sise"),
        (["x=none"], 1, "none does not exist; it must be a model directory"),
    ],
    ids=str,
)
def test_wrong_options_are_said_in_one_line(
    model: Path, nmt: Nmt, options: list[object], status: int, message: str
) -> None:
    given = [str(option).replace("MODEL", str(model)) for option in options]
    found, out, err = nmt("serve", model, *given)
    assert (found, out) == (status, "")
    assert message in one_line(err)


def test_a_port_in_use_is_said_in_one_line(model: Path, nmt: Nmt) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        status, _, err = nmt("serve", model, "--port", taken.getsockname()[1])
    assert status == 1
    assert one_line(err).startswith("cannot listen on 127.0.0.1, port ")


@pytest.mark.parametrize(
    ("host", "keys", "warns"), [("0.0.0.0", False, True), ("0.0.0.0", True, False), ("localhost", False, False)]
)
def test_an_address_that_others_reach_needs_keys(
    model: Path, nmt: Nmt, tmp_path: Path, host: str, keys: bool, warns: bool
) -> None:
    (tmp_path / "keys").write_text("key\n")
    options = ["--api-keys", tmp_path / "keys"] if keys else []
    unknown = ["--set", "beam_sise=2"]  # which ends the command behind the warning
    _, _, err = nmt("serve", model, "--host", host, "--port", 0, *options, *unknown)
    assert err.startswith("warning: 0.0.0.0 can be reached by other machines, and no API key is needed") == warns


@pytest.mark.parametrize("package", ["fastapi", "uvicorn"])
def test_a_missing_package_is_said_in_one_line(package: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None; sys.argv = ['nmt', 'serve', 'm']; import nmt.cli; nmt.cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert one_line(done.stderr).startswith(f"package {package} cannot be imported")
    assert one_line(done.stderr).endswith("pip install 'nmt[serve]'")


def test_the_commands_of_the_guide_parse() -> None:
    lines = re.findall(r"^nmt serve (.*)$", GUIDE, re.MULTILINE)
    assert len(lines) == 3
    for line in lines:
        COMMANDS["serve"].load("serve").make_context("serve", shlex.split(line, comments=True))
