"""Servers in this process: of a tiny model, and of a stand-in that waits to be let go."""

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from fastapi.testclient import TestClient

from nmt.decode.scoring import Scorer
from nmt.decode.text_translator import TextTranslator
from nmt.decode.translation import Translation
from nmt.decode.translator import Translator
from nmt.recipe import DecodeRecipe
from nmt.serve.app import build_app
from nmt.serve.models import Batching, ServedModel
from nmt.serve.service import Limits, Service
from nmt.storage.model_facts import read_model_facts
from tests.cli.conftest import model as model

LANGUAGES = ("en", "de")


class EchoTranslator:
    """Puts lines in capitals as soon as it is let go, twice, and then in small letters; the line `bad` fails.

    batches, searches: the lines and the options that it was asked for
    """

    def __init__(self) -> None:
        self.may_go = threading.Event()
        self.may_go.set()
        self.batches: list[list[str]] = []
        self.searches: list[DecodeRecipe] = []

    def with_decode(self, decode: DecodeRecipe, *, scores: bool = True) -> "EchoTranslator":
        self.searches.append(decode)
        return self

    def translate_n_best(self, lines: Sequence[str], **_: object) -> list[list[Translation]]:
        self.batches.append(list(lines))
        assert self.may_go.wait(20)
        if "bad" in lines:
            raise RuntimeError("a bad line")
        of_lines = [(line.upper(), line.upper(), line.lower()) for line in lines]
        return [[Translation(text, 0.0, 0.0, []) for text in texts] for texts in of_lines]


@pytest.fixture
def echo() -> EchoTranslator:
    return EchoTranslator()


def no_scorer() -> Scorer:
    raise AssertionError("nothing is scored")


MakeService = Callable[..., Service]


@pytest.fixture
def echo_service(echo: EchoTranslator) -> Iterator[MakeService]:
    """Make a service of the stand-in."""
    made: list[ServedModel] = []

    def make(
        limits: Limits | None = None, *arguments: Any, batching: Batching | None = None, **keywords: Any
    ) -> Service:
        translator = cast(TextTranslator, echo)
        chosen = batching or Batching(max_delay=0.0)
        made.append(ServedModel("en-de", LANGUAGES, DecodeRecipe(), translator, no_scorer, chosen, "echo"))
        return Service(made[-1:], limits or Limits(), *arguments, **keywords)

    yield make
    echo.may_go.set()
    for one in made:
        one.batcher.close()


@pytest.fixture(scope="session")
def translator(model: Path) -> Translator:
    return Translator.load(model, "cpu", "fp32")


@pytest.fixture(scope="session")
def service(model: Path, translator: Translator) -> Iterator[Service]:
    """A service of the tiny model."""
    decode = read_model_facts(model).decode
    load_scorer = partial(Scorer.load, model, "cpu")
    served = ServedModel("en-de", LANGUAGES, decode, translator, load_scorer, Batching(), "torch, fp32")
    yield Service([served], Limits(body_bytes=20_000, characters=2_000, lines=20))
    served.batcher.close()


@pytest.fixture(scope="session")
def client(service: Service) -> Iterator[TestClient]:
    with TestClient(build_app(service), raise_server_exceptions=False) as client:
        yield client
