"""Typed texts in the web page: what it shows equals what the translator returns."""

import json
import math
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from nmt.decode.text_translator import TextTranslator
from nmt.decode.translator import Translator
from nmt.recipe import DecodeRecipe
from nmt.serve.batching import BatchingOptions, QueueFullError
from nmt.serve.models import ServedModel
from nmt.serve.service import ApiKeys, Limits, Service
from tests.serve.browser.chromium import Browser
from tests.serve.browser.conftest import (
    SEARCH,
    SENTENCES,
    TEXT,
    ServePage,
    best,
    download,
    enter,
    needs_chromium,
    select_file,
    texts,
    wait_for_translation,
)
from tests.serve.conftest import LANGUAGES, EchoTranslator, MakeService, no_scorer
from tests.waiting import wait_until

pytestmark = needs_chromium


def test_a_text_is_translated_sentence_by_sentence(page: Browser, reference: Translator) -> None:
    enter(page, TEXT)
    expected = [translation.text for translation in best(reference, SENTENCES)]
    assert len(set(expected)) == 3
    assert texts(page, "#output .sentence") == expected
    assert texts(page, "#output") == [f"{expected[0]} {expected[1]}\n\n{expected[2]}"]


def test_abbreviations_do_not_end_sentences(browser: Browser, serve_page: ServePage, echo_service: MakeService) -> None:
    serve_page(echo_service())
    enter(browser, "Dr. Smith left. J. R. Brown too.\nNo. 5 is here.")
    expected = ["DR. SMITH LEFT.", "J. R. BROWN TOO.", "NO. 5 IS HERE."]
    assert texts(browser, "#output .sentence") == expected
    browser.run("document.querySelector('#split').click()")
    browser.wait("document.querySelectorAll('#output .sentence').length === 2")
    wait_for_translation(browser)  # otherwise, the server could reject the request while it shuts down


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


def test_a_refused_request_is_shown(page: Browser) -> None:
    enter(page, "a dog")
    page.run("document.querySelector('#forbidden').value = 'x,'.repeat(101)")
    page.run("document.querySelector('#forbidden').dispatchEvent(new Event('input'))")
    page.wait("!document.querySelector('#error').hidden")
    assert texts(page, "#error")[0].startswith("forbidden must have at most 100 items")
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
