"""Uploading, to a stand-in for the hub that speaks its protocol on this machine."""

import base64
import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi

from nmt.export.hub import push
from nmt.recipe import UserError


class Hub(ThreadingHTTPServer):
    """Takes every file inline, and keeps what is committed; refuses strangers."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.created: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}


class Answers(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Authorization") != "Bearer secret":
            self._answer(401, {"error": "Invalid username or password."})
        elif self.path == "/api/repos/create" and json.loads(body)["organization"] != "me":
            self._answer(403, {"error": "You don't have the rights to create a model under this namespace"})
        elif self.path == "/api/repos/create":
            self.server.created.append(json.loads(body))
            self._answer(200, {"url": f"{self.server.url}/me/model"})
        elif self.path == "/api/validate-yaml":
            self._answer(200, {"warnings": [], "errors": []})
        elif self.path == "/api/models/me/model/preupload/main":
            files = json.loads(body)["files"]
            modes = [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in files]
            self._answer(200, {"files": modes})
        elif self.path == "/api/models/me/model/commit/main":
            for entry in map(json.loads, body.splitlines()):
                if entry["key"] == "file":
                    self.server.files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            self._answer(200, {"commitUrl": f"{self.server.url}/me/model/commit/1", "commitOid": "1", "success": True})
        else:
            self._answer(404, {"error": f"{self.path} is not there"})

    def _answer(self, status: int, answer: dict[str, Any]) -> None:
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr("huggingface_hub.HfApi", partial(HfApi, endpoint=server.url))
        yield server
        server.shutdown()


@pytest.fixture
def export(tmp_path: Path) -> Path:
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n# A model\n")
    (tmp_path / "model.safetensors").write_bytes(bytes(range(256)) * 40)
    return tmp_path


def test_every_file_arrives_as_it_is(server: Hub, export: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "secret")
    assert push(export, "me/model") == f"{server.url}/me/model"
    (created,) = server.created
    assert (created["name"], created["organization"]) == ("model", "me")
    assert server.files == {path.name: path.read_bytes() for path in export.iterdir()}


@pytest.mark.parametrize(("token", "name"), [("wrong", "me/model"), ("secret", "not a name"), ("secret", "you/other")])
def test_what_the_hub_refuses_is_one_line(
    server: Hub, export: Path, monkeypatch: pytest.MonkeyPatch, token: str, name: str
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: token)
    with pytest.raises(UserError, match="the export itself is whole") as refused:
        push(export, name)
    assert "\n" not in str(refused.value)
    assert server.files == {}
