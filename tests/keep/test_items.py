"""Items of a text, their written form in a translation, and their comparison."""

import pytest

from nmt.keep.items import FixedText, Item, ItemGrammar

KINDS = ("numbers", "urls", "emails", "placeholders")


def found(text: str, *kinds: str, language: str = "en") -> list[str]:
    return [item.text for item in ItemGrammar(kinds or KINDS, language, "de").find_source(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "See https://example.org/a?b=1&c=2, or www.example.org.",
            "https://example.org/a?b=1&c=2|www.example.org",
        ),
        ("(http://example.org/)", "http://example.org/"),
        (
            "(HTTPS://a.org/b_(c)), [x](ssh://a.org/b)? sftp://a.org/b_(c)d. WWW.a.org/(b)! http://a.org/b)",
            "HTTPS://a.org/b_(c)|ssh://a.org/b|sftp://a.org/b_(c)d|WWW.a.org/(b)|http://a.org/b",
        ),
        ("street46,375http://a.org/9", "46,375|http://a.org/9"),
        ("Mail o'neil.b@example.org, 'c@example.org'", "o'neil.b@example.org|c@example.org"),
        (
            "{n, plural, one {# dog} other {{m} dogs}} of {{{a}}} or {{b {c}}}",
            "{n, plural, one {# dog} other {{m} dogs}}|{{{a}}}|{{b {c}}}",
        ),
        ("%{count} #{user} {b}bold{/b} {x {y}", "%{count}|#{user}|{b}|{/b}|{y}"),
        ("Mail a.b+c@mail.example.org.", "a.b+c@mail.example.org"),
        ("Hi {name}, {{ count }} of ${total} %s %(x)d %1$s %.2f%%", "{name}|{{ count }}|${total}|%s|%(x)d|%1$s|%.2f"),
        ("50% die, 5 %", "50|5"),
        ("In 1990, 1,234.5 of 3rd, A4 at 10:30 on 1/2/2020.", "1990|1,234.5|3|4|10:30|1/2/2020"),
        ("-5 to +3.5, (-1), \u22122, =-3, \u00b11, a \u20131% loss, $-7", "-5|+3.5|-1|\u22122|-3|\u00b11|\u20131|-7"),
        (
            "5-10, 5\u201310, A-5, C++11, 3.-5. May, 5%-10%, (030)-12, 9'-10', --7",
            "5|10|5|10|5|11|3|5|5|10|030|12|9|10|7",
        ),
        (".5 of $.75, -.38-caliber, the end.5, v.6, 1.7.", ".5|.75|-.38|5|6|1.7"),
        ("½ of 2½, 1\u20442 or 1/2 of -¾, m² of H₂O, 10⁸ 3⁻² m", "½|2½|1\u20442|1/2|-¾|10⁸|3⁻²"),
        ("5,663a.b@example.org", "663a.b@example.org"),
        ("nginx v1.9, V2.0.1 and v12, rev1.9, v1.5@example.org", "v1.9|V2.0.1|12|1.9|v1.5@example.org"),
    ],
)
def test_items_are_found(text: str, expected: str) -> None:
    assert found(text) == expected.split("|")


def test_text_without_items_has_none() -> None:
    assert found("nothing here") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("请访问https://example.org/a。谢谢\uff0c再见", "https://example.org/a"),
        ("请访问www.example.org查看\uff08http://example.org/b\uff1f\uff09", "www.example.org|http://example.org/b"),
        (
            "https://example.org에서 https://ko.example.org/대한민국",
            "https://example.org|https://ko.example.org/대한민국",
        ),
        ("http://www.例え.jp/", "http://www.例え.jp/"),
        ("请联系info@example.org查看5个b@example.org", "info@example.org|5|b@example.org"),
        ("อีเมลinfo@example.orgครับ müller@exämple.org로", "info@example.org|müller@exämple.org"),
        ("已删除%d个文件\uff0c%1$s님이 %(n)sを 100%ige", "%d|%1$s|%(n)s|100"),
        ("版本v1.2.3\uff0c\uff12\uff10\uff12\uff14年\uff0c-\uff11\uff12.\uff15", "v1.2.3|2024|-12.5"),
    ],
)
def test_letters_of_scripts_without_spaces_are_not_part_of_items(text: str, expected: str) -> None:
    assert found(text) == expected.split("|")


def test_numbers_in_items_of_other_kinds_do_not_count() -> None:
    assert found("Page 7 of http://example.org/8 for {9}", "numbers") == ["7"]
    assert found("Page 7 of http://example.org/8 for {9}", "urls", "placeholders") == ["http://example.org/8", "{9}"]


