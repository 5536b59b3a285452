"""Test sets with one or more references."""

from pathlib import Path
from typing import cast

import pytest
import sacrebleu

from nmt.data.test_sets import test_sets as read_test_sets
from nmt.errors import UserError
from nmt.recipe import Recipe, UnicodeForm, parse_recipe

RECIPE = """
name = "test"
src_lang = "en"
tgt_lang = "de"
[data]
train = [{ kind = "toy" }]
valid = [{ kind = "toy", split = "valid" }]
"""
LINES = {
    "news.en": ["one cat", "a\u2028b", "", "the last"],
    "news.de": ["eine Katze", "c\u0085d", "", "das letzte"],
    "other.de": ["eine einzelne Katze", "cd", "", "die letzte"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, lines in LINES.items():
        (tmp_path / name).write_bytes("".join(f"{line}\n" for line in lines).encode())
        segments = "".join(f"<seg id='{i}'>{line}</seg>\n" for i, line in enumerate(lines))
        (tmp_path / f"{name}.sgm").write_bytes(segments.encode())
    return tmp_path


def recipe_for(folder: Path, tests: str) -> Recipe:
    return parse_recipe(RECIPE, [f"data.root='{folder}'", f"data.test={tests}"])


def test_test_sets_are_unmodified(folder: Path) -> None:
    tests = "{news={kind='text',src='news.en',tgt='news.de'},made={kind='toy',split='test',pairs=10}}"
    sets = read_test_sets(recipe_for(folder, tests))
    assert list(sets) == ["news", "made"]
    assert (sets["news"].src, sets["news"].refs) == (LINES["news.en"], [LINES["news.de"]])
    assert sets["news"].labels is None
    labels = sets["made"].labels
    assert labels is not None and len(labels) == len(sets["made"].src) == len(sets["made"].ref) == 10


@pytest.mark.parametrize(("kind", "ending"), [("text", ""), ("sgm", ".sgm")])
def test_several_references(kind: str, ending: str, folder: Path) -> None:
    tgt = f"['news.de{ending}', 'other.de{ending}']"
    tests = f"{{news={{kind='{kind}',src='news.en{ending}',tgt={tgt}}}}}"
    news = read_test_sets(recipe_for(folder, tests))["news"]
    assert news.src == LINES["news.en"]
    assert news.refs == [LINES["news.de"], LINES["other.de"]]
    assert news.ref == LINES["news.de"]  # shown with samples


def test_sacrebleu_references(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = sacrebleu.dataset.DATASETS["wmt14/full"]
    monkeypatch.setattr(known, "get_source_file", lambda pair: str(folder / "news.en"))
    files = [str(folder / name) for name in ("news.de", "other.de")]
    by_languages = {"en-de": files, "fr-en": files[::-1]}
    monkeypatch.setattr(known, "get_reference_files", lambda pair: by_languages[pair])
    tests = "{news={kind='sacrebleu',test_set='wmt14/full'}, other={kind='sacrebleu',test_set='wmt14/full',"
    recipe = parse_recipe(RECIPE, [f"data.test={tests}src_lang='fr',tgt_lang='en'}}}}"])
    found = read_test_sets(recipe)
    assert found["news"].refs == [LINES["news.de"], LINES["other.de"]]
    assert found["other"].refs == [LINES["other.de"], LINES["news.de"]]


def test_each_reference_must_match_the_source(folder: Path) -> None:
    (folder / "other.de").write_text("nur eine\n")
    tests = "{news={kind='text',src='news.en',tgt=['news.de','other.de']}}"
    with pytest.raises(UserError, match=r"news\.en has 4 sentences and .*other\.de has 1; "):
        read_test_sets(recipe_for(folder, tests))
    with pytest.raises(UserError, match=r"missing\.de: No such file"):
        read_test_sets(recipe_for(folder, tests.replace("other", "missing")))


def test_an_empty_test_set_is_an_error(folder: Path) -> None:
    for name in ("news.en", "news.de"):
        (folder / name).write_bytes(b"")
    with pytest.raises(UserError, match=r"data\.test\.news has no sentences"):
        read_test_sets(recipe_for(folder, "{news={kind='text',src='news.en',tgt='news.de'}}"))


def test_warning_for_sentences_without_reference(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "news.jsonl").write_text('{"s": "a", "t": null}\n{"s": "b", "t": "B"}\n{"s": "c", "t": ""}\n')
    tests = (
        "{news={kind='text',src='news.en',tgt='news.de'}, two={kind='text',src='news.en',tgt=['other.de','news.de']},"
        "json={kind='jsonl',path='news.jsonl',src_field='s',tgt_field='t'}}"
    )
    for test in read_test_sets(recipe_for(folder, tests)).values():
        test.warn_of_wrong_references("NFC")
    remark = "are empty (first: line 1); their translations count as wrong; correct them"
    assert capsys.readouterr().err == f"warning: 2 of 3 lines of the reference of data.test.json {remark}\n"


def test_a_sentence_with_another_reference_does_not_count_as_wrong(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "news.de").write_text("A\n\n\nD\n")
    tests = "{news={kind='text',src='news.en',tgt=['other.de','news.de']}}"
    read_test_sets(recipe_for(folder, tests))["news"].warn_of_wrong_references("NFC")
    remark = "(first: line 2); translations count as wrong only if all references are empty; correct them"
    err = capsys.readouterr().err
    assert err == f"warning: 1 of 4 lines of reference 2 of data.test.news is empty {remark}\n"


def test_warning_for_sentences_without_source(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "news.en").write_text("a\n\n\n")
    (folder / "news.de").write_text("A\n\nC\n")  # line 2 is empty on both sides
    tests = "{news={kind='text',src='news.en',tgt='news.de'}}"
    read_test_sets(recipe_for(folder, tests))["news"].warn_of_wrong_references("NFC")
    remark = "is empty (first: line 3); they are translated as empty lines; correct them"
    assert capsys.readouterr().err == f"warning: 1 of 3 lines of the source of data.test.news {remark}\n"


def test_warning_for_markup_that_would_be_translated(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "news.en").write_text('<srcset setid="a">\n<seg id="1">a</seg>\n</srcset>\n')
    (folder / "news.de").write_text("0.5\tA\n0.1\tB\n0.2\tC\n")
    tests = "{news={kind='text',src='news.en',tgt='news.de'}}"
    read_test_sets(recipe_for(folder, tests))["news"].warn_of_wrong_references("NFC")
    source, reference = capsys.readouterr().err.splitlines()
    assert source.startswith("warning: the source of data.test.news looks like an SGM or XML test set")
    assert reference.startswith("warning: all lines of the reference of data.test.news have tabs")


def test_warning_for_a_reference_that_equals_another_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for tgt, warnings in (
        ("'news.en'", ["the reference of data.test.news is identical to the source"]),
        ("['news.de','news.de']", ["reference 2 of data.test.news is identical to reference 1"]),
        ("['news.de','other.de']", []),
    ):
        tests = f"{{news={{kind='text',src='news.en',tgt={tgt}}}}}"
        read_test_sets(recipe_for(folder, tests))["news"].warn_of_wrong_references("NFC")
        assert capsys.readouterr().err == "".join(f"warning: {text}; is it the right file?\n" for text in warnings)


def test_warning_for_a_reference_in_another_unicode_form(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "news.en").write_text("a\n" * 100)
    tests = "{news={kind='text',src='news.en',tgt='news.de'}}"
    warning = (
        "warning: the reference of data.test.news is not in NFC, the form of translations (data.unicode_form), in {} "
        "of 100 lines: characters in another form count as errors; normalize the file\n"
    )
    for count, form, expected in ((2, "NFC", warning.format(2)), (2, "none", ""), (1, "NFC", "")):
        (folder / "news.de").write_text("U\u0308ber\n" * count + "\u00dcber\n" * (100 - count))
        read_test_sets(recipe_for(folder, tests))["news"].warn_of_wrong_references(cast(UnicodeForm, form))
        assert capsys.readouterr().err == expected
