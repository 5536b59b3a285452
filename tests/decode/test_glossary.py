"""Glossaries: words, matches, files, and terms that translations must contain."""

import random
import re
from pathlib import Path
from typing import Any

import pytest

from nmt.decode.glossary import Glossary, Term
from nmt.errors import UserError
from nmt.keep.items import ItemGrammar
from nmt.text.words import split_words


def glossary(*pairs: tuple[str, str]) -> Glossary:
    return Glossary(Term.parse(*pair, where="here") for pair in pairs)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The dog's T-shirt, 3.5\u00a0kg", ["The", "dog", "'", "s", "T", "-", "shirt", ",", "3", ".", "5", "kg"]),
        ("cafe\u0301 caf\u00e9", ["caf\u00e9", "caf\u00e9"]),
        ("\u0939\u093f\u0928\u094d\u0926\u0940 x", ["\u0939\u093f\u0928\u094d\u0926\u0940", "x"]),
        ("\u6211\u7231 AI\u3002", ["\u6211", "\u7231", "AI", "\u3002"]),
        ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", ["\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"]),
        ("\u062e\u200c, \u200dx", ["\u062e", "\u200c", ",", "\u200d", "x"]),  # stray joiners
        ("  ", []),
    ],
)
def test_texts_are_split_into_words(text: str, words: list[str]) -> None:
    assert split_words(text) == words


def test_longest_terms_match_first_on_whole_words() -> None:
    terms = glossary(("dog", "Hund"), ("hot dog", "Hotdog"), ("dog stand", "Hundestand"), ("hot dog stand", "Bude"))
    found = {text: [term.source for term in terms.find(text)] for text in ("a Hot Dog, a dog", "hot dog stand", "dogs")}
    assert found == {"a Hot Dog, a dog": ["hot dog", "dog"], "hot dog stand": ["hot dog stand"], "dogs": []}
    assert [term.source for term in terms.find("hotdog dog stand hot dog dog")] == ["dog stand", "hot dog", "dog"]


def test_invisible_characters_do_not_count() -> None:
    term = Term.parse("m\u00adan", "Ma\u00adnn|Ker\u200bl", "here")
    assert (term.source, term.forms) == ("man", ("Mann", "Kerl"))
    terms = Glossary([term])
    assert terms.required("A ma\u200bn.") == [term.required]
    assert [use.form for use in terms.check("A m\u00adan.", "Ein Ma\u00adnn.")] == ["Mann"]


def test_wrong_terms_in_python_raise_type_or_value_errors() -> None:
    wrong: Any = "Kerl"  # its letters would be alternatives
    with pytest.raises(TypeError, match="forms must be a tuple of strings, got str"):
        Term("man", wrong)
    with pytest.raises(TypeError, match="needs Term objects, got str"):
        Glossary([wrong])
    for source, forms in (("", ("x",)), ("man", ()), ("man", ("",))):
        with pytest.raises(ValueError, match="must have text"):
            Term(source, forms)


def matches_by_regex(terms: list[Term], text: str) -> set[str]:
    """Find terms by repeatedly replacing the leftmost match of the longest ones."""
    found = set()
    longest = max(term.source.count(" ") + 1 for term in terms)
    for length in range(longest, 0, -1):
        matches = [(match.start(), term) for term in terms for match in re.finditer(rf"\b{term.source}\b", text)]
        for start, term in sorted(matches, key=lambda match: match[0]):
            end = start + len(term.source)
            if term.source.count(" ") + 1 == length and "#" not in text[start:end]:
                found.add(term.source)
                text = text[:start] + "#" * len(term.source) + text[end:]
    return found


def test_matches_equal_those_of_regular_expressions() -> None:
    rng = random.Random(1)
    for _ in range(200):
        sources = {" ".join(rng.choices("abc", k=rng.randint(1, 3))) for _ in range(rng.randint(1, 8))}
        terms = [Term(source, ("x",)) for source in sorted(sources)]
        text = " ".join(rng.choices("abcd", k=12))
        assert {term.source for term in Glossary(terms).find(text)} == matches_by_regex(terms, text)


def test_only_the_lengths_of_terms_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """One term of 500 words took minutes for a line that repeats its first word."""
    lengths: list[int] = []

    class Terms(dict[tuple[str, ...], Term]):
        def get(self, words: Any, default: Any = None) -> Any:
            lengths.append(len(words))
            return super().get(words, default)

    one = Glossary([Term("a " * 500, ("b",))])
    monkeypatch.setattr(one, "_terms", Terms(one._terms))
    assert one.find("a " * 600) == one.find("a " * 500) != one.find("a " * 499)
    assert set(lengths) == {500}


def test_only_cased_terms_match_in_their_case() -> None:
    terms = Glossary(
        [
            Term("US", ("USA",), is_cased=True),
            Term("us", ("uns", "Uns")),
            Term("Polish", ("poln.",), is_cased=True),
        ]
    )
    assert [term.forms[0] for term in terms.find("us, US, Us")] == ["uns", "USA"]
    assert terms.find("polish") == []
    assert terms.required("us") == [("uns", "Uns", "Uns")]
    assert Term("it", ("iPhone", "das da")).required == ("iPhone", "das da", "Das da")
    assert Term("it", ("gnu",), is_cased=True).required == ("gnu",)
    turkish = glossary(("i\u015f\u00e7i", "ila\u00e7"), ("\u0130stanbul", "I"))
    assert len(turkish.find("\u0130\u015f\u00e7i, istanbul")) == len(turkish.find("i\u015f\u00e7i \u0130STANBUL")) == 2
    assert turkish.check("i\u015f\u00e7i", "\u0130la\u00e7!")[0].form == "ila\u00e7"