@pytest.mark.parametrize(
    ("languages", "source", "written"),
    [
        (("en", "de"), "1,234.5", "1.234,5"),
        (("en", "de"), "1234.50", "1234,50"),
        (("en", "de"), "12,345,678", "12.345.678"),
        (("en", "fr"), "1,234.5", "1\u202f234,5"),
        (("en", "pl"), "1,234", "1\u00a0234"),
        (("de", "en"), "1.234,5", "1,234.5"),
        (("fr", "en"), "1 234 567,5", "1,234,567.5"),
        (("en", "ja"), "1,234.5", "1,234.5"),
        (("en", "de"), "1.2.3", "1.2.3"),  # a version
        (("en", "de"), "v1.9", "v1.9"),
        (("de", "en"), "V1.900", "V1.900"),
        (("en", "de"), "10:30", "10:30"),
        (("en", "de"), "1,23", "1,23"),  # not an English number
        (("eng", "deu"), "1,234.5", "1.234,5"),
        (("en", "fra"), "1,234.5", "1\u202f234,5"),
        (("ces", "jpn"), "1 234,5", "1,234.5"),
        (("en", "xx"), "1,234.5", "1,234.5"),
        (("xx", "de"), "1,234.5", "1,234.5"),
        (("en", "de"), "007", "007"),
        (("ja", "de"), "\uff11\uff12\uff13\uff14.\uff15", "1234,5"),
        (("en", "de"), "-1,234.5", "-1.234,5"),
        (("en", "fr"), "\u22121,234", "\u22121\u202f234"),
        (("en", "de"), ".38", ".38"),
        (("en", "de"), "2½", "2½"),
        (("de", "en"), "0.125", "0.125"),  # not a German number: no thousands follow a leading zero
        (("en", "de"), "0,125", "0,125"),
        (("en", "de"), "1" + ",000" * 30, "1" + ".000" * 30),
        (("en", "de"), "1" * 5_000 + ".5", "1" * 5_000 + ",5"),  # more digits than int() accepts
    ],
)
def test_numbers_are_written_in_the_target_language(languages: tuple[str, str], source: str, written: str) -> None:
    grammar = ItemGrammar(KINDS, *languages)
    (item,) = grammar.find_source(source)
    assert grammar.written(item) == written
    assert [one.text for one in grammar.find_target(written)] == [written]


def pairs(source: str, target: str) -> tuple[list[tuple[str, str]], list[str], list[str]]:
    grammar = ItemGrammar(KINDS, "en", "de")
    pairing = grammar.pair(grammar.find_source(source), grammar.find_target(target))
    return (
        [(one.text, other.text) for one, other in pairing.pairs],
        [item.text for item in pairing.missing],
        [item.text for item in pairing.extra],
    )


def test_pairs_prefer_the_written_form() -> None:
    assert pairs("1,234 1.234", "1,234 1.234") == ([("1,234", "1.234"), ("1.234", "1,234")], [], [])
    assert pairs("1,234", "1,234") == ([("1,234", "1,234")], [], [])  # copied
    assert pairs("1,234", "1234") == ([("1,234", "1234")], [], [])


def test_signs_and_decimal_points_at_the_beginning_count() -> None:
    assert pairs("-0.5 \u22121 .25 ½", "\u22120,5 -1 0,25 1\u20442")[1:] == ([], [])
    for source, target in (("-5", "5"), ("5", "-5"), ("+44", "44"), (".5", "5"), ("½", "2"), ("2½", "21/2")):
        assert pairs(source, target) == ([], [source], [target])


@pytest.mark.parametrize(
    "number", ["+420 123 456 789", "0 800 123 456", "030 123 456", "\u0661 \u0662\u0663\u0664 \u0665\u0666\u0667"]
)
@pytest.mark.parametrize("languages", [("cs", "en"), ("fr", "de"), ("en", "cs"), ("ar", "fr")])
def test_spaces_of_phone_numbers_do_not_separate_thousands(languages: tuple[str, str], number: str) -> None:
    grammar = ItemGrammar(KINDS, *languages)
    items = grammar.find_source(f"Call {number} now")
    assert [grammar.written(item) for item in items] == number.split()
    assert grammar.holds(items, number)


def test_numbers_side_by_side_are_not_one_number() -> None:
    grammar = ItemGrammar(KINDS, "en", "fr")
    items = grammar.find_source("555 123 4567, 1,234 or 1234")
    translation = "555 123 4567, 1 234 ou 1 234"
    pairing = grammar.pair(items, grammar.find_target(translation))
    assert [(source.text, target.text) for source, target in pairing.pairs] == [
        ("4567", "4567"), ("1,234", "1 234"), ("1234", "1 234"), ("555", "555"), ("123", "123"),
    ]  # fmt: skip
    assert not pairing.missing and not pairing.extra
    assert grammar.holds(items, "555 123 4567, 1\u202f234 ou 1234")
    assert not grammar.holds(items, "555 124 4567, 1\u202f234 ou 1234")
    assert [item.text for item in grammar.pair(items, grammar.find_target("9 555 124")).extra] == ["9", "124"]


