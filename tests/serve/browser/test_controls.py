"""Options, models and the theme of the web page."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nmt.recipe import DecodeRecipe
from tests.extras import import_ctranslate2
from tests.serve.browser.chromium import Browser
from tests.serve.browser.conftest import SENTENCES, TEXT, ServePage, change, enter, needs_chromium, select_file, texts
from tests.serve.conftest import EchoTranslator, MakeService

pytestmark = needs_chromium


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
    browser.click("#swap")
    browser.run("document.querySelector('#theme').dispatchEvent(new Event('change'))")
    time.sleep(0.4)  # longer than the delay after the last keystroke
    assert texts(browser, "#output") == [""]
    browser.run("localStorage.clear()")
    assert browser.problems == []


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
    import_ctranslate2()
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
