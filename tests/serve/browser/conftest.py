"""The web page in a headless Chromium, of servers in this process."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from nmt.decode.text_translator import TextTranslator
from nmt.decode.translation import Translation
from nmt.decode.translator import Translator
from nmt.export.engine import CTranslate2Translator
from nmt.recipe import DecodeRecipe
from nmt.serve.app import build_app
from nmt.serve.batching import BatchingOptions
from nmt.serve.models import ServedModel
from nmt.serve.server import open_socket
from nmt.serve.service import Limits, Service
from tests.serve.browser.chromium import CHROMIUM, Browser
from tests.serve.conftest import LANGUAGES, TIMEOUT, no_scorer
from tests.waiting import wait_until

needs_chromium = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium"),
]

SEARCH = DecodeRecipe(beam_size=3, max_extra_tokens=4, max_length_ratio=1.2, length_alpha=1.0)
TEXT = "The cat sees a dog. A tree likes it.\n\nThe dog said: go!"
CANDIDATES = [f"{one} {other}" for one in ("a", "the", "old", "Then") for other in ("cat", "dog", "tree", "likes it")]
SENTENCES = ["The cat sees a dog.", "A tree likes it.", "The dog said: go!"]

ServePage = Callable[[Service], None]


@contextmanager
def serve(service: Service) -> Iterator[str]:
    """Serve in a thread until the end of the block; yields the address of the page."""
    bound = open_socket("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(build_app(service), log_config=None, lifespan="off"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([bound])), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(TIMEOUT)
        bound.close()


@pytest.fixture(scope="session")
def reference(model: Path) -> Translator:
    """The translator of the page's requests, with their options."""
    options = SEARCH.model_copy(update={"n_best": 3, "alignments": True})
    return Translator.load(model, "cpu", "fp32", options.all_given())


@pytest.fixture(scope="session")
def url(model: Path) -> Iterator[str]:
    """A server of the same model with both engines, or only torch where CTranslate2 is not installed."""
    search = SEARCH.all_given()
    engines: dict[str, TextTranslator] = {"exact": Translator.load(model, "cpu", "fp32", search)}
    if find_spec("ctranslate2"):
        engines["fast"] = CTranslate2Translator.load(model, "cpu", "fp32", search)
    served = [
        ServedModel(name, LANGUAGES, search, engine, no_scorer, BatchingOptions(), name)
        for name, engine in engines.items()
    ]
    with serve(Service(served, Limits(lines=5, body_bytes=20_000))) as address:
        yield address
    for one in served:
        one.batcher.close()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def open_page(browser: Browser, url: str) -> None:
    """Open the page and wait for its list of models."""
    browser.open(url)
    browser.wait("document.querySelector('#model')?.options.length > 0")


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Browser]:
    """The page before any input; a problem that the browser reports fails the test."""
    browser.problems.clear()
    browser.call("Emulation.setDeviceMetricsOverride", width=1200, height=900, deviceScaleFactor=1, mobile=False)
    open_page(browser, url)
    yield browser
    assert browser.problems == []


@pytest.fixture
def serve_page(browser: Browser) -> Iterator[ServePage]:
    """Return a function that serves in a thread until the end of the test, and opens the page."""
    with ExitStack() as servers:
        yield lambda service: open_page(browser, servers.enter_context(serve(service)))


def enter(page: Browser, text: str) -> None:
    """Type a text and wait for its translation."""
    page.run("document.querySelector('#source').focus()")
    page.type(text)
    page.wait(f"document.querySelector('#source').value === {json.dumps(text)}")
    wait_for_translation(page)


def wait_for_translation(page: Browser) -> None:
    page.wait("document.querySelector('#output .sentence') && document.querySelector('#status').textContent === ''")
    page.wait("document.querySelector('#output').ariaBusy === 'false'")


def texts(page: Browser, selector: str) -> Any:
    return page.run(f"[...document.querySelectorAll({json.dumps(selector)})].map((one) => one.textContent)")


def best(reference: Translator, lines: list[str]) -> list[Translation]:
    return [translations[0] for translations in reference.translate_n_best(lines)]


def download(page: Browser, folder: Path, name: str) -> str:
    """Wait for the translation of a file, click on the link and return the content, line endings included."""
    page.wait("!document.querySelector('#download').hidden")
    page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    page.click("#download")
    downloaded = folder / name.replace(".", ".translated.")
    wait_until(lambda: downloaded.exists() and downloaded.stat().st_size > 0)
    return downloaded.read_bytes().decode()


def select_file(page: Browser, path: Path) -> None:
    node = page.call("DOM.getDocument")["root"]["nodeId"]
    node = page.call("DOM.querySelector", nodeId=node, selector="#file")["nodeId"]
    page.call("DOM.setFileInputFiles", files=[str(path)], nodeId=node)


def change(page: Browser, field: str, value: object) -> None:
    """Set the value of an option."""
    page.run(f"document.querySelector('#{field}').value = '{value}'")
    page.run(f"document.querySelector('#{field}').dispatchEvent(new Event('input'))")
