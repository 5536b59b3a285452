"""`nmt serve`: startup, slow clients, shutdown and command-line errors."""

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from fastapi.testclient import TestClient

from nmt.cli.serve import _search_options
from nmt.processes.interruption import COPY_SECONDS
from nmt.recipe import DecodeRecipe
from nmt.serve import server
from nmt.serve.app import build_app
from nmt.serve.batching import BatchingOptions
from nmt.serve.service import Limits, Service
from tests.calling import Nmt, one_line
from tests.extras import import_ctranslate2
from tests.serve.conftest import TIMEOUT, MakeService, run_in_thread
from tests.waiting import wait_until

START_TIMEOUT = 120  # seconds; the machine may be busy
REQUEST = {"q": "The cat sees a dog.", "source": "en", "target": "de"}


def send(address: tuple[str, int], method: str, path: str, body: object = None) -> tuple[int, Any]:
    """Send a request; return the status and the content of the response."""
    connection = HTTPConnection(*address, timeout=TIMEOUT)
    connection.request(method, path, None if body is None else json.dumps(body))
    response = connection.getresponse()
    content = response.read().decode()
    connection.close()
    return response.status, content if path == "/metrics" else json.loads(content)


class Server:
    """A running `nmt serve`."""

    def __init__(self, model: Path, log: Path, *options: object) -> None:
        command = [sys.executable, "-m", "nmt", "serve", model, "--port", 0, "--device", "cpu", *options]
        self.log = log
        with log.open("w") as stderr:
            self.process = subprocess.Popen([*map(str, command)], stderr=stderr)
        self.port = self._port()

    def _port(self) -> int:
        deadline = time.monotonic() + START_TIMEOUT
        while not (found := re.search(r"serving .* on http://127\.0\.0\.1:(\d+)\n", self.log.read_text())):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return int(found[1])

    def request(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        return send(("127.0.0.1", self.port), method, path, body)

    def wait_for_queue(self, lines: int) -> None:
        wait_until(lambda: f'nmt_queue_lines{{model="en-de"}} {lines}\n' in self.request("GET", "/metrics")[1])

    def wait_for_draining(self) -> None:
        """Wait until a signal has arrived."""
        wait_until(lambda: self.request("GET", "/health")[0] != 200)


Start = Callable[..., Server]
"""Starts a server with these options."""


@pytest.fixture
def start(model: Path, tmp_path: Path) -> Iterator[Start]:
    started: list[Server] = []

    def run(*options: object) -> Server:
        started.append(Server(model, tmp_path / "log", *options))
        return started[-1]

    yield run
    for running in started:
        running.process.kill()
        running.process.wait()


@pytest.mark.slow
def test_a_signal_drains_the_server(start: Start) -> None:
    server = start("--engine", "torch", "--max-delay", 5)
    responses: list[tuple[int, Any]] = []
    client = threading.Thread(target=lambda: responses.append(server.request("POST", "/translate", REQUEST)))
    client.start()
    server.wait_for_queue(1)
    server.process.send_signal(signal.SIGTERM)
    server.wait_for_draining()
    server.process.send_signal(signal.SIGTERM)  # a copy, as `timeout` sends
    refused = (503, {"error": "the server is shutting down"})
    assert server.request("GET", "/health") == refused
    assert server.request("POST", "/translate", REQUEST) == refused
    client.join(TIMEOUT)
    ((status, response),) = responses
    assert status == 200
    assert response["translatedText"]
    assert server.process.wait(TIMEOUT) == 0
    assert server.log.read_text().count("\n") == 1


@pytest.mark.slow
def test_a_body_that_does_not_arrive_does_not_delay_the_shutdown(start: Start) -> None:
    server = start("--engine", "torch", "--max-seconds", 1_000)
    with socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT) as client:
        client.sendall(b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
        time.sleep(0.2)  # the server waits for the other bytes
        server.process.send_signal(signal.SIGHUP)
        assert server.process.wait(TIMEOUT) == 0
        response = client.recv(10_000)
    assert b"HTTP/1.1 503 " in response and b"the server is shutting down" in response


@pytest.mark.slow
def test_a_disconnect_frees_the_queue_and_a_second_signal_exits_at_once(start: Start) -> None:
    server = start("--engine", "torch", "--max-delay", 60)
    leaving = HTTPConnection("127.0.0.1", server.port)
    leaving.request("POST", "/translate", json.dumps(REQUEST))
    server.wait_for_queue(1)
    leaving.close()
    server.wait_for_queue(0)
    threading.Thread(target=lambda: _request_without_response(server), daemon=True).start()
    server.wait_for_queue(1)
    server.process.send_signal(signal.SIGINT)
    server.wait_for_draining()
    time.sleep(COPY_SECONDS)
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(TIMEOUT) == 130
    assert server.log.read_text().splitlines()[1:] == ["nmt: interrupted"]


@pytest.mark.slow
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGUSR1])
def test_a_second_signal_during_a_batch_exits_with_its_status(start: Start, second: signal.Signals) -> None:
    server = start("--engine", "torch")
    lines = ["The cat sees a dog. " * 4] * 1_000
    body = {"text": lines, "beam_size": 32}
    client = threading.Thread(target=lambda: _request_without_response(server, "/v1/translate", body), daemon=True)
    client.start()
    server.wait_for_queue(len(lines) - BatchingOptions().batch_size)  # one batch is being translated
    server.process.send_signal(signal.SIGTERM)
    server.wait_for_draining()
    time.sleep(COPY_SECONDS)
    server.process.send_signal(second)
    assert server.process.wait(TIMEOUT) == 143
    assert server.log.read_text().splitlines()[1:] == ["nmt: interrupted"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has TCP_USER_TIMEOUT, which ends blocked writes")
def test_a_client_that_stops_reading_does_not_block_the_shutdown(start: Start) -> None:
    server = start("--engine", "torch", "--max-seconds", 1)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.connect(("127.0.0.1", server.port))
        num_requests = 1_000
        client.sendall(b"GET /page/page.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * num_requests)
        num_answered, num_before = 0, -1
        while num_answered == 0 or num_answered > num_before:  # until the responses fill all buffers
            time.sleep(2)
            found = re.search(r'path="/page/{name}",status="200"} (\d+)', server.request("GET", "/metrics")[1])
            num_answered, num_before = int(found[1]) if found else 0, num_answered
        assert num_answered < num_requests
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(TIMEOUT) == 0


def _request_without_response(server: Server, path: str = "/translate", body: object = REQUEST) -> None:
    with suppress(OSError, ValueError, HTTPException):
        server.request("POST", path, body)


@pytest.mark.slow
def test_slow_and_invalid_requests_do_not_block_the_server(
    echo_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEADER_TIMEOUT", 3)
    with run_in_thread(echo_service(Limits(seconds=3, body_bytes=1_000_000))) as address:
        check_slow_and_invalid_requests(address)


def check_slow_and_invalid_requests(address: tuple[str, int]) -> None:
    start_time = time.monotonic()
    head = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
    slow = {
        "nothing": (b"", b""),
        "partial head": (b"POST /trans", b""),
        "partial body": (head + b"100\r\n\r\n{", b"HTTP/1.1 408"),
        "huge body": (head + b"%d\r\n\r\n" % 10**10, b"HTTP/1.1 413"),
        "not HTTP": (b"\x16\x03\x01\x00\xff\r\n\r\n", b"HTTP/1.1 400"),
    }
    connections = {name: socket.create_connection(address, timeout=TIMEOUT) for name in slow}
    for name, (sent, _) in slow.items():
        connections[name].sendall(sent)
    assert send(address, "POST", "/translate", REQUEST)[0] == 200
    assert send(address, "POST", "/translate", REQUEST | {"q": "x" * 10_000_000})[0] == 413
    for name, (_, expected) in slow.items():
        response = b""
        while chunk := connections[name].recv(10_000):  # empty after the server closes the connection
            response += chunk
        assert response[:12] == expected, name
        connections[name].close()
    assert time.monotonic() - start_time >= server.HEADER_TIMEOUT  # that of the connection without data
    assert send(address, "GET", "/health")[0] == 200


# In addition to those of the guide; see `test_bad_input`.
@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["en-de=MODEL"], 2, "both named 'en-de'; names must differ; give NAME=PATH"),
        (["--host", "a" * 99], 1, "port 5000: "),
        (["--set", "mbr_metric=chrf"], 2, "--set mbr_metric has no effect without n_best"),
        (["--set", "mbr_metric=chrf", "--set", "n_best=1"], 2, "; mbr_metric needs n_best >= 2; correct it"),
        (["--set", "n_best = 2"], 2, "--set n_best has no effect without mbr_metric"),
        (["x=none"], 1, "none does not exist; expected a model directory"),
        (["x-y=~/none"], 1, f"{Path.home()}/none does not exist; expected a model directory"),
        (["v1.0=~/none"], 1, f"{Path.home()}/none does not exist; expected a model directory"),
    ],
    ids=str,
)
def test_an_invalid_option_gives_a_one_line_error(
    model: Path, nmt: Nmt, options: list[object], status: int, message: str
) -> None:
    arguments = [str(option).replace("MODEL", str(model)) for option in options]
    actual, out, err = nmt("serve", model, *arguments)
    assert (actual, out) == (status, "")
    assert message in one_line(err)