def test_pairing_takes_linear_time() -> None:
    items = [Item("numbers", str(number), 10 * number, 10 * number + 4) for number in range(1_000, 5_000)]
    assert ItemGrammar(KINDS, "en", "de").pair(items[::2], items[1::2]) == ([], items[::2], items[1::2])


def test_fixed_symbols_are_not_part_of_words_or_other_symbols() -> None:
    grammar = ItemGrammar((), "en", "de").with_fixed(FixedText("&& - .", ((0, 2), (3, 4), (5, 6))))
    found = [(item.text, item.start) for item in grammar.find_source("A-B -- 1.5 &&& a. (&&), -/. \u72d7-\u732b")]
    assert found == [("&&", 19), ("-", 24), (".", 26), ("-", 29)]


def test_other_words_that_equal_a_fixed_text_are_translated() -> None:
    line = "Look in the box in A"
    grammar = ItemGrammar((), "en", "de").with_fixed(FixedText(line, ((16, 18), (19, 20))))
    assert [item.start for item in grammar.find_source(line)] == [16, 19]
    assert [item.start for item in grammar.find_source("a in A")] == [2, 5], "a part of the line"
    translation = "In a, in A, schau in die Box"
    assert [item.start for item in grammar.find_target(translation)] == [9, 18], "equal case, then similar position"
    assert grammar.holds(grammar.find_source(line), translation)


def test_turkish_dotted_and_dotless_i_do_not_match_a_fixed_text() -> None:
    grammar = ItemGrammar((), "en", "tr").with_fixed(FixedText("min", ((0, 3),)))
    assert [item.text for item in grammar.find_target("M\u0130N, m\u0131n, min")] == ["min"]


@pytest.mark.slow
def test_fixed_texts_take_linear_time() -> None:
    grammar = ItemGrammar(KINDS, "en", "de").with_fixed(FixedText("1", ((0, 1),)))
    assert len(grammar.find_source("1 22 " * 20_000)) == 40_000
    assert len(grammar.find_target("1 22 " * 20_000)) == 40_000


def test_equal_items_are_paired_in_order() -> None:
    grammar = ItemGrammar(KINDS, "en", "de")
    pairing = grammar.pair(grammar.find_source("{A} {A} {A} 2"), grammar.find_target("{a} 3 {a} {a}"))
    assert [(one.start, other.start) for one, other in pairing.pairs] == [(0, 0), (4, 6), (8, 10)]


def test_pairs_ignore_case_and_are_one_to_one() -> None:
    assert pairs("{Name} {Name} 7", "{name} 8") == ([("{Name}", "{name}")], ["{Name}", "7"], ["8"])


@pytest.mark.parametrize(
    ("target", "requested", "expected"),
    [
        ("37 Euro 1.500", "", True),
        ("37 Euro 1.500 von 2 Hunden", "", False),
        ("37 Euro 1.500 von 2 Hunden", "2 Hunde", True),
        ("37 Euro 1.500 von 2 2 Hunden", "2 Hunde", False),
        ("37 Euro 1.500", "2 Hunde", True),
        ("73 Euro 1.500", "73", False),
        ("37 Euro 1.500 {x}", "", False),
        ("37 37 1.500", "", False),
        ("37 1.500 1.500", "", False),
        ("", "", False),
    ],
)
def test_a_translation_must_hold_exactly_the_items_of_the_source(target: str, requested: str, expected: bool) -> None:
    grammar = ItemGrammar(KINDS, "en", "de")
    items = grammar.find_source("37 euros 1,500")
    assert grammar.holds(items, target, grammar.find_target(requested)) is expected


@pytest.mark.slow
def test_long_words_take_linear_time() -> None:
    assert found("a" * 200_000) == []
    assert found("{" * 20_000 + "%" * 20_000 + "1." * 20_000, "placeholders") == []
    assert found("{x" * 20_000 + "{{x}" * 20_000 + "{{{}" * 20_000 + "{}a" * 20_000, "urls") == []
    assert found("a'" * 20_000 + "a@" * 20_000 + "a://" + "(a" * 20_000 + "a)" * 20_000 + "(" * 20_000, "emails") == []
    assert found("http://x" + "()" * 50_000 + " " + "1." * 50_000 + "@ " + "1" * 100_000 + "@", "emails") == []
    assert found("-" * 20_000 + "-." * 20_000 + ".1" * 20_000 + "½" * 20_000, "urls") == []
