"""Alternatives and typed beginnings in the web page."""

import json

from nmt.decode.translator import Translator
from nmt.serve.batching import BatchingOptions
from nmt.serve.models import ServedModel
from nmt.serve.service import Limits, Service
from tests.serve.browser.chromium import Browser
from tests.serve.browser.conftest import (
    CANDIDATES,
    SEARCH,
    SENTENCES,
    ServePage,
    best,
    enter,
    needs_chromium,
    texts,
    wait_for_translation,
)
from tests.serve.conftest import no_scorer

pytestmark = needs_chromium


def is_readable(text: str) -> bool:
    """Return whether a text has several words, and only characters that a prefix can contain."""
    return len(text.split()) > 1 and text.isprintable() and "\ufffd" not in text


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
