"""Lines keep their markup and items, for any output of the wrapped translator."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import cast
from xml.etree import ElementTree

import pytest
from keep_check.marked_lines import marked_line
from keep_check.noisy_translator import NoisyTranslator

from nmt.decode.glossary import Glossary, Required, Term
from nmt.decode.task import TranslatorInput
from nmt.decode.text_translator import TextTranslator
from nmt.decode.translation import Translation
from nmt.errors import UserError
from nmt.keep.items import Item, ItemGrammar, is_newly_joined
from nmt.keep.markup import MarkedText
from nmt.keep.translator import Fallbacks, PreservingTranslator, unspaced_markup
from nmt.recipe import Context

KINDS = ("markup", "numbers", "urls", "emails", "placeholders")
GRAMMAR = ItemGrammar(KINDS, "en", "de")


def keeping(noisy: NoisyTranslator, *kinds: str) -> PreservingTranslator:
    return PreservingTranslator(cast(TextTranslator, noisy), kinds or KINDS, ("en", "de"))


def best_of(translator: PreservingTranslator, line: str) -> str:
    return translator.start_translation([TranslatorInput(line)])()[0][0].text


def translate(noisy: NoisyTranslator, line: str, *kinds: str) -> str:
    return best_of(keeping(noisy, *kinds), line)


def tags_and_text(line: str) -> tuple[list[str], str]:
    """Parse a line of well-formed XML content; return its tags with attributes, sorted, and its text."""
    root = ElementTree.fromstring(f"<r>{line}</r>")
    return sorted(f"{node.tag} {sorted(node.attrib.items())}" for node in root.iter()), "".join(root.itertext())


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("can_require", [True, False])
@pytest.mark.parametrize("aligns", [True, False])
def test_every_tag_and_item_is_kept(noise: float, can_require: bool, aligns: bool) -> None:
    """An XML parser finds the tags of both sides. The items of the source are those that its grammar finds."""
    rng = random.Random(7)
    lines = [marked_line(rng) for _ in range(150)]
    translator = keeping(NoisyTranslator(noise, can_require=can_require, aligns=aligns))
    n_best_lists = translator.start_translation(list(map(TranslatorInput, lines)))()
    for line, (best, *others) in zip(lines, n_best_lists, strict=True):
        assert not others and best.alignment is None
        tags, _ = tags_and_text(line)
        found_tags, found_text = tags_and_text(best.text)
        assert found_tags == tags
        items = GRAMMAR.find_source(MarkedText.parse(line).text)
        expected = Counter((item.kind, GRAMMAR.written(item)) for item in items)
        found = Counter((item.kind, item.text) for item in GRAMMAR.find_target(found_text))
        assert found == expected, (line, best.text)
    total = translator.fallbacks.searched + translator.fallbacks.split + translator.fallbacks.copied
    assert (total == 0) is (noise == 0.0)
    assert translator.fallbacks.searched > 0 or noise == 0.0


def test_a_translation_with_its_items_is_not_searched_again() -> None:
    noisy = NoisyTranslator(0.0)
    assert translate(noisy, "a &lt;b&gt; <b>1,234.5</b> {x}") == "a &lt;b&gt; <b>1.234,5</b> {x}"
    assert noisy.calls == [["a <b> 1,234.5 {x}"]]


class Script(NoisyTranslator):
    """Returns a scripted translation of each line, with links in order.

    translations:   by line
    required:       by line, for inputs with required phrases; None: required phrases are not supported
    without_digits: by line, for searches without digits; other lines have the same translation with and without digits
    """

    def __init__(
        self,
        translations: dict[str, str],
        required: dict[str, str] | None = None,
        without_digits: dict[str, str] | None = None,
    ) -> None:
        super().__init__(0.0, can_require=required is not None)
        self.translations, self.required = translations, required or {}
        self.without_digits = without_digits or {}

    def _translate(self, line: str, prefix: str, required: object) -> Translation:
        text = self.required[line] if required or self.require else self.translations[line]
        text = text if self.digits else self.without_digits.get(line, text)
        links = [(word, word) for word in range(len(text.split()))]
        return Translation(text, -1.0, -1.0, [], [], links)


def test_searches_again_with_missing_items() -> None:
    line = "buy 3 of {x} for 1,500 euros"
    script = Script({line: "kaufe 3 für 1 Euro"}, {line: "kaufe 3 von {X} für 1,500 Euro"})
    translator = keeping(script)
    assert best_of(translator, line) == "kaufe 3 von {x} für 1.500 Euro"
    assert translator.fallbacks == Fallbacks(searched=1)


def test_sentences_are_searched_again_or_split_alone() -> None:
    """Tags may enclose several sentences. A point within an item, or required phrases, do not separate sentences."""
    line = "We <b>buy 2 of {x}. Dogs see <code>Big. Apple</code>. He has 7</b> cats. Dr. No sits."
    first, second, third, fourth = "We buy 2 of {x}.", "Dogs see Big. Apple.", "He has 7 cats.", "Dr. No sits."
    paragraph = f"{first} {second} {third} {fourth}"
    script = Script(
        {
            paragraph: "Nichts.",
            first: "Wir kaufen 2 von.",
            second: "Hunde sehen Big. Apple.",
            third: "Er hat Katzen.",
            fourth: "Doktor Nein sitzt.",
            "He has": "Er hat.",
            "cats.": "Katzen.",
        },
        {first: "Wir kaufen 2 von {x}.", third: "Er hat Katzen.", paragraph: "2 {x} Big. Apple 7"},
    )
    script.splits_sentences = True
    translator = keeping(script)
    expected = "Wir <b>kaufen 2 von {x}. Hunde sehen <code>Big. Apple</code>. Er hat 7</b> Katzen. Doktor Nein sitzt."
    assert best_of(translator, line) == expected
    assert script.calls == [[paragraph], [first, second, third, fourth], [first, third], ["He has", "cats."]]
    assert translator.fallbacks == Fallbacks(searched=1, split=1)
    item = TranslatorInput(line, required=["2"])
    assert translator.start_translation([item])()[0][0].text.startswith("<b>2 {x}")


def test_a_line_that_is_translated_sentence_by_sentence_counts_as_translated_again() -> None:
    script = Script({"See {x}. He has it.": "", "See {x}.": "Sieh {x}.", "He has it.": "Er hat es."})
    script.splits_sentences = True
    translator = keeping(script)
    assert best_of(translator, "See {x}. He has it.") == "Sieh {x}. Er hat es."
    assert translator.fallbacks.describe() == "kept all items; 1 line translated again"


def test_sentences_of_a_document_have_the_context_of_their_line() -> None:
    script = Script({"See {x}. He has it.": "", "See {x}.": "Sieh {x}.", "He has it.": "Er hat es."})
    script.splits_sentences = True
    one_side, both_sides = (Context(2), ["Hi."], ["Hi.", "See {x}."]), (Context(2, "both"), [("Hi.", "Hallo.")], None)
    for script.context, first, second in (one_side, both_sides):
        item = TranslatorInput("See {x}. He has it.", context=first)
        assert keeping(script).start_translation([item])()[0][0].text == "Sieh {x}. Er hat es."
        assert script.contexts == [first, second or first]


@pytest.mark.slow
def test_paragraphs_keep_every_tag_and_item() -> None:
    rng = random.Random(7)
    lines = [f"{marked_line(rng)}. X {marked_line(rng)}! Y {marked_line(rng)}" for _ in range(100)]
    noisy = NoisyTranslator(0.3)
    noisy.splits_sentences = True
    translator = keeping(noisy)
    n_best_lists = translator.start_translation(list(map(TranslatorInput, lines)))()
    for line, (best,) in zip(lines, n_best_lists, strict=True):
        assert tags_and_text(best.text)[0] == tags_and_text(line)[0] and best.alignment is None
        items = Counter(map(GRAMMAR.written, GRAMMAR.find_source(MarkedText.parse(line).text)))
        assert Counter(item.text for item in GRAMMAR.find_target(tags_and_text(best.text)[1])) == items


def test_items_that_exceed_the_beam_or_the_output_are_not_required() -> None:
    """With too small a beam, other words are often missing."""

    class SmallBeam(Script):
        def fits_beam(self, item: TranslatorInput) -> bool:
            if item.required == ("{long}",):
                raise UserError("the required phrases exceed the maximum length")
            return False

    for line in ("see {x}", "see {long}"):
        translator = keeping(SmallBeam({line: "sieh", "see": "siehe"}, {line: line}))
        assert best_of(translator, line) == line.replace("see", "siehe")
        assert translator.fallbacks == Fallbacks(split=1)


@pytest.mark.parametrize("can_require", [True, False])
def test_content_that_is_not_translated_is_kept(can_require: bool) -> None:
    """The other items are found outside of it, and the glossary does not match in it."""
    line = 'open <b translate="no">Big Apple 2</b> at 3 now'
    plain = "open Big Apple 2 at 3 now"
    required = {plain: "öffne jetzt big  apple 2 um 3"} if can_require else None
    script = Script({plain: "öffne jetzt Apfel um 3", "open": "öffne", "at": "um", "now": "jetzt"}, required)
    translator = keeping(script, "markup", "numbers")
    expected = "öffne jetzt <b>Big Apple 2</b> um 3" if can_require else "öffne <b>Big Apple 2</b> um 3 jetzt"
    assert best_of(translator, line) == expected.replace("<b>", '<b translate="no">')
    assert translator.fallbacks == (Fallbacks(searched=1) if can_require else Fallbacks(split=1))
    glossary = Glossary([Term("apple", ("Apfel",)), Term("open", ("öffne",))])
    own = translator.own_glossary(glossary, line)
    assert own is not None and [term.source for term in own.find(plain)] == ["open"]


def test_symbols_that_are_not_translated_are_kept() -> None:
    line = "press <kbd>+</kbd> or <code>&amp;&amp;</code>."
    script = Script({"press + or &&.": "drücke oder.", "press": "drücke", "or": "oder"})
    translator = keeping(script, "markup")
    assert best_of(translator, line) == "drücke <kbd>+</kbd> oder <code>&amp;&amp;</code>."
    assert translator.fallbacks == Fallbacks(split=1)


@pytest.mark.parametrize("keys", ["Ctrl+C", "Strg+C", "Strg-C", ""])
def test_keys_joined_by_symbols_are_kept_together(keys: str) -> None:
    line = "press <kbd>Ctrl</kbd>+<kbd title='&amp;'>C</kbd> now"
    script = Script({"press Ctrl+C now": f"drücke {keys} jetzt", "press": "drücke", "now": "jetzt"})
    expected = "drücke <kbd>Ctrl</kbd>+<kbd title='&amp;'>C</kbd> jetzt"
    assert best_of(keeping(script, "markup"), line) == expected


def test_code_within_a_longer_word_is_accepted_only_from_the_first_search() -> None:
    """A second search may add letters to the code that it must write."""
    line, plain = "press <kbd>Ctrl+C</kbd> now", "press Ctrl+C now"
    first = Script({plain: "jetzt Ctrl+C-Taste"})
    assert best_of(keeping(first, "markup"), line) == "jetzt <kbd>Ctrl+C</kbd>-Taste"
    second = Script({plain: "jetzt", "press": "drücke", "now": "jetzt"}, {plain: "drücke Ctrl+C-CC jetzt"})
    translator = keeping(second, "markup")
    assert best_of(translator, line) == "drücke <kbd>Ctrl+C</kbd> jetzt"
    assert translator.fallbacks == Fallbacks(split=1)


@pytest.mark.parametrize(
    ("line", "plain", "translation", "expected"),
    [
        ("we see <code>foo()</code>", "we see foo()", "wir sehen foo().", "wir sehen <code>foo()</code>."),
        ("buy <b translate='no'>X</b> 2", "buy X 2", "kaufe (X) 2", "kaufe (<b translate='no'>X</b>) 2"),
        ("the <b>dog</b>", "the dog", "der Hund.", "der <b>Hund</b>."),  # punctuation of the translation
        ("a <b>a</b>", "a a", "ein ab.", "ein <b>ab</b>."),  # a part of a word
    ],
)
def test_punctuation_around_copied_content_stays_outside_of_its_tags(
    line: str, plain: str, translation: str, expected: str
) -> None:
    assert best_of(keeping(Script({plain: translation}), "markup"), line) == expected


def test_second_searches_are_not_counted_as_split_long_or_reused_lines() -> None:
    class Counting(Script):
        def start_translation(
            self, inputs: Sequence[TranslatorInput], n_best: int | None = None
        ) -> Callable[[], list[list[Translation]]]:
            self.lines_split, self.lines_longer = self.lines_split + len(inputs), self.lines_longer + 2 * len(inputs)
            self.lines_reused += 3 * len(inputs)
            return super().start_translation(inputs, n_best)

    lines = ["buy {x}", "buy {y} now"]
    script = Counting({"buy": "kaufe", "now": "jetzt"} | dict.fromkeys(lines, "kaufe"), dict.fromkeys(lines, "kaufe"))
    translator = keeping(script, "placeholders")
    for _ in range(2):
        translator.start_translation(list(map(TranslatorInput, lines)))()
    assert translator.fallbacks == Fallbacks(split=4)
    assert (translator.lines_split, translator.lines_longer, translator.lines_reused) == (4, 8, 12)


def test_lines_with_too_many_open_elements_count_as_not_translated() -> None:
    translator = keeping(NoisyTranslator(0.0))
    lines = [f"{'<b>' * number}a red hat{'</b>' * number}" for number in (100, 101)]
    kept = translator.start_translation(list(map(TranslatorInput, lines)))()
    assert [best.text for (best,) in kept] == lines
    assert translator.fallbacks == Fallbacks(copied=1)
    assert translator.fallbacks.describe() == "kept all items; 1 line not translated"


def test_a_line_without_output_does_not_affect_others() -> None:
    class OneFails(Script):
        def _translate(self, line: str, prefix: str, required: object) -> Translation:
            if required and line.startswith("see"):
                raise UserError("the required phrases exceed the maximum length")
            return super()._translate(line, prefix, required)

    names = "abcde"
    lines = [*(f"buy {{{name}}}" for name in names), "see {x}"]
    again = {line: line.replace("buy", "kaufe") for line in lines}
    translator = keeping(OneFails({**dict.fromkeys(lines, "kauf"), "see": "siehe"}, again))
    found = translator.start_translation([TranslatorInput(line) for line in lines])()
    assert [translations[0].text for translations in found] == [*(again[line] for line in lines[:-1]), "siehe {x}"]
    assert translator.fallbacks == Fallbacks(searched=5, split=1)


@pytest.mark.parametrize("can_require", [True, False])
def test_added_digits_are_forbidden_in_a_second_search(can_require: bool) -> None:
    line = "two dogs sit"
    without_digits = {line: "zwei Hunde sitzen"}
    script = Script({line: "2 Hunde sitzen"}, {} if can_require else None, without_digits)
    translator = keeping(script)
    assert best_of(translator, line) == "zwei Hunde sitzen"
    assert translator.fallbacks == Fallbacks(searched=1)
    assert translate(script, line, "urls", "markup") == "2 Hunde sitzen"


def test_text_between_items_is_translated_without_digits() -> None:
    line = "two dogs sit at 10 am."
    script = Script(
        {line: "zwei Hunde sitzen an 1 1 10.", "two dogs sit at": "2 Hunde sitzen um", "am.": "Uhr 1."},
        required={},
        without_digits={"two dogs sit at": "zwei Hunde sitzen um", "am.": "Uhr."},
    )
    translator = keeping(script)
    assert best_of(translator, line) == "zwei Hunde sitzen um 10 Uhr."
    assert translator.fallbacks == Fallbacks(split=1)


def test_letters_next_to_numbers_are_copied_in_split_lines() -> None:
    line = "A4, 10km to gate B12b, 4th {x}s of 37Hunde"
    parts = {"to gate": "bis Tor", "s of": "s von", "Hunde": "DOGS"}
    assert translate(Script({line: "", **parts}), line) == "A4, 10km bis Tor B12b, 4th {x}s von 37DOGS"
    script = Script({"37\u5c81": "", "\u5c81": "years"})
    chinese = PreservingTranslator(cast(TextTranslator, script), ["numbers"], ("zh", "en"))
    assert best_of(chinese, "37\u5c81") == "37years"


def test_requested_items_may_be_added() -> None:
    line = "two dogs"
    script = Script({line: "2 Hunde"}, {line: "2 Hunde"}, {line: "zwei Hunde"})
    for item in (
        TranslatorInput(line, prefix="2"),
        TranslatorInput(line, required=["2 Hunde"]),
        TranslatorInput(line, required=[("zwei Hunde", "2 Hunde")]),
        TranslatorInput(line, glossary=Glossary([Term("two dogs", ("2 Hunde",))])),
    ):
        translator = keeping(script)
        assert translator.start_translation([item])()[0][0].text == "2 Hunde"
        assert translator.fallbacks == Fallbacks()
    script.require = ("2 Hunde",)
    assert translate(script, line) == "2 Hunde"


def test_requested_items_stay_when_added_ones_are_removed() -> None:
    line = "two dogs sit at 10 am."
    script = Script({line: "3 Hunde", "two dogs sit at": "2 Hunde 3", "am.": "Uhr."}, {"two dogs sit at": "2 Hunde 3"})
    item = TranslatorInput(line, required=["2 Hunde"])
    script.required[line] = "3 Hunde"
    assert keeping(script).start_translation([item])()[0][0].text == "2 Hunde  10 Uhr."


def test_a_required_item_is_not_joined_to_letters() -> None:
    line = "he is 37"
    script = Script({line: "er ist alt", "he is": "er ist"}, {line: "er ist 37en"})
    assert translate(script, line) == "er ist 37"
    script = Script({"he is {x}": "er ist alt", "he is": "er ist"}, {"he is {x}": "er ist {x}en"})
    assert translate(script, "he is {x}") == "er ist {x}"
    script = Script({"the 1990s": "die Neunziger"}, {"the 1990s": "die 1990er"})
    assert translate(script, "the 1990s") == "die 1990er"
    korean = PreservingTranslator(
        cast(TextTranslator, Script({line: "\uc138"}, {line: "37\uc138"})), ["numbers"], ("en", "ko")
    )
    assert best_of(korean, line) == "37\uc138"


def test_splits_at_items() -> None:
    line = "He wrote <b>to info@example.org</b>, and then left 17 dogs."
    script = Script(
        {
            "He wrote to info@example.org, and then left 17 dogs.": "Er schrieb.",
            "He wrote to": "Er schrieb an.",
            "and then left": "und verließ dann",
            "dogs.": "Hunde.",
        }
    )
    translator = keeping(script)
    text = best_of(translator, line)
    assert text == "Er schrieb <b>an info@example.org</b>, und verließ dann 17 Hunde."
    assert translator.fallbacks == Fallbacks(split=1)
    script.translations["and then left"] = "und verließ 999 {x} dann"
    assert translate(script, line) == "Er schrieb <b>an info@example.org</b>, und verließ   dann 17 Hunde."


def test_added_full_stops_are_removed_in_other_scripts() -> None:
    for stop in ("\u0964", "\u06d4"):  # full stops of Hindi and Urdu
        script = Script({"see {x} now": "dekho", "see": f"dekho{stop}", "now": "ab"})
        assert translate(script, "see {x} now") == "dekho {x} ab"


@pytest.mark.parametrize(
    ("required", "forbid", "unmet"),
    [
        (("Hund",), (), 0),
        (("http://a.org",), (), 0),  # an item of the line
        (("http://b.org",), (), 1),
        ((("Katze", "hunde"),), (), 0),
        ((("Katze", "Kater"),), (), 1),
        ((), ("a.org",), 1),
        ((), ("{x}",), 1),
        ((), ("ttp", "Hund"), 0),  # parts of words
    ],
)
@pytest.mark.parametrize("for_all", [True, False])
def test_split_lines_that_do_not_meet_the_constraints_are_counted(
    required: tuple[Required, ...], forbid: tuple[str, ...], unmet: int, for_all: bool
) -> None:
    line = "see http://a.org with {x} dogs"
    translations = {line: "", "see": "siehe", "with": "mit", "dogs": "Hunde"}
    script = Script(translations, translations)
    script.forbid = forbid
    item = TranslatorInput(line, required=() if for_all else required)
    script.require = required if for_all else ()
    translator = keeping(script)
    ((best,),) = translator.start_translation([item])()
    assert best.text == "siehe http://a.org mit {x} Hunde"
    assert translator.fallbacks == Fallbacks(split=1, unmet=unmet)


def test_prefixes_and_required_phrases_are_read_as_markup() -> None:
    required = ("Q&amp;A", "<i>Katze</i>")
    item = TranslatorInput("<b>see</b> dogs &amp; cats", prefix="<b>R&amp;D</b>", required=required)
    ((best,),) = keeping(NoisyTranslator(0.0)).start_translation([item])()
    assert best.text == "<b>R&amp;D see</b> dogs &amp; cats Q&amp;A Katze"


@pytest.mark.parametrize(("line", "prefix", "unmet"), [("see {x} now", "S\u00edehe", 0), ("{x} see now", "siehe", 1)])
def test_split_lines_without_their_prefix_are_counted(line: str, prefix: str, unmet: int) -> None:
    script = Script({line: "", "see": "S\u00edehe  da", "see now": "siehe", "now": "jetzt"})
    translator = keeping(script)
    translator.start_translation([TranslatorInput(line, prefix=prefix)])()
    assert translator.fallbacks == Fallbacks(split=1, unmet=unmet)


@pytest.mark.parametrize("phrase", ["狗", "S\u00edehe", "Si\u0301ehe"])
def test_forbidden_phrases_are_found_in_any_script_and_unicode_form(phrase: str) -> None:
    script = Script({"see {x} now": "", "see": "S\u00edehe", "now": "大狗"})
    script.forbid = (phrase,)
    translator = keeping(script)
    translator.start_translation([TranslatorInput("see {x} now")])()
    assert translator.fallbacks == Fallbacks(split=1, unmet=1)


def test_required_items_are_not_required_of_the_text_between_items() -> None:
    script = Script({"see http://a.org": "", "see": "siehe"}, {"see http://a.org": "", "see": "http://a.org"})
    translator = keeping(script)
    ((best,),) = translator.start_translation([TranslatorInput("see http://a.org", required=["http://a.org"])])()
    assert best.text == "siehe http://a.org"


def test_phrases_of_the_recipe_are_required_once_in_split_lines() -> None:
    line, parts = "see 7 dogs", {"see": "siehe", "dogs": "Hunde"}
    script = Script({line: "", **parts}, {line: "", **dict.fromkeys(parts, "Kater")})
    script.require = ["Kater"]
    translator = keeping(script)
    assert best_of(translator, line) == "Kater 7 Hunde"
    assert translator.fallbacks == Fallbacks(split=1)
    assert script.require == ["Kater"], "the wrapped translator is not changed"


def test_only_items_of_the_kept_kinds_are_converted() -> None:
    assert translate(NoisyTranslator(0.0), "R&D <b> 1,234", "urls") == "R&D <b> 1,234"
    assert translate(NoisyTranslator(0.0), "R&D <b> 1,234", "numbers") == "R&D <b> 1.234"
    assert translate(NoisyTranslator(0.0), "R&D <b> 1,234", "markup") == "R&D <b>1,234"


def test_lines_without_words_are_copied_without_outer_spaces() -> None:
    assert translate(NoisyTranslator(0.0), "") == ""
    assert translate(NoisyTranslator(0.0), " <br/> <img/>") == "<br/> <img/>"


def test_markup_of_languages_without_spaces_is_a_problem() -> None:
    assert unspaced_markup(["markup"], ("en", "de")) == ""
    assert unspaced_markup(["numbers"], ("en", "ja")) == ""
    problem = unspaced_markup(["numbers", "markup"], ("en", "ja"))
    assert problem.startswith("text in ja has no spaces between words, so a tag may enclose")


def test_line_breaks_and_tabs_become_spaces() -> None:
    script = Script({"1.5 {x} 7": ""})
    assert translate(script, "1.5\t{x}\n<b\nid='1'>7</b>") == "1,5 {x} <b id='1'>7</b>"
    assert translate(script, "1.5\t{x}\r7", "placeholders", "numbers") == "1,5 {x} 7"


def test_the_context_has_no_tags() -> None:
    noisy = NoisyTranslator(0.0)
    inputs = [
        TranslatorInput("<p>x 5</p>", context=["<b>a</b> 1"]),
        TranslatorInput("y", context=[("c <i>d</i>", "<i>D</i>")]),
    ]
    keeping(noisy).start_translation(inputs)()
    assert noisy.contexts == [["a 1"], [("c d", "D")]]


def test_words_around_code_end_at_scripts_without_spaces() -> None:
    source, target = Item("fixed", "Ctrl+C", 6, 12), Item("fixed", "Ctrl+C", 1, 7)
    assert not is_newly_joined(source, "press Ctrl+C to quit Firefox", target, "按Ctrl+C退出Firefox")
    assert is_newly_joined(source, "press Ctrl+C now", Item("fixed", "Ctrl+C", 0, 6), "Ctrl+C-CC drücken")
