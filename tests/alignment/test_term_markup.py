"""Marked terms of the training text: compared with the stored text, repeatable, and without effect when off."""

import re
from pathlib import Path

import numpy as np
import pytest

from nmt.alignment.term_markup import open_markup, prepare_markup
from nmt.data.prepare import Prepared, prepare
from nmt.data.store import PairStore
from nmt.errors import RecipeError, UserError
from nmt.recipe import TERM_MARKERS, Recipe, parse_recipe
from tests.alignment.test_training_links import RECIPE, sentences

MARKED = RECIPE.replace("guided_alignment = true", "glossary_markup = 0.5").replace("joint = false", "joint = true")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for index, name in enumerate(("train.en", "train.de", "train.links")):
        text = "".join(f"{line[index]}\n" for line in sentences(1, 200))
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def marked(folder: Path, *options: str, run: str = "run", corpus: str = "") -> tuple[Recipe, Prepared, PairStore]:
    text = MARKED.replace('tgt = "train.de" }]', f'tgt = "train.de"{corpus} }}]', 1)
    recipe = parse_recipe(text, [f"run_dir='{folder / run}'", f"data.root='{folder}'", *options])
    prepared = prepare(recipe)
    prepare_markup(prepared, recipe)
    return recipe, prepared, open_markup(prepared, recipe)


@pytest.mark.slow
@pytest.mark.parametrize("tag", ["", ", tag = '<web>'"])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_marked_sources_without_their_markup_are_the_stored_ones(folder: Path, tag: str, is_reversed: bool) -> None:
    reverse = f"data.reverse_target={str(is_reversed).lower()}"
    _, prepared, store = marked(folder, reverse, corpus=f", alignment = 'train.links'{tag}")
    tokenizer, plain = prepared.tokenizers.src, PairStore(prepared.directory, "train")
    source, target, end = (tokenizer.user_symbols()[marker] for marker in TERM_MARKERS)
    num_marked = 0
    for pair in range(len(store)):
        ids = np.array([pair])
        tokens, stored_src = (side.gather(ids)[0].tolist() for side in (store.src, plain.src))
        stored_tgt = plain.tgt.gather(ids)[0].tolist()
        assert store.tgt.gather(ids)[0].tolist() == stored_tgt
        num_marked += source in tokens
        tgt_text = tokenizer.decode(stored_tgt[::-1] if is_reversed else stored_tgt)
        without_markup: list[int] = []
        translation: list[int] | None = None
        for token in tokens:
            if token == target:
                translation = []
            elif token == end:
                assert translation
                assert tokenizer.decode(translation) in tgt_text
                translation = None
            elif translation is not None:
                translation.append(token)
            elif token != source:
                without_markup.append(token)
        assert without_markup == stored_src
    assert 0.3 < num_marked / len(store) < 0.7


@pytest.mark.slow
def test_markup_is_repeatable_and_depends_on_the_seed(folder: Path) -> None:
    first, again, other = (marked(folder, f"seed={seed}", run=run)[2] for seed, run in ((1, "a"), (1, "b"), (2, "c")))
    assert first.src.tokens.tolist() == again.src.tokens.tolist() != other.src.tokens.tolist()


def test_without_markup_the_tokenizers_have_no_markers(folder: Path) -> None:
    off = parse_recipe(MARKED.replace("0.5", "0"), [f"run_dir='{folder}/off'", f"data.root='{folder}'"])
    prepared = prepare(off)
    assert not set(TERM_MARKERS) & set(prepared.tokenizers.src.user_symbols())
    assert not (prepared.directory / "markup").exists()
    with pytest.raises(UserError, match=r"no term markers.*train\.glossary_markup"):
        prepare_markup(prepared, parse_recipe(MARKED, [f"run_dir='{folder}/off'", f"data.root='{folder}'"]))


@pytest.mark.slow
def test_damaged_markup_is_an_error(folder: Path) -> None:
    recipe, prepared, _ = marked(folder)
    path = prepared.directory / "markup" / "train.src.tokens.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(UserError, match="is damaged"):
        open_markup(prepared, recipe)
    path.unlink()
    with pytest.raises(UserError, match=f"tokens.npy is missing.*remove {re.escape(str(path.parent))}, then rerun"):
        open_markup(prepared, recipe)


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("train.guided_alignment=true", "adds tokens to the source, which train.guided_alignment does not support;"),
        ("train.subword_sampling=0.1", "adds tokens to the source, which train.subword_sampling does not support;"),
        ("data.context=1", "marks terms of single sentences, and data.context adds other sentences; set one of them"),
        ("tokenizer.joint=false", "needs one tokenizer for both languages; set tokenizer.joint to true"),
    ],
)
def test_options_that_exclude_markup_are_errors(option: str, problem: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(problem)):
        parse_recipe(MARKED, [option])


def test_a_term_marker_cannot_be_a_tag() -> None:
    with pytest.raises(RecipeError, match=r"'<term-end>', which train\.glossary_markup uses; choose another tag"):
        parse_recipe(MARKED.replace('train.de" }]', 'train.de", tag = "<term-end>" }]', 1))


def test_models_with_markup_annotate_by_default() -> None:
    assert parse_recipe(MARKED).decode.glossary_mode == "annotate"
    assert parse_recipe(RECIPE).decode.glossary_mode == "constrain"
    with pytest.raises(
        RecipeError, match=r"needs a model trained with marked terms; set train\.glossary_markup to 0\.1"
    ):
        parse_recipe(RECIPE, ["decode.glossary_mode=annotate"])