def test_terms_with_the_same_source_are_merged() -> None:
    terms = glossary(("dog", "Hund | Hunde"), ("Dog", "Hunde|K\u00f6ter"))
    assert terms.required("the dog") == [("Hund", "Hunde", "K\u00f6ter")]


def test_own_terms_precede_those_of_the_fallback() -> None:
    terms = Glossary([Term("big dog", ("Riese",))], glossary(("dog stand", "Hundestand"), ("the", "der"), ("dog", "H")))
    assert terms.required("the big dog stand")[1:] == [("Riese",)]
    assert [term.source for term in terms.find("a dog stand")] == ["dog stand"]
    terms = Glossary([Term("big dog", ("Riese",))], glossary(("big dog stand", "Stand"), ("stand", "H\u00fctte")))
    assert [term.source for term in terms.find("a big dog stand")] == ["big dog", "stand"]


def test_check_returns_the_form_in_the_translation() -> None:
    terms = glossary(("dog", "Hund|Hunde"), ("hot dog", "Hot Dog"))
    uses = terms.check("the dog and the hot dog", "Die hunde im Hot-Dog")
    assert [(use.term.source, use.form) for use in uses] == [("dog", "Hunde"), ("hot dog", "")]
    assert terms.check("a dog", "eine Hundeh\u00fctte")[0].form == ""


def test_items_are_not_terms() -> None:
    terms = glossary(("car", "Wagen"), ("747", "Jumbo"), ("boeing 747", "Boeing 747"), ("linux", "Linux"))
    terms = terms.outside(ItemGrammar(("placeholders", "urls", "numbers"), "en", "de").spans)
    assert [term.source for term in terms.find("{car} www.linux.org 747 Boeing 747")] == ["boeing 747"]
    assert [term.source for _, term in terms.locate("{car} car")] == ["car"]
    assert [use.form for use in terms.check("linux, www.linux.org", "Lin www.linux.org")] == [""]
    assert [use.form for use in terms.check("linux, Boeing 747", "Linux Boeing 747")] == ["Linux", "Boeing 747"]


def test_files_may_have_optional_columns_and_empty_lines(tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text("\ufeffdog\tHund|Hunde\r\n\nUS\tUSA\tYes\tcountry\nhot  dog\tHotdog\tno\n", "utf-8")
    assert Glossary.load(path).find("a Dog in the US us hot dog") == [
        Term("dog", ("Hund", "Hunde")),
        Term("US", ("USA",), is_cased=True),
        Term("hot dog", ("Hotdog",)),
    ]


def test_quotes_of_csv_give_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text('dog\tHund\n"cat"\t"Katze"\n"cow"\t"Kuh"\n')
    Glossary.load(path)
    assert capsys.readouterr().err.startswith(f"warning: {path}, line 2 has quotes, which count as part of the term;")
    path.write_text('dog\tHund\n"cat\t"Katze"\n"the cow"\tdie "Kuh\n"\t"\n')
    Glossary.load(path)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("line", ["source\ttarget", "Term\tTranslation\t\tnote", "en\tde", "English\tGerman\r"])
def test_a_header_gives_a_warning(tmp_path: Path, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text(f"{line}\ndog\tHund\n")
    Glossary.load(path)
    assert capsys.readouterr().err.startswith(f"warning: {path}, line 1 looks like a header, and counts as a term;")
    path.write_text(f"dog\tHund\nsource\tQuelle\nEnglish\tEnglisch\nEU\tUE\n{line}\n")
    Glossary.load(path)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\tb\nword\n", "line 2 has 1 column; expected source term"),
        ("a\tb\tno\tx\ty\n", "line 1 has 5 columns"),
        ("a\tb\tcase\n", "line 1: the third column is 'case'"),
        ("\tb\n", "line 1: the source term is empty"),
        ("a\tb||c\n", "line 1: 'a' has an empty translation"),
        ("a\t \n", "has an empty translation"),
        ("a\tb|c\0d\n", r"line 1: 'c\x00d' has a control character"),
        ("a\0b\tc\n", r"line 1: 'a\x00b' has a control character"),
        ("\n", "has no terms"),
    ],
)
def test_invalid_files_are_errors(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text(text)
    with pytest.raises(UserError, match=r"^[^\n;]*;[^\n;]*;[^\n;]*$") as caught:
        Glossary.load(path)
    assert expected in str(caught.value)


@pytest.mark.slow
def test_terms_within_many_items_take_linear_time() -> None:
    glossary = Glossary([Term("a", ("b",)), Term("1", ("2",))]).outside(ItemGrammar(("numbers",), "en", "de").spans)
    located = glossary.locate("a 1 " * 25_000)
    assert len(located) == 25_000 and {term.source for _, term in located} == {"a"}
