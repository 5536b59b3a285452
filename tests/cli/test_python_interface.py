"""Translators and scorers of a run in Python: arguments, options and errors."""

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nmt as nmt_package
from nmt import DecodeRecipe, Translation, Translator, pipeline
from nmt.data.prepare import load_prepared
from nmt.decode.scoring import TextScorer
from nmt.errors import UserError
from nmt.recipe import load_recipe
from nmt.storage.model_metadata import read_model_metadata
from nmt.text.tokenizer import Tokenizers


def test_names_that_the_guide_imports_are_exported_to_type_checkers() -> None:
    guide = (Path(nmt_package.__file__).parent / "guide" / "python.md").read_text(encoding="utf-8")
    for module, names in re.findall(r"^from (nmt\S*) import (.+)$", guide, re.MULTILINE):
        loaded = import_module(module)
        exported = getattr(loaded, "__all__", ())
        assert all(name in exported or getattr(loaded, name).__module__ == module for name in names.split(", ")), module


@pytest.mark.slow
def test_wrong_arguments_of_the_scorer_are_named(run_dir: Path) -> None:
    scorer = TextScorer.load(run_dir, "cpu")
    with pytest.raises(TypeError, match="sources must be a list of strings, got str"):
        scorer.score("one", ["two"])
    with pytest.raises(TypeError, match="targets must be strings, got int at index 0"):
        scorer.score(["one"], [2])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="got 1 sources and 2 targets; expected one target per source"):
        scorer.score(["one"], ["two", "three"])
    with pytest.raises(ValueError, match="got 2 contexts for 1 pair; expected one list of previous sentences per pair"):
        scorer.score(["one"], ["two"], context=[[], []])
    with pytest.raises(ValueError, match="got 2 sources and 1 targets"):
        scorer.documents(["a", "b"], ["c"])
    assert scorer.score([], []) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("context", "message"),
    [
        (["one"], "the context of a line must be a list of previous sentences, got str"),
        ([[None]], "a previous sentence and its translation must be a list of strings, got NoneType"),
        ([[("a", None)]], "a previous sentence and its translation must be strings, got NoneType at index 1"),
        ([[("a", "b", "c")]], "context has ('a', 'b', 'c'); expected a sentence, or a sentence and its translation"),
    ],
)
def test_a_wrong_context_is_named(run_dir: Path, context: Any, message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        TextScorer.load(run_dir, "cpu").score(["one"], ["two"], context=context)
    with pytest.raises(TypeError, match=re.escape(message)):
        Translator.load(run_dir, "cpu").translate(["one"], context=context)


WRONG_CALLS: list[tuple[Callable[[Any], object], str]] = [
    (lambda t: t.translate("one string"), "lines must be a list of strings, got str; wrap it in a list"),
    (lambda t: t.translate_n_best("one string"), "lines must be a list of strings, got str; wrap it in a list"),
    (lambda t: next(t.stream("one string", 5)), "lines must be a list of strings, got str; wrap it in a list"),
    (lambda t: t.translate([None]), "lines must be strings, got NoneType at index 0"),
    (lambda t: t.translate({"a", "b"}), "lines must be a list of strings, got set; use list"),
    (lambda t: t.translate(None), "lines must be a list of strings, got NoneType"),
    (lambda t: next(t.stream([1], 5)), "lines must be strings, got int at index 0"),
    (lambda t: t.translate(line for line in ["a"]), "lines must be a list of strings, got generator; use list"),
    (lambda t: t.alternatives(["a"], "", 2), "line and prefix must be strings, got list at index 0"),
    (lambda t: t.attention(["a"], t.translate_n_best(["a"])[0][0]), "line must be a string, got list; pass one line"),
    (lambda t: t.attention("a", "b"), "translation must be a Translation, got str; use one from translate_n_best"),
    (lambda t: t.translate(["a"], required=["term"]), "the phrases of a line must be a list of strings, got str"),
    (
        lambda t: t.translate(["a"], required=[iter(["x"])]),
        "the phrases of a line must be a list of strings, got list_iterator",
    ),
    (lambda t: t.translate(["a"], required=[None]), "the phrases of a line must be a list of strings, got NoneType"),
    (lambda t: t.translate(["a"], required=[[("b", 1)]]), "the phrases of a line must be strings, got int at index 1"),
    (
        lambda t: next(t.stream(["a", "b", "c", "d"], 5, required="term")),
        "required must be a list of lists of phrases, got str",
    ),
    (lambda t: t.translate(["a"], prefixes=[3]), "prefixes must be strings, got int at index 0"),
    (lambda t: next(t.stream(["a", "b", "c"], 5, prefixes="pre")), "prefixes must be a list of strings, got str"),
    (lambda t: t.translate(["a"], context="x"), "context must be a list of lists of previous sentences, got str"),
    (lambda t: t.translate(["a"], context=["x"]), "the context of a line must be a list of previous sentences, got"),
    (lambda t: t.translate(["a"], glossary={"a": "b"}), "must be a Glossary, got dict; use Glossary.load(FILE)"),
    (lambda t: t.translate(["a"], glossary="b.tsv"), "must be a Glossary, got str; use Glossary.load(FILE)"),
    (lambda t: t.translate(["a"], glossary=5), "glossary must be a list of Glossary objects, got int"),
    (lambda t: t.translate(["a"], glossary=["b"]), "glossary must be a Glossary, got str"),
    (lambda t: t.translate_n_best(["a"], n_best="3"), "n_best must be an integer, got str"),
    (lambda t: t.with_constraints(None, "Hund"), "forbidden must be a list of strings, got str; wrap it in a list"),
    (lambda t: t.with_decode({"beam_size": 2}), "decode must be a DecodeRecipe, got dict"),
]


@pytest.mark.slow
def test_wrong_arguments_of_the_translator_are_named(run_dir: Path) -> None:
    translator = Translator.load(run_dir, "cpu")
    for call, message in WRONG_CALLS:
        with pytest.raises(TypeError, match=re.escape(message)):
            call(translator)
    with pytest.raises(ValueError, match="window must be at least 1, got 0"):
        next(translator.stream(["a"], 0))
    assert len(translator.translate_n_best(["a"], n_best=np.int64(2))[0]) == 2  # type: ignore[arg-type]


@pytest.mark.slow
def test_wrong_options_for_loading_a_translator_are_named(run_dir: Path) -> None:
    with pytest.raises(ValueError, match="precision must be one of auto, fp32, bf16, fp16, int8, got 'int4'"):
        Translator.load(run_dir, precision="int4")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="decode must be a DecodeRecipe, got dict"):
        Translator.load(run_dir, decode={"beam_size": 2})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="ensemble must be a list of paths, got str"):
        Translator.load(run_dir, ensemble=str(run_dir))
    with pytest.raises(UserError, match="device None is unknown"):
        Translator.load(run_dir, device=None)  # type: ignore[arg-type]


