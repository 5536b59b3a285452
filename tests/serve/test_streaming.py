"""Server-sent events: the same translations as in one response, in growing batches, and errors at any time."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nmt.decode.task import TranslatorInput
from nmt.decode.translation import Translation
from nmt.decode.translator import Translator
from nmt.serve.app import build_app
from nmt.serve.batching import BatchingOptions, QueueFullError
from nmt.serve.events import Event, merge
from nmt.serve.service import Limits
from nmt.storage.model_metadata import read_model_metadata
from tests.serve.conftest import EchoTranslator, MakeService, serve_model

LINES = [f"line {number}" for number in range(12)]


def read_events(response: Any) -> list[tuple[str, dict[str, Any]]]:
    """Parse a stream of events, each of which has one line of data."""
    assert response.headers["content-type"].startswith("text/event-stream")
    *blocks, rest = response.text.split("\n\n")
    assert rest == ""
    events = []
    for block in blocks:
        name, data = block.split("\n")
        events.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return events


def test_a_stream_has_the_translations_of_one_response(client: TestClient) -> None:
    body = {"text": ["The cat sees a dog.", "", "A tree", "a dog"], "n_best": 2, "scores": True, "alignments": True}
    expected = client.post("/v1/translate", json=body).json()["translations"]
    *lines, done = read_events(client.post("/v1/translate", json=body | {"stream": True}))
    assert done == ("done", {})
    assert [(name, data["index"]) for name, data in lines] == [("line", index) for index in range(4)]
    for (_, data), n_best in zip(lines, expected, strict=True):
        for streamed, reference in zip(data["translations"], n_best, strict=True):
            assert streamed["log_prob"] == pytest.approx(reference["log_prob"])  # rounding depends on the batch
            for name in ("text", "tokens", "alignment"):
                assert streamed[name] == reference[name]


def test_batches_of_a_stream_grow(echo: EchoTranslator, echo_service: MakeService) -> None:
    client = TestClient(build_app(echo_service(batching=BatchingOptions(batch_size=4, max_delay=0.0))))
    events = read_events(client.post("/v1/translate", json={"text": LINES, "stream": True}))
    assert [data["translations"][0]["text"] for _, data in events[:-1]] == [line.upper() for line in LINES]
    assert [len(batch) for batch in echo.batches] == [1, 2, 4, 4, 1]


def test_an_empty_stream_is_done(client: TestClient) -> None:
    assert read_events(client.post("/v1/translate", json={"text": [], "stream": True})) == [("done", {})]


@pytest.mark.parametrize(
    ("body", "status"),
    [({"text": LINES, "n_best": 99}, 400), ({"text": LINES * 2}, 413), ({"text": ["a", "b\nc"]}, 400)],
)
def test_an_error_before_the_first_event_has_its_status(client: TestClient, body: dict[str, Any], status: int) -> None:
    response = client.post("/v1/translate", json=body | {"stream": True})
    assert (response.status_code, list(response.json())) == (status, ["error"])


def test_a_later_error_is_an_event(echo_service: MakeService) -> None:
    client = TestClient(build_app(echo_service()), raise_server_exceptions=False)
    events = read_events(client.post("/v1/translate", json={"text": ["good", "bad"], "stream": True}))
    assert [name for name, _ in events] == ["line", "error"]
    assert events[1][1] == {"error": "internal error: RuntimeError; see the server log"}


def test_a_timeout_within_a_stream_is_an_event_and_frees_the_queue(
    echo: EchoTranslator, echo_service: MakeService
) -> None:
    service = echo_service(Limits(seconds=2), batching=BatchingOptions(batch_size=1, max_delay=0.0))
    translate = echo.translate_inputs

    def block_after_first(inputs: Sequence[TranslatorInput], **_: object) -> list[list[Translation]]:
        if echo.batches:
            echo.may_run.clear()
        return translate(inputs)

    echo.translate_inputs = block_after_first  # type: ignore[method-assign]
    events = read_events(TestClient(build_app(service)).post("/v1/translate", json={"text": LINES, "stream": True}))
    assert [name for name, _ in events] == ["line", "error"]
    assert events[1][1]["error"].startswith("timeout after 2 seconds")
    assert service.models["en-de"].batcher.num_waiting == 0


def test_later_batches_of_a_stream_wait_while_the_queue_is_full(
    echo_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = echo_service(batching=BatchingOptions(batch_size=4, max_delay=0.0))
    monkeypatch.setattr("nmt.serve.service._RETRY_SECONDS", 0.01)
    batcher = service.models["en-de"].batcher
    submit, calls = batcher.submit, []

    def refuse_twice(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) in (2, 3):
            raise QueueFullError
        return submit(*arguments, **options)

    monkeypatch.setattr(batcher, "submit", refuse_twice)
    client = TestClient(build_app(service))
    events = read_events(client.post("/v1/translate", json={"text": LINES, "stream": True}))
    assert [name for name, _ in events] == ["line"] * len(LINES) + ["done"]
    assert len(calls) == 7  # five batches, and two refused calls


def test_a_disconnect_within_a_stream_ends_it(echo: EchoTranslator, echo_service: MakeService) -> None:
    service = echo_service(batching=BatchingOptions(batch_size=1, max_delay=0.0))
    body = json.dumps({"text": LINES, "stream": True}).encode()

    async def call() -> None:
        has_started = asyncio.Event()
        messages: list[Any] = [{"type": "http.request", "body": body}]

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await has_started.wait()
            while len(echo.batches) < 2:  # until the worker thread has the second line
                await asyncio.sleep(0.01)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message.get("body"):
                echo.may_run.clear()
                has_started.set()

        scope = {"type": "http", "method": "POST", "path": "/v1/translate", "headers": [], "query_string": b""}
        await asyncio.wait_for(build_app(service)(scope, receive, send), 20)

    asyncio.run(call())
    assert service.num_active == 0
    echo.may_run.set()
    service.models["en-de"].batcher.close()
    assert echo.batches == [[LINES[0]], [LINES[1]]]


def test_tokens_of_a_greedy_search_are_streamed(client: TestClient) -> None:
    lines = ["The cat sees a dog.", "", "A tree"]
    body = {"text": lines, "beam_size": 1}
    expected = [best["text"] for (best,) in client.post("/v1/translate", json=body).json()["translations"]]
    events = read_events(client.post("/v1/translate", json=body | {"stream": True, "stream_tokens": True}))
    assert [data["index"] for name, data in events if name == "line"] == [0, 1, 2]
    for index, text in enumerate(expected):
        own = [data for name, data in events if name == "text" and data["index"] == index]
        assert len({data["text"] for data in own}) == len(own)
        assert [data["text"] for data in own[-1:]] == ([text] if text else [])
    assert sum(name == "text" for name, _ in events) > 2
    for index in range(len(lines)):
        assert [name for name, data in events if data.get("index") == index][-1] == "line"


def test_a_line_follows_its_texts() -> None:
    async def merged() -> list[Event]:
        queue: asyncio.Queue[Event] = asyncio.Queue()

        async def lines() -> AsyncIterator[Event]:
            for index in range(2):
                for text in "abc":
                    queue.put_nowait(("text", {"index": index, "text": text}))
                yield "line", {"index": index}

        return [event async for event in merge(lines(), queue)]

    events = asyncio.run(merged())
    assert [name for name, _ in events] == ["text", "text", "text", "line"] * 2
    assert [data["index"] for _, data in events] == [0] * 4 + [1] * 4


def test_tokens_need_a_greedy_search(client: TestClient) -> None:
    response = client.post("/v1/translate", json={"text": "a", "stream_tokens": True})
    assert response.status_code == 400
    assert response.json()["error"] == "stream_tokens needs greedy search; set beam_size to 1"


def test_tokens_of_a_single_sample_are_streamed(model: Path, translator: Translator) -> None:
    """A beam size has no effect on samples, so a request cannot set it to 1."""
    decode = read_model_metadata(model).decode.model_copy(update={"sampling": True, "n_best": 1})
    body = {"text": "The cat sees a dog.", "stream_tokens": True}
    with serve_model(translator, decode) as client:
        events = read_events(client.post("/v1/translate", json=body))
        assert {name for name, _ in events} == {"text", "line", "done"}
        response = client.post("/v1/translate", json=body | {"n_best": 2})
        assert response.json()["error"].startswith("stream_tokens needs a single sample; set n_best to 1")
