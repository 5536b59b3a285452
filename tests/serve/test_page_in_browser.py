"""The web page in a headless Chromium: what it shows equals what the translator returns."""

import asyncio
import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import uvicorn

from nmt.decode.task import TranslatorInput
from nmt.decode.text_translator import TextTranslator
from nmt.decode.translation import Translation
from nmt.decode.translator import Translator
from nmt.export.engine import CTranslate2Translator
from nmt.recipe import Context, ContextSides, DecodeRecipe
from nmt.serve.app import build_app
from nmt.serve.batching import BatchingOptions, QueueFullError
from nmt.serve.models import ServedModel
from nmt.serve.server import open_socket
from nmt.serve.service import ApiKeys, Limits, Service
from tests.serve.chromium import CHROMIUM, Browser
from tests.serve.conftest import LANGUAGES, TIMEOUT, EchoTranslator, MakeService, no_scorer, wait_until

pytestmark = [
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


@pytest.fixture(scope="module")
def reference(model: Path) -> Translator:
    """The translator of the page's requests, with their options."""
    options = SEARCH.model_copy(update={"n_best": 3, "alignments": True})
    return Translator.load(model, "cpu", "fp32", options.all_given())


@pytest.fixture(scope="module")
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


@pytest.fixture(scope="module")
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


def test_a_text_is_translated_sentence_by_sentence(page: Browser, reference: Translator) -> None:
    enter(page, TEXT)
    expected = [translation.text for translation in best(reference, SENTENCES)]
    assert len(set(expected)) == 3
    assert texts(page, "#output .sentence") == expected
    assert texts(page, "#output") == [f"{expected[0]} {expected[1]}\n\n{expected[2]}"]


def test_a_greedy_search_shows_partial_translations(page: Browser, model: Path) -> None:
    page.run("document.querySelector('#beam-size').value = 1")
    page.run("""(() => {
        window.shown = [];
        const record = () => document.querySelectorAll('.pending').forEach((one) => window.shown.push(one.innerText));
        new MutationObserver(record).observe(document.querySelector('#output'), {childList: true});
    })()""")
    enter(page, SENTENCES[0])
    greedy = Translator.load(model, "cpu", "fp32", SEARCH.model_copy(update={"beam_size": 1}).all_given())
    (final,) = greedy.translate(SENTENCES[:1])
    assert texts(page, "#output .sentence") == [final]
    reported: list[str] = []
    greedy.with_callback(reported.append).translate(SENTENCES[:1])
    shown = list(dict.fromkeys(page.run("window.shown")))
    assert len(shown) > 2
    assert set(shown) <= {f"{text}…" for text in ["", *reported]}


def test_only_new_translations_are_drawn(browser: Browser, serve_page: ServePage, echo_service: MakeService) -> None:
    serve_page(echo_service(batching=BatchingOptions(batch_size=1, max_delay=0.0)))
    lines = [f"a{i}" for i in range(50)] + ["a0"]
    browser.run("""(() => {
        window.drawn = 0;
        const count = (changes) => changes.forEach(({addedNodes}) => {
            window.drawn += [...addedNodes].filter(({className}) => className?.startsWith("sentence")).length;
        });
        new MutationObserver(count).observe(document.querySelector("#output"), {childList: true});
    })()""")
    browser.run(f"document.querySelector('#source').value = {json.dumps(chr(10).join(lines))}")
    browser.run("document.querySelector('#source').dispatchEvent(new Event('input'))")
    wait_for_translation(browser)
    assert texts(browser, "#output") == ["\n".join(lines).upper()]
    assert browser.run("window.drawn") == 2 * len(lines)  # once pending, once translated
    assert browser.run("document.querySelectorAll('#output [tabindex=\"0\"]').length") == 1


def test_a_request_is_repeated_while_the_queue_is_full(
    browser: Browser,
    serve_page: ServePage,
    echo_service: MakeService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = echo_service()
    batcher = service.models["en-de"].batcher
    submit, calls = batcher.submit, []

    def refuse_twice(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) < 3:
            raise QueueFullError
        return submit(*arguments, **options)

    monkeypatch.setattr(batcher, "submit", refuse_twice)
    serve_page(service)
    (tmp_path / "a.txt").write_text("a\nb\n", encoding="utf-8")
    select_file(browser, tmp_path / "a.txt")
    assert download(browser, tmp_path, "a.txt") == "A\nB\n"


def test_arrow_keys_follow_the_direction_of_the_text(
    browser: Browser, serve_page: ServePage, echo_service: MakeService
) -> None:
    service = echo_service()
    for text, key in (("a b", "ArrowRight"), ("\u05d0 b", "ArrowLeft")):
        serve_page(service)
        enter(browser, text)
        browser.run("document.querySelector('#output .word').focus()")
        browser.press(key)
        assert browser.run("document.activeElement.dataset.word") == "1"


@pytest.fixture
def blocked_models(browser: Browser) -> Iterator[None]:
    """Block requests for the list of models."""
    browser.call("Network.enable")
    browser.call("Network.setBlockedURLs", urls=["*v1/models"])
    yield
    browser.call("Network.disable")
    browser.problems.clear()


@pytest.mark.usefixtures("blocked_models")
def test_a_missing_list_of_models_is_an_error(browser: Browser, url: str, tmp_path: Path) -> None:
    browser.open(url)
    browser.wait("!document.querySelector('#error').hidden")
    problem = texts(browser, "#error")
    assert problem != [""]
    browser.run("document.querySelector('#source').focus()")
    browser.type("a")
    (tmp_path / "a.txt").write_text("a\n", encoding="utf-8")
    select_file(browser, tmp_path / "a.txt")
    browser.wait("document.querySelector('#file-status').textContent !== ''")
    assert texts(browser, "#file-status") == ["a.txt: the models are not loaded; reload the page"]
    time.sleep(0.4)  # longer than the delay after the last keystroke
    assert texts(browser, "#error") == problem


@pytest.mark.usefixtures("blocked_models")
def test_without_models_the_controls_raise_no_exception(browser: Browser, url: str) -> None:
    browser.open(url)
    browser.wait("!document.querySelector('#error').hidden")
    browser.problems.clear()  # the blocked request
    browser.run("document.querySelector('#source').focus()")
    browser.type("The dog. The cat.")
    browser.run("document.querySelector('#source').setSelectionRange(0, 0)")
    browser.hover("#backdrop .word")
    browser.click("#swap")
    browser.run("document.querySelector('#theme').dispatchEvent(new Event('change'))")
    time.sleep(0.4)  # longer than the delay after the last keystroke
    assert texts(browser, "#output") == [""]
    browser.run("localStorage.clear()")
    assert browser.problems == []


def test_tokens_have_their_probability(page: Browser, reference: Translator) -> None:
    enter(page, SENTENCES[0])
    (translation,) = best(reference, SENTENCES[:1])
    script = (
        "[...document.querySelectorAll('#output .token')].map((one) => one.style.getPropertyValue('--probability'))"
    )
    shown = [float(value) for value in page.run(script)]
    expected = [math.exp(value) for value in translation.token_log_probs[:-1]]
    assert shown
    for value in shown:  # a token without visible characters is not shown
        assert min(abs(value - other) for other in expected) < 1e-3
    page.click("#colors")
    assert page.run("getComputedStyle(document.querySelector('#output .token')).backgroundColor") != "rgba(0, 0, 0, 0)"


def test_hovering_over_a_word_highlights_aligned_words(page: Browser, reference: Translator) -> None:
    enter(page, TEXT)
    for index, translation in enumerate(best(reference, SENTENCES)):
        target = (translation.alignment or [(0, 0)])[0][1]
        page.hover(f"#output [data-sentence='{index}'][data-word='{target}']")
        sources = [source for source, other in translation.alignment or [] if other == target]
        expected = sorted(
            [*(["source", str(index), str(word)] for word in sources), ["target", str(index), str(target)]]
        )
        found = "[...document.querySelectorAll('.lit')].map(({dataset: d}) => [d.side, d.sentence, d.word]).sort()"
        assert page.run(found) == expected
    page.hover("#backdrop [data-sentence='0'][data-word='1']")  # the text area is above it
    assert page.run("document.querySelectorAll('#backdrop .lit').length") >= 1
    targets = [target for source, target in best(reference, SENTENCES[:1])[0].alignment or [] if source == 1]
    assert page.run("document.querySelectorAll('#output .lit').length") == len(targets)


def test_the_n_best_list_has_scores_and_can_be_chosen_from(page: Browser, reference: Translator) -> None:
    enter(page, SENTENCES[0])
    ((first, *others),) = reference.translate_n_best(SENTENCES[:1])
    shown = texts(page, "#n-best-list li")
    assert len(shown) == 1 + len(others) > 1
    for item, translation in zip(shown, [first, *others], strict=True):
        numbers = f" score {translation.score:.3f}, log-probability {translation.log_prob:.2f}"
        assert item == f"{translation.text}{numbers}"
    page.click("#n-best-list li:nth-child(2) button")
    assert texts(page, "#output .sentence") == [others[0].text]


def is_readable(text: str) -> bool:
    """Return whether a text has several words, and only characters that a prefix can contain."""
    return len(text.split()) > 1 and text.isprintable() and "\ufffd" not in text


def test_a_translation_that_a_shorter_list_lacks_is_not_shown(page: Browser) -> None:
    enter(page, SENTENCES[0])
    page.run("document.querySelector('#n-best').value = 3")
    page.run("document.querySelector('#n-best').dispatchEvent(new Event('input'))")
    page.wait("document.querySelectorAll('#n-best-list button').length === 3")
    (first,) = texts(page, "#n-best-list li:first-child button")
    page.run("document.querySelector('#n-best').value = 1")
    page.run("document.querySelector('#n-best').dispatchEvent(new Event('input'))")
    page.run("document.querySelector('#n-best-list li:last-child button').click()")
    page.wait("document.querySelectorAll('#n-best-list button').length === 1")
    wait_for_translation(page)
    assert texts(page, "#output") == [first]


def test_an_alternative_is_chosen_by_keys_and_pinned(page: Browser, reference: Translator) -> None:
    line = next(line for line in CANDIDATES if is_readable(best(reference, [line])[0].text))
    enter(page, line)
    (translation,) = best(reference, [line])
    words = translation.text.split()
    page.run("document.querySelector('#output .word').focus()")
    page.press("ArrowRight")
    assert page.run("document.activeElement.dataset.word") == "1"
    page.press("Enter", 13)
    before = f"{words[0]} "
    page.wait("document.querySelectorAll('#choices li').length > 1")
    found = reference.alternatives(line, before, 6, partial_word=True)
    expected = list(dict.fromkeys(one.text[len(before) :].split(" ")[0] for one in found))
    assert texts(page, "#choices strong") == expected
    assert page.run("document.activeElement.id") == "beginning"
    page.press("ArrowDown")
    page.press("Enter", 13)
    prefix = before + expected[1]
    page.wait(f"document.querySelector('#pinned-text').textContent === {json.dumps(prefix)}")
    wait_for_translation(page)
    (pinned,) = reference.translate_n_best([line], prefixes=[prefix])
    assert texts(page, "#output .sentence") == [pinned[0].text]
    page.click("#unpin")
    page.wait("document.querySelector('#pinned').hidden")
    assert texts(page, "#output .sentence") == [translation.text]


def test_a_prefix_is_not_used_for_another_target_language(
    browser: Browser, serve_page: ServePage, reference: Translator
) -> None:
    served = [
        ServedModel(target, ("en", target), SEARCH, reference, no_scorer, BatchingOptions(), "torch")
        for target in ("de", "fr")
    ]
    serve_page(Service(served, Limits()))
    browser.wait("document.querySelector('#target-language').options.length === 2")
    enter(browser, SENTENCES[0])
    (unpinned,) = texts(browser, "#output")
    browser.run("document.querySelector('#output .word').click()")
    browser.wait("document.querySelectorAll('#choices li').length > 1")
    browser.run("document.querySelectorAll('#choices li')[1].click()")
    browser.wait("!document.querySelector('#pinned').hidden")
    wait_for_translation(browser)
    (pinned,) = texts(browser, "#output")
    assert pinned != unpinned
    for target, expected in (("fr", unpinned), ("de", pinned)):
        browser.run(f"document.querySelector('#target-language').value = '{target}'")
        browser.run("document.querySelector('#target-language').dispatchEvent(new Event('change'))")
        browser.wait(f"document.querySelector('#output').textContent === {json.dumps(expected)}")
    for one in served:
        one.batcher.close()


def test_a_typed_beginning_is_completed(page: Browser, reference: Translator) -> None:
    enter(page, SENTENCES[0])
    page.click("#output .word")
    page.wait("document.querySelectorAll('#choices li').length > 0")
    page.type("Th")
    page.wait("document.querySelector('#choices strong')?.textContent.startsWith('Th')")
    found = reference.alternatives(SENTENCES[0], "Th", 6, partial_word=True)
    assert texts(page, "#choices strong") == list(dict.fromkeys(one.text.split(" ")[0] for one in found))
    page.press("Escape")
    assert page.run("document.querySelector('#alternatives').hidden")
    assert page.run("document.activeElement.dataset.word") == "0"


def test_enter_never_chooses_an_alternative_for_an_earlier_beginning(page: Browser) -> None:
    enter(page, SENTENCES[0])
    page.click("#output .word")
    page.wait("document.querySelectorAll('#choices li').length > 0")
    page.run(
        "document.querySelector('#beginning').dispatchEvent("
        "new KeyboardEvent('keydown', {key: 'Enter', isComposing: true, bubbles: true}))"
    )
    assert not page.run("document.querySelector('#alternatives').hidden")  # an input method received the key
    page.type("Th")
    page.press("Enter", 13)
    assert not page.run("document.querySelector('#alternatives').hidden")
    page.wait("document.querySelector('#choices strong')?.textContent.startsWith('Th')")
    page.press("Enter", 13)
    page.wait("document.querySelector('#pinned-text').textContent.startsWith('Th')")


def test_attention_is_drawn_for_each_layer_and_head(page: Browser, reference: Translator) -> None:
    enter(page, SENTENCES[0])
    page.click("#attention summary")
    page.wait("document.querySelectorAll('#heads button').length > 0")
    attention = reference.attention(SENTENCES[0], best(reference, SENTENCES[:1])[0])
    weights = np.array(attention.weights)  # (layers, heads, target, source)
    layers, heads = weights.shape[:2]
    names = page.run("[...document.querySelectorAll('#heads button')].map((one) => one.ariaLabel)")
    columns = ["mean", *(f"head {head + 1}" for head in range(heads))]
    assert names == [f"Layer {layer + 1}, {column}" for layer in range(layers) for column in columns]
    page.click("#heads button:last-child")
    strongest = [attention.source[index] for index in weights[-1, -1].argmax(axis=1)]
    described = ", ".join(f"{tgt} to {src}" for tgt, src in zip(attention.target, strongest, strict=True))
    assert page.run("document.querySelector('#map').ariaLabel") == f"Layer {layers}, head {heads}: {described}"
    opacity = """(() => {
        const canvas = document.querySelector('#heads button:last-child canvas');
        const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        return [...data].filter((_, i) => i % 4 === 3);
    })()"""
    assert np.array(page.run(opacity)) / 255 == pytest.approx(weights[-1, -1].ravel(), abs=0.01)


def test_the_attention_of_another_sentence_is_hidden(page: Browser) -> None:
    enter(page, "\n".join(SENTENCES[:2]))
    page.click("#attention summary")
    for index in (1, 0):
        page.run(f"document.querySelectorAll('#output .sentence')[{index}].querySelector('.word').click()")
        assert page.run("document.querySelector('#map').hidden")
        page.wait("!document.querySelector('#map').hidden")


@pytest.mark.parametrize(
    ("name", "column", "header"), [("a.txt", None, ""), ("b.TSV", 0, ""), ("c.tsv", 1, "number\tsentence\tlast")]
)
def test_a_file_is_translated_and_downloaded(
    page: Browser, reference: Translator, tmp_path: Path, name: str, column: int | None, header: str
) -> None:
    lines = [*SENTENCES, "", *(f"a dog {number}" for number in range(9))]  # more than the limit of a request
    rows, end = lines, "\n"
    if column is not None:
        cells = [["x", "y"] for _ in lines]
        for row, line in zip(cells, lines, strict=True):
            row.insert(column, line)
        rows, end = ["\t".join(row) for row in cells], "\r\n"
    content = "".join(f"{row}{end}" for row in ([header] if header else []) + rows)
    (tmp_path / name).write_text(content, encoding="utf-8", newline="")
    select_file(page, tmp_path / name)
    if column is not None:
        page.wait("!document.querySelector('#file-table').hidden")
        assert page.run("document.activeElement.id") == "file-column"
        assert texts(page, "#file-column option")[1] == ("2 (sentence)" if header else "2 (x)")
        page.run(f"document.querySelector('#file-column').value = '{column}'")
        if header:
            page.click("#file-header")
        page.click("#file-translate")
    expected = [translation.text for translation in best(reference, lines)]
    if column is not None:
        expected = [f"{row}\t{text}" for row, text in zip(rows, expected, strict=True)]
    if header:
        expected.insert(0, f"{header}\ttranslation")
    assert download(page, tmp_path, name) == "".join(f"{line}\n" for line in expected)
    assert texts(page, "#file-status") == [f"{name}: {len(lines)} lines translated"]


HTML = (
    "<!DOCTYPE html>\n<html><body><p class='x'>The <b>cat</b> sees a dog.</p>\n<script>1 < 2</script></body></html>\n"
)
SRT = "".join(
    f"{number}\r\n00:00:0{number},000 --> 00:00:0{number},900\r\n<i>A tree & a dog</i>\r\n\r\nA tree & a dog\r\n\r\n"
    for number in range(1, 8)
)


@pytest.mark.parametrize(("name", "content", "status"), [("a.html", HTML, "1 page"), ("a.srt", SRT, "7 subtitles")])
@pytest.mark.parametrize("engine", ["exact", "fast"])
def test_a_document_is_translated_and_downloaded(
    page: Browser, tmp_path: Path, name: str, content: str, status: str, engine: str
) -> None:
    if engine == "fast":
        pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed: pip install 'nmt[fast]'")
    page.run(f"document.querySelector('#model').value = '{engine}'")
    (tmp_path / name).write_text(content, encoding="utf-8", newline="")
    select_file(page, tmp_path / name)
    translated = download(page, tmp_path, name)
    assert texts(page, "#file-status") == [f"{name}: {status} translated"]
    pattern = re.escape(content)
    for text in ("The ", "cat", " sees a dog.", "A tree & a dog"):
        pattern = pattern.replace(re.escape(text), "[^<>\n]*")
    assert re.fullmatch(pattern, translated)
    assert translated != content
    assert "&amp;" not in translated or name == "a.html"


def record_contexts(echo: EchoTranslator, sides: ContextSides, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Translate to upper case with a context of two lines; returns the context of each text, once translated."""
    found: dict[str, Any] = {}

    def translate(inputs: Sequence[TranslatorInput], **_: object) -> list[list[Translation]]:
        found.update((one.text, list(one.context)) for one in inputs)
        return [[Translation(one.text.upper(), 0.0, 0.0, [])] for one in inputs]

    monkeypatch.setattr(echo, "translate_inputs", translate)
    monkeypatch.setattr(echo, "context", Context(2, sides))
    return found


@pytest.mark.parametrize("sides", ["source", "both"])
def test_the_lines_of_a_file_are_the_context_of_later_ones(
    browser: Browser,
    serve_page: ServePage,
    echo: EchoTranslator,
    echo_service: MakeService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sides: ContextSides,
) -> None:
    found = record_contexts(echo, sides, monkeypatch)
    serve_page(echo_service())
    (tmp_path / "a.txt").write_text("a\nb\nc\nd\n \ne\n", encoding="utf-8")
    select_file(browser, tmp_path / "a.txt")
    assert download(browser, tmp_path, "a.txt") == "A\nB\nC\nD\n \nE\n"
    expected = {"a": "", "b": "a", "c": "ab", "d": "bc", " ": "cd", "e": ""}
    assert found == {
        text: [one if sides == "source" else (one, one.upper()) for one in context]
        for text, context in expected.items()
    }


@pytest.mark.parametrize("sides", ["source", "both"])
def test_subtitles_of_one_request_are_the_context_of_the_next(
    browser: Browser,
    serve_page: ServePage,
    echo: EchoTranslator,
    echo_service: MakeService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sides: ContextSides,
) -> None:
    found = record_contexts(echo, sides, monkeypatch)
    serve_page(echo_service(Limits(lines=16)))  # four subtitles per request
    content = "".join(f"{i}\n00:00:01,000 --> 00:00:02,500\n{text}\n\n" for i, text in enumerate("abcdefghij"))
    (tmp_path / "a.srt").write_text(content, encoding="utf-8")
    select_file(browser, tmp_path / "a.srt")
    assert download(browser, tmp_path, "a.srt") == re.sub("(?m)^[a-j]$", lambda line: line[0].upper(), content)
    sources = {text: [one if sides == "source" else one[0] for one in context] for text, context in found.items()}
    assert {text: "".join(sources[text]) for text in "befij"} == {"b": "a", "e": "cd", "f": "de", "i": "gh", "j": "hi"}


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


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.pdf",
            b"x",
            "a.pdf: unsupported format; the file must be one of .txt, .tsv, .html, .htm, .xhtml, .srt; convert it",
        ),
        ("a.txt", b"x" * 30_000, "a.txt: a line is too large; the limit is 20000 bytes; split it"),
        (
            "a.srt",
            b"a dog",
            "a.srt: the text has no subtitles; each must follow a line such as "
            "00:00:01,000 --> 00:00:02,500; correct it",
        ),
        ("a.txt", b"\xff\xfe", "a.txt: not UTF-8; convert it"),
        ("a.txt", "The cat".encode("utf-16-le"), "a.txt: UTF-16; convert it to UTF-8"),
        ("a.tsv", b"", "a.tsv: empty; select another file"),
    ],
)
def test_a_wrong_file_is_an_error(page: Browser, tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    select_file(page, tmp_path / name)
    page.wait(f"document.querySelector('#file-status').textContent === {json.dumps(message)}")
    page.problems.clear()  # Chromium logs the status 400


@pytest.mark.parametrize(
    ("content", "column", "has_header", "message"),
    [
        ("a\tb\nc\n", 1, False, "line 2 has no column 2; every line must have it; select another one"),
        (
            "a\tb\nc\n",
            0,
            False,
            "line 2 differs from line 1 in its number of columns (1 and 2); correct the file",
        ),
        (
            "id\ttranslation\n1\ta dog\n",
            1,
            True,
            "the file already has a column 'translation', the name of the new column; rename the existing one",
        ),
    ],
)
def test_a_wrong_table_is_an_error(
    page: Browser, tmp_path: Path, content: str, column: int, has_header: bool, message: str
) -> None:
    (tmp_path / "a.tsv").write_text(content, encoding="utf-8")
    select_file(page, tmp_path / "a.tsv")
    page.wait("!document.querySelector('#file-table').hidden")
    page.run(f"document.querySelector('#file-column').value = '{column}'")
    if has_header:
        page.click("#file-header")
    page.click("#file-translate")
    assert texts(page, "#file-status") == [f"a.tsv: {message}"]


def test_a_refused_request_is_shown(page: Browser) -> None:
    enter(page, "a dog")
    page.run("document.querySelector('#forbidden').value = 'x,'.repeat(101)")
    page.run("document.querySelector('#forbidden').dispatchEvent(new Event('input'))")
    page.wait("!document.querySelector('#error').hidden")
    assert texts(page, "#error")[0].startswith("forbidden: List should have at most 100 items")
    page.problems.clear()  # Chromium logs the status 400


@pytest.mark.parametrize("limits", [Limits(), Limits(lines=100), Limits(characters=1_000), Limits(body_bytes=20_000)])
def test_a_long_text_is_sent_in_several_requests(
    browser: Browser, serve_page: ServePage, echo_service: MakeService, limits: Limits
) -> None:
    serve_page(echo_service(limits))
    lines = [f"a{i}" for i in range(1_201)]
    browser.run(f"document.querySelector('#source').value = {json.dumps(chr(10).join(lines))}")
    browser.run("document.querySelector('#source').dispatchEvent(new Event('input'))")
    browser.wait(f"document.querySelector('#output').textContent.includes('A{len(lines) - 1}')")
    wait_for_translation(browser)
    assert texts(browser, "#output") == ["\n".join(lines).upper()]


def test_a_term_of_the_glossary_is_translated_as_given(page: Browser) -> None:
    enter(page, SENTENCES[0])
    assert "tree" not in "".join(texts(page, "#output"))
    for lines, note in (
        (
            "\\n\\nunfinished\\n=\\na = b = c\\n = ",
            "Unused lines: 3, 4, 5, 6; write term = translation, with one equals sign",
        ),
        ("\\n \\n", ""),
    ):
        change(page, "glossary", f"dog = tree{lines}")
        page.wait("document.querySelector('#output').textContent.includes('tree')")
        page.wait(f"document.querySelector('#glossary-note').textContent === '{note}'")


def change(page: Browser, field: str, value: object) -> None:
    """Set the value of an option."""
    page.run(f"document.querySelector('#{field}').value = '{value}'")
    page.run(f"document.querySelector('#{field}').dispatchEvent(new Event('input'))")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("beam-size", 33, "Beam size: Value must be less than or equal to 32."),
        ("beam-size", "", "Beam size: Please fill out this field."),
        ("length-alpha", -1, "Length penalty (alpha): Value must be greater than or equal to 0."),
        ("n-best", 0, "Translations per sentence: Value must be greater than or equal to 1."),
    ],
)
def test_an_invalid_option_is_named(page: Browser, tmp_path: Path, field: str, value: object, message: str) -> None:
    change(page, field, value)
    page.wait("!document.querySelector('#error').hidden")
    assert texts(page, "#error") == [message]
    (tmp_path / "a.txt").write_text("a\n", encoding="utf-8")
    select_file(page, tmp_path / "a.txt")
    page.wait(f"document.querySelector('#file-status').textContent === {json.dumps('a.txt: ' + message)}")


def test_search_options_of_the_server_may_exceed_the_limits_of_the_form(
    browser: Browser, serve_page: ServePage, echo: EchoTranslator, echo_service: MakeService
) -> None:
    service = echo_service()
    service.models["en-de"].decode = DecodeRecipe(beam_size=40, length_alpha=0.65)
    serve_page(service)
    enter(browser, "a")
    assert (texts(browser, "#output"), echo.decode_options[-1].beam_size) == (["A"], 40)


def test_fields_that_ctranslate2_does_not_support_are_disabled_with_a_reason(page: Browser) -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed: pip install 'nmt[fast]'")
    page.run("document.querySelector('#model').value = 'fast'")
    page.run("document.querySelector('#model').dispatchEvent(new Event('change'))")
    enter(page, SENTENCES[0])
    assert page.run("document.querySelector('#required').disabled")
    assert page.run("document.querySelector('#glossary').disabled")
    assert len(texts(page, "#reasons li")) == 5
    assert all("use --engine torch" in reason for reason in texts(page, "#reasons li"))
    page.run("document.querySelector('#attention').open = true")
    page.wait("document.querySelector('#attention-note').textContent.includes('use --engine torch')")
    page.click("#output .word")
    page.wait("document.querySelectorAll('#choices li').length > 1")
    assert page.run("document.querySelector('#beginning').readOnly")
    page.run("document.querySelector('#model').value = 'exact'")
    page.run("document.querySelector('#model').dispatchEvent(new Event('change'))")
    page.wait("document.querySelector('#attention-note').textContent.startsWith('Attention from each target token')")


def test_the_theme_follows_the_system_or_the_switch(page: Browser) -> None:
    def background() -> Any:
        return page.run("getComputedStyle(document.body).backgroundColor")

    colors = []
    for system in ("light", "dark"):
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": system}])
        colors.append(background())
    assert colors[0] != colors[1]
    for theme, color in zip(("light", "dark"), colors, strict=True):
        page.run(f"document.querySelector('#theme').value = '{theme}'")
        page.run("document.querySelector('#theme').dispatchEvent(new Event('change'))")
        assert background() == color
    page.run("localStorage.clear()")
    page.call("Emulation.setEmulatedMedia", features=[])


def test_a_narrow_page_has_one_column_and_does_not_scroll_sideways(page: Browser) -> None:
    page.call("Emulation.setDeviceMetricsOverride", width=360, height=800, deviceScaleFactor=1, mobile=False)
    enter(page, TEXT)
    page.run("document.querySelector('#attention').open = true")
    page.wait("document.querySelectorAll('#heads button').length > 0")
    assert page.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    boxes = page.run(
        "[...document.querySelectorAll('.panel:not([hidden])')].map((one) => one.getBoundingClientRect().left)"
    )
    assert len(set(boxes)) == 1


def test_every_control_has_an_accessible_name(page: Browser) -> None:
    enter(page, SENTENCES[0])
    page.run("document.querySelectorAll('details').forEach((one) => one.open = true)")
    page.wait("document.querySelectorAll('#heads button').length > 0")
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "combobox", "textbox", "checkbox", "spinbutton", "image", "dialog", "listbox", "link"}
    shown = [node for node in nodes if not node["ignored"] and node["role"]["value"] in roles]
    assert len(shown) > 15
    assert [node for node in shown if not node["name"]["value"]] == []


def test_swapping_languages_keeps_a_text_that_is_not_translated_yet(
    browser: Browser, serve_page: ServePage, echo: EchoTranslator
) -> None:
    served = [
        ServedModel("-".join(pair), pair, DecodeRecipe(), cast(TextTranslator, echo), no_scorer, BatchingOptions(), "")
        for pair in (LANGUAGES, LANGUAGES[::-1])
    ]
    serve_page(Service(served, Limits()))
    echo.may_run.clear()
    browser.run("document.querySelector('#source').focus()")
    browser.type("a")
    browser.wait("document.querySelectorAll('#output .pending').length === 1")
    browser.click("#swap")
    values = "['source', 'source-language'].map((id) => document.getElementById(id).value)"
    assert browser.run(values) == ["a", "de"]
    echo.may_run.set()
    wait_for_translation(browser)
    browser.click("#swap")
    assert browser.run(values) == ["A", "en"]
    for one in served:
        one.batcher.close()


def test_no_shown_translation_is_discarded(browser: Browser, serve_page: ServePage, echo_service: MakeService) -> None:
    serve_page(echo_service())
    lines = [f"a{i}" for i in range(500)]
    for alpha in (0.1, 0.2, 0.3, 0.4, 0.1):  # 2,000 results are stored; the first ones are used again
        browser.run(f"document.querySelector('#length-alpha').value = {alpha}")
        browser.run(f"document.querySelector('#source').value = {json.dumps(chr(10).join(lines))}")
        browser.run("document.querySelector('#source').dispatchEvent(new Event('input'))")
        time.sleep(0.4)
        wait_for_translation(browser)
    browser.run("document.querySelector('#source').focus()")
    browser.call("Input.insertText", text="\nb")
    browser.wait("document.querySelector('#output').textContent.endsWith('B')")
    wait_for_translation(browser)
    browser.run("document.querySelector('#source').setSelectionRange(9, 9)")  # shows the output again
    time.sleep(0.4)
    assert texts(browser, "#output") == ["\n".join([*lines, "b"]).upper()]


def test_the_newest_text_wins(
    browser: Browser, serve_page: ServePage, echo: EchoTranslator, echo_service: MakeService, tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text("good 日本\n", encoding="utf-8")
    service = echo_service(Limits(), ApiKeys(tmp_path / "keys"))
    serve_page(service)
    browser.run("document.querySelector('#source').focus()")
    browser.type("a\n")
    browser.wait("!document.querySelector('#error').hidden")
    assert texts(browser, "#error") == [
        "an API key is required; send 'Authorization: Bearer KEY', or api_key to /translate or /detect"
    ]
    echo.may_run.clear()
    browser.run("document.querySelector('#key').focus()")
    browser.type("good 日本")
    batcher = service.models["en-de"].batcher
    wait_until(lambda: bool(echo.batches))  # the first text occupies the worker thread
    browser.run("document.querySelector('#source').focus()")
    browser.type("b\n")
    wait_until(lambda: batcher.num_waiting == 1)
    browser.type("c")
    browser.wait("document.querySelectorAll('#output .pending').length === 3")
    aborted = 'nmt_requests_total{path="/v1/translate",status="499"} 2\n'
    wait_until(lambda: aborted in service.metrics.render(service.models.values()) and batcher.num_waiting == 1)
    echo.may_run.set()
    wait_for_translation(browser)
    assert texts(browser, "#output") == ["A\nB\nC"]