def test_the_package_has_a_version_and_lists_its_names() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", nmt_package.__version__)
    assert dir(nmt_package) == nmt_package.__all__


@pytest.mark.slow
def test_paths_may_be_strings(run_dir: Path) -> None:
    path = run_dir / "recipe.toml"
    assert load_recipe(str(path)) == load_recipe(path)
    prepared = load_prepared(str(run_dir / "data"))
    assert Tokenizers.load(str(run_dir / "model")).digests() == prepared.tokenizers.digests()


@pytest.mark.parametrize("step", [pipeline.run, pipeline.prepare, pipeline.train])
def test_the_steps_of_a_run_need_a_loaded_recipe(step: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match=r"recipe must be a Recipe, got str; use nmt.recipe.load_recipe\(PATH\)"):
        step("quickstart")


def test_translations_are_hashable() -> None:
    first, same, other = (Translation(text, -1.0, -2.0, [text], [-2.0], [(0, 0)]) for text in ("a", "a", "b"))
    assert {first, same, other} == {first, other}


@pytest.mark.slow
def test_options_in_python_override_those_of_the_model(run_dir: Path) -> None:
    own = read_model_metadata(run_dir / "model").decode
    assert own.max_extra_tokens == 5 and own.beam_size == 2  # not the defaults
    merged = DecodeRecipe(beam_size=3).over(own)
    assert merged == own.model_copy(update={"beam_size": 3})
    assert DecodeRecipe().all_given().over(own) == DecodeRecipe()
    long = "The woman buys a car and the man sees a house and the child reads a book."
    ours = Translator.load(run_dir, "cpu", decode=DecodeRecipe(beam_size=3))
    same = Translator.load(run_dir, "cpu", decode=merged)
    assert ours.translate([long]) == same.translate([long])
    assert ours.with_decode(DecodeRecipe(min_tokens=2))._decode == merged.model_copy(update={"min_tokens": 2})
    with pytest.raises(ValueError, match="fusion_weight has no effect without fusion"):
        ours.with_decode(DecodeRecipe(fusion_weight=0.5))
    for wrong, fix in (([], r"add \[\]"), ([["x"], ["y"]], "remove the extra ones")):
        with pytest.raises(UserError, match=f"previous sentences for 1 line; expected one per line; {fix}"):
            ours.translate([long], context=wrong)