def test_each_option_has_an_effect_on_some_model() -> None:
    models = [DecodeRecipe(beam_groups=2), DecodeRecipe(mbr_metric="chrf", n_best=4)]
    groups, mbr = _search_options(models, ["diversity_penalty=0.7", "n_best=3"])
    assert (groups.diversity_penalty, mbr.n_best) == (0.7, 3)
    with pytest.raises(typer.BadParameter, match="--set sampling_seed has no effect"):
        _search_options(models, ["diversity_penalty=0.7", "sampling_seed=3"])


_WITHOUT_EFFECT = (
    "has no effect without alignments, which CTranslate2 does not support; use --engine torch, or leave out"
)


@pytest.mark.parametrize(
    ("engine", "setting", "status", "message"),
    [
        ("ctranslate2", "alignment_layer=9", 2, f"--set alignment_layer {_WITHOUT_EFFECT} alignment_layer"),
        ("ctranslate2", "alignment_heads=[0]", 2, f"--set alignment_heads {_WITHOUT_EFFECT} alignment_heads"),
        ("ctranslate2", "decode.alignment_at=input", 2, f"--set alignment_at {_WITHOUT_EFFECT} alignment_at"),
        ("torch", "alignment_heads=[99]", 1, "alignment_heads must be between 0 and "),
        ("torch", "alignment_layer=0", 0, ""),
    ],
)
def test_alignment_options_are_checked_at_the_start(
    model: Path, nmt: Nmt, monkeypatch: pytest.MonkeyPatch, engine: str, setting: str, status: int, message: str
) -> None:
    if engine == "ctranslate2":
        import_ctranslate2()
    monkeypatch.setattr(import_module("nmt.cli.serve"), "run_server", lambda *_: None)
    actual, _, err = nmt("serve", model, "--port", 0, "--device", "cpu", "--engine", engine, "--set", setting)
    assert actual == status, err
    assert message in err


