"""Uploads to a local fake of the Hugging Face Hub."""

import base64
import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi

from nmt.errors import UserError
from nmt.export.hub import push


class FakeHub(ThreadingHTTPServer):
    """Stores committed files, and refuses unknown tokens."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.created: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}
        self.is_public = False
        self.is_full = False


class Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def do_GET(self) -> None:
        if self.path.startswith("/api/models/me/model/tree/main"):
            files = self.server.files.items()
            tree = [{"type": "file", "path": path, "size": len(text), "oid": "0"} for path, text in files]
            self._respond(200, tree)
        elif self.path.startswith("/api/models/me/model"):
            self._respond(200, {"id": "me/model", "private": not self.server.is_public, "siblings": []})
        else:
            self._respond(404, {"error": f"{self.path} not found"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Authorization") != "Bearer secret":
            self._respond(401, {"error": "Invalid username or password."})
        elif self.path == "/api/repos/create" and json.loads(body)["organization"] != "me":
            self._respond(403, {"error": "You don't have the rights to create a model under this namespace"})
        elif self.path == "/api/repos/create":
            self.server.created.append(json.loads(body))
            self._respond(200, {"url": f"{self.server.url}/me/model"})
        elif self.server.is_full:
            self._respond(403, {"error": "Private repository storage limit reached"})
        elif self.path == "/api/validate-yaml":
            self._respond(200, {"warnings": [], "errors": []})
        elif self.path == "/api/models/me/model/preupload/main":
            files = json.loads(body)["files"]
            modes = [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in files]
            self._respond(200, {"files": modes})
        elif self.path == "/api/models/me/model/commit/main":
            for entry in map(json.loads, body.splitlines()):
                if entry["key"] == "file":
                    self.server.files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
                elif entry["key"] == "deletedFile":
                    del self.server.files[entry["value"]["path"]]
            self._respond(200, {"commitUrl": f"{self.server.url}/me/model/commit/1", "commitOid": "1", "success": True})
        else:
            self._respond(404, {"error": f"{self.path} not found"})

    def _respond(self, status: int, content: object) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Disable logging."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with FakeHub() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr("huggingface_hub.HfApi", partial(HfApi, endpoint=server.url))
        yield server
        server.shutdown()


@pytest.fixture
def export(tmp_path: Path) -> Path:
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n# A model\n")
    (tmp_path / "model.safetensors").write_bytes(bytes(range(256)) * 40)
    return tmp_path


@pytest.mark.slow
def test_files_are_uploaded_unchanged(server: FakeHub, export: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "secret")
    assert push(export, "me/model") == f"{server.url}/me/model"
    (created,) = server.created
    assert (created["name"], created["organization"]) == ("model", "me")
    assert server.files == {path.name: path.read_bytes() for path in export.iterdir()}


@pytest.mark.slow
def test_files_of_an_earlier_export_are_removed(server: FakeHub, export: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "secret")
    own = {"notes.md": b"mine", "data/vocab.json": b"mine"}
    server.files = {"shared_vocabulary.json": b"[]", "README.md": b"old", **own}
    push(export, "me/model")
    assert server.files == own | {path.name: path.read_bytes() for path in export.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize(("token", "name"), [("wrong", "me/model"), ("secret", "not a name"), ("secret", "you/other")])
def test_an_error_of_the_hub_is_one_line(
    server: FakeHub, export: Path, monkeypatch: pytest.MonkeyPatch, token: str, name: str
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: token)
    with pytest.raises(UserError, match=f"the export in {export} is complete") as refused:
        push(export, name)
    assert "\n" not in str(refused.value)
    assert server.files == {}


def is_private(created: dict[str, Any]) -> bool:
    """Return whether a request is for a private model, in old and new versions of huggingface_hub."""
    return created.get("private") is True or created.get("visibility") == "private"


@pytest.mark.slow
def test_a_private_upload_requires_a_private_repository(
    server: FakeHub, export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "secret")
    push(export, "me/model", private=True)
    assert is_private(server.created[0])
    assert server.files
    server.files.clear()
    server.is_public = True
    with pytest.raises(UserError, match="me/model is already public; --private needs a private repository"):
        push(export, "me/model", private=True)
    assert server.files == {}


@pytest.mark.slow
@pytest.mark.parametrize("private", [False, True])
def test_the_retry_command_of_a_failed_upload_works(
    private: bool, server: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "secret")
    folder = tmp_path / "an export"
    folder.mkdir()
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    server.files = {"vocab.json": b"{}"}
    server.is_full = True
    with pytest.raises(UserError, match="storage limit reached") as refused:
        push(folder, "me/model", private=private)
    server.is_full = False
    command = shlex.split(str(refused.value).partition("then run: ")[2])
    executable = str(Path(sys.executable).with_name(command[0]))
    environment = {**os.environ, "HF_ENDPOINT": server.url, "HF_TOKEN": "secret", "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run([executable, *command[1:]], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert server.files == {"README.md": (folder / "README.md").read_bytes()}
    assert is_private(server.created[-1]) == private
