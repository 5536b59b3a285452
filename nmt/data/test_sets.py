"""Test sets: text to translate, with one or several references to score the translations with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nmt.data.corpus import Labels, read_labels, read_pairs, sacrebleu_files
from nmt.recipe import Corpus, Recipe, SacrebleuCorpus, SgmCorpus, TextCorpus, UserError


@dataclass(frozen=True)
class TestSet:
    """Text to translate and to score the translations with, as it stands in the corpus.

    name:   name in the recipe
    src:    sentences
    refs:   one or several streams of reference translations, each as long as `src`
    labels: those of each sentence; None if the corpus has no labels
    """

    __test__ = False  # Not for pytest to collect.

    name: str
    src: list[str]
    refs: list[list[str]]
    labels: list[Labels] | None = None

    @property
    def ref(self) -> list[str]:
        """The first reference of each sentence."""
        return self.refs[0]


def test_sets(recipe: Recipe) -> dict[str, TestSet]:
    """The test sets of a recipe by name; raises UserError when one cannot be read or is empty."""
    return {name: _read(name, corpus, recipe) for name, corpus in recipe.data.test.items()}


def _read(name: str, corpus: Corpus, recipe: Recipe) -> TestSet:
    sides = [
        list(read_pairs(variant, recipe.data, recipe.src_lang, recipe.tgt_lang))
        for variant in _with_one_reference(corpus, recipe)
    ]
    if not sides[0]:
        raise UserError(f"data.test.{name} has no sentences; it must have at least one; correct or remove it")
    labels = read_labels(corpus, recipe.data, recipe.src_lang, recipe.tgt_lang)
    return TestSet(
        name=name,
        src=[src for src, _ in sides[0]],
        refs=[[ref for _, ref in pairs] for pairs in sides],
        labels=None if labels is None else list(labels),
    )


def _with_one_reference(corpus: Corpus, recipe: Recipe) -> Sequence[Corpus]:
    """The same corpus once for each reference."""
    match corpus:
        case TextCorpus() | SgmCorpus() if corpus.references:
            return [corpus.model_copy(update={"tgt": path}) for path in corpus.references]
        case SacrebleuCorpus():
            src, refs = sacrebleu_files(corpus.test_set, f"{recipe.src_lang}-{recipe.tgt_lang}")
            return [TextCorpus(src=src.absolute(), tgt=path.absolute()) for path in refs]
        case _:
            return [corpus]
