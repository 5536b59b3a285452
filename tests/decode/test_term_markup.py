"""Annotated glossary terms: what the model reads, and that no marker is written."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.decode.glossary import Glossary, Term
from nmt.decode.task import Task
from nmt.decode.translator import Translator
from nmt.errors import UserError
from nmt.recipe import TERM_MARKERS, TokenizerRecipe
from nmt.search.hypothesis import Hypothesis
from nmt.search.options import SearchOptions
from nmt.text.tokenizer import Tokenizers, train_tokenizers
from nmt.text.words import find_words, share_stem, split_words
from tests.decode.copy_model import CopyModel, make_translator, text_lines

TERMS = Glossary([Term("dog", ("Hund", "Hunde")), Term("old red", ("alt rot",)), Term("go", ("gehen",))])


def make_tokenizers(folder: Path, symbols: tuple[str, ...]) -> Tokenizers:
    folder.mkdir()
    recipe = TokenizerRecipe(vocab_size=340, user_symbols=symbols)
    return train_tokenizers(lambda: [(line, "Dog Hund alt rot gehen") for line in text_lines(300)], recipe, folder)


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Tokenizers:
    return make_tokenizers(tmp_path_factory.mktemp("marked") / "tokenizer", TERM_MARKERS)


def annotating(tokenizers: Tokenizers, **options: int) -> Translator:
    return make_translator(CopyModel(tokenizers.src.vocab_size), tokenizers, glossary_mode="annotate", **options)


def read_by_model(translator: Translator, line: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the source tokens of the search."""
    sources: list[list[int]] = []

    def search(tasks: Sequence[Task], options: SearchOptions) -> list[list[Hypothesis]]:
        assert not any(task.required for task in tasks)
        sources.extend(task.sentence for task in tasks)
        return [[Hypothesis([], 0.0, 0.0, [])] for _ in tasks]

    monkeypatch.setattr(translator, "_search", search)
    translator.translate([line], glossary=TERMS)
    return sources[0]


def test_the_model_reads_the_first_form_after_each_term(marked: Tokenizers, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = read_by_model(annotating(marked), "the Dog sees the old red tree, go!", monkeypatch)
    assert "".join(marked.src.pieces(tokens)).replace("\u2581", "") == (
        "the<term-source>Dog<term-target>Hund<term-end>seesthe<term-source>oldred<term-target>altrot<term-end>"
        "tree,<term-source>go<term-target>gehen<term-end>!"
    )


def test_alternatives_read_the_terms(marked: Tokenizers, monkeypatch: pytest.MonkeyPatch) -> None:
    translator, line = annotating(marked), "the dog sees the old red tree"
    expected = read_by_model(annotating(marked), line, monkeypatch)
    sources: list[list[int]] = []

    def search(tasks: Sequence[Task], options: SearchOptions) -> list[list[Hypothesis]]:
        sources.extend(task.sentence for task in tasks)
        return [[Hypothesis(task.prefix, 0.0, 0.0, [])] for task in tasks]

    monkeypatch.setattr(translator, "_search", search)
    assert len(translator.alternatives(line, "Hund", 3, glossary=TERMS)) > 1
    assert sources == [expected] * 3


def test_terms_that_exceed_the_limit_are_left_out(marked: Tokenizers, monkeypatch: pytest.MonkeyPatch) -> None:
    line, start = "the dog sees the dog", TERM_MARKERS[0]
    num_plain, num_full = len(marked.src.encode(line)), len(read_by_model(annotating(marked), line, monkeypatch))
    for limit, terms in ((num_plain + 2, 0), (num_full - 1, 1), (num_full, 2)):
        tokens = read_by_model(annotating(marked, max_tokens=limit), line, monkeypatch)
        assert marked.src.pieces(tokens).count(start) == terms and len(tokens) <= limit


def test_no_marker_is_written(marked: Tokenizers) -> None:
    # The model copies its source, markers included, unless they are excluded.
    (found,) = annotating(marked, max_extra_tokens=20).translate_n_best(["the dog <term-end>"], glossary=TERMS)
    assert all(one.pieces and not set(one.pieces) & set(TERM_MARKERS) for one in found)


def test_models_without_markers_refuse_to_annotate(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^the model has no term markers[^\n]*glossary_markup = 0\.1$"):
        annotating(make_tokenizers(tmp_path / "plain", ()))


@given(st.text(alphabet=st.sampled_from("aA \u0308\u00e9\uff76\uff9e\u00bd\u2026\ufb01\u1100\u1161\uac00\u6211.")))
def test_found_words_are_the_split_ones(text: str) -> None:
    words = find_words(text)
    assert [word.text for word in words] == split_words(text)
    assert all(0 <= word.start < word.end <= len(text) for word in words)


def test_words_that_share_a_stem() -> None:
    pairs = [("Mann", "M\u00e4nner"), ("steht", "stehen"), ("Hund", "Hundes")]
    assert all(share_stem(*pair) for pair in pairs)
    assert not any(share_stem(*pair) for pair in [("die", "das"), ("Hund", "Hundeh\u00fctte"), ("gut", "besser")])
