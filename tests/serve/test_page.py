"""The files of the web page."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from nmt.serve import page

WEB = Path(page.__file__).parent / "web"
FILES = sorted(path.name for path in WEB.iterdir())


@pytest.mark.parametrize("name", ["/", *(f"/page/{name}" for name in FILES)])
def test_a_file_has_its_type_and_a_strict_policy(client: TestClient, name: str) -> None:
    response = client.get(name)
    assert response.status_code == 200
    policy = dict(part.split(" ", 1) for part in response.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert set(policy.values()) == {"'none'", "'self'"}
    assert response.headers["x-content-type-options"] == "nosniff"
    kinds = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
    path = WEB / (name.removeprefix("/page/") if name != "/" else "index.html")
    assert response.headers["content-type"] == f"{kinds[path.suffix]}; charset=utf-8"
    assert response.content == path.read_bytes()


@pytest.mark.parametrize("name", ["none.js", "..%2fpage.py", "%2e%2e", ""])
def test_other_files_are_not_served(client: TestClient, name: str) -> None:
    response = client.get(f"/page/{name}")
    assert (response.status_code, list(response.json())) == (404, ["error"])


@pytest.mark.parametrize("name", FILES)
def test_files_are_short_and_need_no_other_host(name: str) -> None:
    text = (WEB / name).read_text(encoding="utf-8")
    assert text.count("\n") <= 500
    addresses = set(re.findall(r"(?:https?:)?//[a-z]+\.[a-z.]+\S*", text))
    assert addresses <= {'http://www.w3.org/2000/svg"'}


def test_the_page_refers_to_its_files_and_has_no_inline_code() -> None:
    index = (WEB / "index.html").read_text(encoding="utf-8")
    assert set(re.findall(r'(?:href|src)="page/([^"]+)"', index)) == {"icon.svg", "style.css", "page.js"}
    assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=", index)
    modules = {name for path in WEB.glob("*.js") for name in re.findall(r'from "\./([^"]+)"', path.read_text("utf-8"))}
    assert modules | {"page.js"} == {name for name in FILES if name.endswith(".js")}


def test_every_control_has_a_name() -> None:
    index = (WEB / "index.html").read_text(encoding="utf-8")
    controls = re.findall(r"<(?:input|select|textarea|progress)\b[^>]*>", index)
    assert controls
    for control in controls:
        identifier = re.findall(r'id="([^"]+)"', control)[0]
        label = re.search(rf'<label[^>]*>[^<]*<(?:input|select|textarea)\b[^>]*id="{identifier}"', index)
        is_labeled = label or f'for="{identifier}"' in index or "aria-label=" in control
        assert is_labeled, control


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_sentences_of_the_server_are_found_in_the_text(client: TestClient) -> None:
    """The server returns a lone surrogate as U+FFFD."""
    text = " \U0001f600 Dr. Smith is here.\tHe is here. He\x01is here. See \ud800!\n\nI left."
    lines = text.split("\n")
    answer = client.post("/v1/sentences", content=json.dumps({"text": lines})).json()["sentences"]
    script = f"""
        import {{linesOf, sentencesOf}} from {json.dumps((WEB / "text.js").as_uri())};
        const text = {json.dumps(text)};
        const answer = {json.dumps(answer)};
        const found = sentencesOf(text, (line) => answer[linesOf(text).indexOf(line)]);
        console.log(JSON.stringify([found.map((one) => one.text), found.map(({{start, end}}) => [start, end])]));
    """
    done = subprocess.run(["node", "--input-type=module", "-e", script], capture_output=True, text=True, check=True)
    texts, positions = json.loads(done.stdout)
    assert texts == ["\U0001f600 Dr. Smith is here.", "He is here.", "He is here.", "See \ufffd!", "I left."]
    units = text.encode("utf-16-le", "surrogatepass")
    found = [units[2 * start : 2 * end].decode("utf-16-le", "replace") for start, end in positions]
    assert [one.replace("\x01", " ") for one in found] == texts