def test_newer_checkpoints_of_a_served_run_are_named(
    model: Path, nmt: Nmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("nmt.cli.serve"), "run_server", lambda *_: None)
    shutil.copytree(model, tmp_path / "run" / "model")
    (tmp_path / "run" / "report.json").write_text(json.dumps({"training": {"steps": 1_000}}))
    (tmp_path / "run" / "checkpoints" / "step-00001200").mkdir(parents=True)
    status, _, err = nmt("serve", tmp_path / "run", "--port", 0, "--device", "cpu", "--engine", "torch")
    assert (status, err.count("was averaged at step 1,000, but the run has a checkpoint of step 1,200")) == (0, 1)


def test_scores_come_from_the_model_that_is_served(
    model: Path, nmt: Nmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[Service] = []
    monkeypatch.setattr(import_module("nmt.cli.serve"), "run_server", lambda service, *_: served.append(service))
    shutil.copytree(model, tmp_path / "model")
    assert nmt("serve", tmp_path / "model", "--port", 0, "--device", "cpu", "--engine", "torch")[0] == 0
    client = TestClient(build_app(served[0]))
    (tmp_path / "model").rename(tmp_path / "other")
    response = client.post("/v1/score", json={"pairs": [["a", "b"]]})
    assert response.status_code == 503, response.text
    assert f"the scores of en-de are unavailable: {tmp_path / 'model'} does not exist" in response.text
    (tmp_path / "other").rename(tmp_path / "model")
    manifest = tmp_path / "model" / "manifest.json"
    content = manifest.read_bytes()
    for replaced, status in ((b" ", 503), (b"", 200)):
        manifest.write_bytes(content + replaced)
        response = client.post("/v1/score", json={"pairs": [["a", "b"]]})
        assert response.status_code == status, response.text
        assert ("was replaced after the server loaded it" in response.text) == (status == 503)
    served[0].models["en-de"].batcher.close()


@pytest.mark.parametrize(
    ("host", "has_keys", "warns"), [("0.0.0.0", False, True), ("0.0.0.0", True, False), ("localhost", False, False)]
)
def test_a_public_address_without_api_keys_warns(
    model: Path, nmt: Nmt, tmp_path: Path, host: str, has_keys: bool, warns: bool
) -> None:
    (tmp_path / "keys").write_text("key\n")
    options = ["--api-keys", tmp_path / "keys"] if has_keys else []
    invalid = ["--set", "beam_sise=2"]  # exits after the warning
    _, _, err = nmt("serve", model, "--host", host, "--port", 0, *options, *invalid)
    assert err.startswith("warning: 0.0.0.0 is reachable from other machines without an API key") == warns


@pytest.mark.slow
@pytest.mark.parametrize("package", ["fastapi", "uvicorn"])
def test_a_missing_package_gives_a_one_line_error(package: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None; sys.argv = ['nmt', 'serve', 'm']; import nmt.cli; nmt.cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert one_line(done.stderr).startswith(f"package {package} cannot be imported")
    assert one_line(done.stderr).endswith("pip install 'nmt[serve]'")
