"""`nmt serve --memory`: answers are those of a server without a memory, and errors of its file do not fail requests."""

import json
import re
import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nmt.decode.scoring import TextScorer
from nmt.decode.translator import Translator
from nmt.serve.memory import ServedMemory
from nmt.storage.model_metadata import read_model_metadata
from tests.serve.conftest import serve_model

LINES = ["the old dog", "a cat", "", "the old dog", "x\ty \ud800"]
REQUESTS: list[tuple[str, dict[str, Any], int]] = [  # and the number of lines that are looked up
    ("/translate", {"q": LINES, "source": "en", "target": "de"}, 5),
    ("/translate", {"q": LINES[0], "source": "en", "target": "de", "alternatives": 2}, 1),
    ("/translate", {"q": "<p>the <b>old</b> dog</p>", "source": "en", "target": "de", "format": "html"}, 1),
    ("/v1/translate", {"text": LINES, "n_best": 2, "scores": True, "alignments": True}, 5),
    ("/v1/translate", {"text": LINES, "beam_size": 2, "prefix": "The", "forbidden": ["dog"]}, 5),
    ("/v1/translate", {"text": "the old dog", "required": ["cat"], "glossary": [["dog", "tree"]]}, 1),
    ("/v1/translate", {"text": LINES, "stream": True}, 5),
    ("/v1/translate", {"text": "the old dog", "beam_size": 1, "stream_tokens": True}, 0),
    ("/v1/translate", {"text": "the old dog", "prefix": "Th", "partial_word": True}, 0),
    ("/v1/translate", {"text": "the old dog", "alternatives": True, "n_best": 2}, 0),
]


@pytest.fixture
def memory(tmp_path: Path) -> ServedMemory:
    return ServedMemory(tmp_path / "memory.db", None, {"model": "a"})


@pytest.fixture
def remembering(model: Path, translator: Translator, memory: ServedMemory) -> Iterator[TestClient]:
    load_scorer = partial(TextScorer.load, model, "cpu")
    with serve_model(translator, read_model_metadata(model).decode, load_scorer, memory) as client:
        yield client


def answer(client: TestClient, path: str, body: dict[str, Any]) -> str:
    response = client.post(path, content=json.dumps(body))
    assert response.status_code == 200, response.text
    return response.text


@pytest.mark.slow
@pytest.mark.parametrize(("path", "body", "lines"), REQUESTS)
def test_answers_equal_those_without_a_memory(
    client: TestClient, remembering: TestClient, memory: ServedMemory, path: str, body: dict[str, Any], lines: int
) -> None:
    expected = answer(client, path, body)
    assert answer(remembering, path, body) == expected
    missing = memory.num_missing
    assert answer(remembering, path, body) == expected
    assert memory.num_missing == missing
    assert missing + memory.num_reused == 2 * lines or "format" in body  # a line with markup may be searched again
    metrics = remembering.get("/metrics").text
    assert f'nmt_memory_lines_total{{model="en-de",result="reused"}} {memory.num_reused}\n' in metrics
    assert f'nmt_memory_lines_total{{model="en-de",result="missing"}} {missing}\n' in metrics
    assert 'nmt_memory_errors_total{model="en-de"} 0\n' in metrics


def test_all_lines_are_counted(remembering: TestClient) -> None:
    for _ in range(2):
        answer(remembering, "/v1/translate", {"text": ["a cat", "the old dog"], "n_best": 2})
    answer(remembering, "/v1/score", {"pairs": [["a cat", "eine Katze"]]})
    answer(remembering, "/v1/translate", {"text": "a dog", "n_best": 2, "attention": True})
    metrics = remembering.get("/metrics").text
    total = 2 * 2 + 1 + 1 + 2  # two requests of two lines, a pair, a line, and the attention of two translations
    assert f'nmt_lines_total{{model="en-de"}} {total}\n' in metrics
    (about,) = (line for line in metrics.splitlines() if line.startswith("# HELP nmt_lines_total"))
    assert about.endswith(
        "Lines translated or reused from the translation memory, pairs scored, and attentions computed."
    )


