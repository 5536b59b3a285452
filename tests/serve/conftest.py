"""In-process servers of a tiny model and of a fake translator that can be blocked."""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from fastapi.testclient import TestClient

from nmt.decode.scoring import TextScorer
from nmt.decode.task import TranslatorInput
from nmt.decode.text_translator import TextTranslator
from nmt.decode.translation import Translation
from nmt.decode.translator import Translator
from nmt.recipe import NO_CONTEXT, DecodeRecipe
from nmt.serve.app import build_app
from nmt.serve.batching import BatchingOptions
from nmt.serve.memory import ServedMemory
from nmt.serve.models import ServedModel
from nmt.serve.server import open_socket, run_server
from nmt.serve.service import Limits, Service
from nmt.storage.model_metadata import read_model_metadata
from tests.cli.conftest import model as model
from tests.waiting import wait_until

LANGUAGES = ("en", "de")
PAIR = {"source": "en", "target": "de"}
T, V, S = "/translate", "/v1/translate", "/v1/score"
TIMEOUT = 60  # seconds; the machine may be busy


class EchoTranslator:
    """Translates a line to upper case (twice) and to lower case, while `may_run` is set; the line `bad` fails.

    batches, decode_options: lines and options of the calls
    """

    max_threads = 1
    context = NO_CONTEXT
    lines_split = lines_longer = lines_reused = 0
    lowercases = False
    require: Sequence[str] = ()
    forbid: Sequence[str] = ()
    unsupported: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        self.may_run = threading.Event()
        self.may_run.set()
        self.batches: list[list[str]] = []
        self.decode_options: list[DecodeRecipe] = []

    def batch_key(self, line: str) -> int | None:
        return None

    def with_decode(self, decode: DecodeRecipe, *, scores: bool = True) -> "EchoTranslator":
        self.decode_options.append(decode)
        return self

    def start_translation(self, inputs: Sequence[TranslatorInput]) -> Callable[[], list[list[Translation]]]:
        return lambda: self.translate_inputs(inputs)

    def translate_inputs(
        self, inputs: Sequence[TranslatorInput], *, partial_word: bool = False
    ) -> list[list[Translation]]:
        lines = [one.text for one in inputs]
        self.batches.append(lines)
        assert self.may_run.wait(60)
        if "bad" in lines:
            raise RuntimeError("a bad line")
        return [
            [Translation(text, 0.0, 0.0, []) for text in (line.upper(), line.upper(), line.lower())] for line in lines
        ]


@pytest.fixture
def echo() -> EchoTranslator:
    return EchoTranslator()


def no_scorer() -> TextScorer:
    raise AssertionError("this model must not be asked for scores")


MakeService = Callable[..., Service]


@pytest.fixture
def echo_service(echo: EchoTranslator) -> Iterator[MakeService]:
    """Return a function that makes a service of the fake translator."""
    made: list[ServedModel] = []

    def make(
        limits: Limits | None = None, *arguments: Any, batching: BatchingOptions | None = None, **keywords: Any
    ) -> Service:
        translator = cast(TextTranslator, echo)
        options = batching or BatchingOptions(max_delay=0.0)
        made.append(ServedModel("en-de", LANGUAGES, DecodeRecipe(), translator, no_scorer, options, "echo"))
        return Service(made[-1:], limits or Limits(), *arguments, **keywords)

    yield make
    echo.may_run.set()
    for served in made:
        served.batcher.close()


@contextmanager
def run_in_thread(service: Service, origins: Sequence[str] = ()) -> Iterator[tuple[str, int]]:
    """Run the server in a thread until the end of the block; yields its address."""
    bound = open_socket("127.0.0.1", 0)
    thread = threading.Thread(target=run_server, args=(service, bound, origins), daemon=True)
    thread.start()
    wait_until(lambda: bool(bound.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)))  # until the server listens
    try:
        yield bound.getsockname()
    finally:
        service.is_draining = True
        thread.join(TIMEOUT)
    assert not thread.is_alive(), "the server does not exit"


@contextmanager
def serve_model(
    translator: TextTranslator,
    decode: DecodeRecipe,
    load_scorer: Callable[[], TextScorer] = no_scorer,
    memory: ServedMemory | None = None,
) -> Iterator[TestClient]:
    """Serve one model until the end of the block; yields a client without a connection."""
    served = ServedModel("en-de", LANGUAGES, decode, translator, load_scorer, BatchingOptions(), "torch, fp32", memory)
    try:
        with TestClient(build_app(Service([served], Limits()))) as client:
            yield client
    finally:
        served.batcher.close()


@pytest.fixture(scope="session")
def translator(model: Path) -> Translator:
    return Translator.load(model, "cpu", "fp32")


@pytest.fixture(scope="session")
def service(model: Path, translator: Translator) -> Iterator[Service]:
    """A service of the tiny model."""
    decode = read_model_metadata(model).decode
    load_scorer = partial(TextScorer.load, model, "cpu")
    served = ServedModel("en-de", LANGUAGES, decode, translator, load_scorer, BatchingOptions(), "torch, fp32")
    yield Service([served], Limits(body_bytes=20_000, characters=2_000, lines=20))
    served.batcher.close()


@pytest.fixture(scope="session")
def client(service: Service) -> Iterator[TestClient]:
    with TestClient(build_app(service), raise_server_exceptions=False) as client:
        yield client
