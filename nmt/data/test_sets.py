"""Test sets: source text with one or several reference translations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nmt.data.corpus import Labels, ReadOptions, read_labels, read_pairs, sacrebleu_files
from nmt.recipe import Corpus, Recipe, SacrebleuCorpus, SgmCorpus, TextCorpus, UserError


@dataclass(frozen=True)
class TestSet:
    """Unmodified text of a test set.

    name:   name in the recipe
    src:    source sentences
    refs:   one or several lists of reference translations, each as long as `src`
    labels: labels of each sentence; None if the corpus has none
    """

    __test__ = False  # not a test class of pytest

    name: str
    src: list[str]
    refs: list[list[str]]
    labels: list[Labels] | None = None

    @property
    def ref(self) -> list[str]:
        """The first reference of each sentence."""
        return self.refs[0]


def test_sets(recipe: Recipe) -> dict[str, TestSet]:
    """Read the test sets of a recipe, by name; raise UserError if one is unreadable or empty."""
    options = ReadOptions.from_recipe(recipe)
    return {name: _read(name, corpus, options) for name, corpus in recipe.data.test.items()}


def _read(name: str, corpus: Corpus, options: ReadOptions) -> TestSet:
    by_reference = [list(read_pairs(variant, options)) for variant in _with_one_reference(corpus, options)]
    if not by_reference[0]:
        raise UserError(f"data.test.{name} has no sentences; it must have at least one; correct or remove it")
    labels = read_labels(corpus, options)
    return TestSet(
        name=name,
        src=[src for src, _ in by_reference[0]],
        refs=[[ref for _, ref in pairs] for pairs in by_reference],
        labels=None if labels is None else list(labels),
    )


def _with_one_reference(corpus: Corpus, options: ReadOptions) -> Sequence[Corpus]:
    """Return a copy of the corpus for each of its references."""
    match corpus:
        case TextCorpus() | SgmCorpus() if corpus.references:
            return [corpus.model_copy(update={"tgt": path}) for path in corpus.references]
        case SacrebleuCorpus():
            src, refs = sacrebleu_files(corpus.test_set, f"{options.src_lang}-{options.tgt_lang}")
            return [TextCorpus(src=src.absolute(), tgt=path.absolute()) for path in refs]
        case _:
            return [corpus]