def test_a_line_that_is_looked_up_several_times_counts_once_as_a_line(remembering: TestClient) -> None:
    answer(remembering, "/v1/translate", {"text": "the old dog sees 12 cats at 5", "keep": ["numbers"]})
    metrics = remembering.get("/metrics").text
    (missing,) = re.findall(r'nmt_memory_lines_total{model="en-de",result="missing"} (\d+)', metrics)
    assert 'nmt_lines_total{model="en-de"} 1\n' in metrics
    assert int(missing) > 1
    assert "nmt_memory_lines_total Lines by result of the translation memory lookup; with keep, each" in metrics


def test_requests_with_other_options_do_not_share_entries(remembering: TestClient, memory: ServedMemory) -> None:
    for body in (
        {"text": LINES, "n_best": 2, "scores": True, "alignments": True},
        {"text": LINES, "beam_size": 2, "prefix": "The", "forbidden": ["dog"]},
        {"text": "the old dog", "required": ["cat"], "glossary": [["dog", "tree"]]},
    ):
        answer(remembering, "/v1/translate", body)
    assert memory.num_reused == 0
    answer(remembering, "/v1/translate", {"text": "a cat", "n_best": 2, "scores": True, "alignments": True})
    assert memory.num_reused == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statements", "problem"),
    [
        (["PRAGMA query_only = ON"], "attempt to write a readonly database"),
        (["PRAGMA journal_mode = DELETE", "PRAGMA max_page_count = 1"], "database or disk is full"),
        (["DROP TABLE translations"], "no such table: translations"),
        (["UPDATE translations SET json = ''"], "an entry does not match its checksum"),
    ],
)
def test_an_unusable_file_is_logged_once_and_fails_no_request(
    client: TestClient,
    remembering: TestClient,
    memory: ServedMemory,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    statements: list[str],
    problem: str,
) -> None:
    monkeypatch.setattr("nmt.serve.memory.monotonic", lambda: 0.0)  # within the 10 seconds, even if requests are slow
    body = {"q": "a cat", "source": "en", "target": "de"}
    answer(remembering, "/translate", body)
    for statement in statements:
        memory._database.execute(statement)
    for line in ("a cat", "the old dog " * 99, "a dog"):
        assert answer(remembering, "/translate", body | {"q": line}) == answer(client, "/translate", body | {"q": line})
    (logged,) = (line for line in capfd.readouterr().err.splitlines() if "too long for the model" not in line)
    assert logged.startswith("warning: ") and problem in logged
    assert logged.endswith("; the translation memory is not used for 10 seconds")
    assert 'nmt_memory_errors_total{model="en-de"} 1\n' in remembering.get("/metrics").text


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_file_that_is_gone_is_reported(
    remembering: TestClient, tmp_path: Path, capfd: pytest.CaptureFixture[str], is_replaced: bool
) -> None:
    body = {"q": "a cat", "source": "en", "target": "de"}
    expected = answer(remembering, "/translate", body)
    (tmp_path / "memory.db").rename(tmp_path / "moved.db")
    if is_replaced:
        ServedMemory(tmp_path / "memory.db", None, {"model": "a"}).close()
    assert answer(remembering, "/translate", body) == expected
    (logged,) = capfd.readouterr().err.splitlines()
    assert logged.startswith(f"warning: {tmp_path / 'memory.db'} was deleted or replaced; restart the server")


@pytest.mark.slow
def test_a_locked_file_is_used_again_later(
    remembering: TestClient, memory: ServedMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"q": "a cat", "source": "en", "target": "de"}
    other = sqlite3.connect(tmp_path / "memory.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    answer(remembering, "/translate", body)
    assert (memory.num_errors, memory.num_missing) == (1, 1)
    other.execute("ROLLBACK")
    other.close()
    monkeypatch.setattr("nmt.serve.memory.monotonic", lambda: memory._resumes_at + 1)
    for _ in range(2):
        answer(remembering, "/translate", body)
    assert (memory.num_errors, memory.num_reused) == (1, 1)
