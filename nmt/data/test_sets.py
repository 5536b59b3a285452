"""Test sets: source text with one or more reference translations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nmt.data.corpus import Labels, ReadOptions, read_documents, read_labels, read_pairs
from nmt.errors import UserError
from nmt.logs import warn
from nmt.recipe import Context, Corpus, Recipe, SacrebleuCorpus, SgmCorpus, TextCorpus, UnicodeForm
from nmt.text.clean import warn_of_form
from nmt.text.context import is_blank, with_previous
from nmt.text.format_warnings import warn_of_empty, warn_of_fields
from nmt.text.sacrebleu_sets import sacrebleu_files


@dataclass(frozen=True)
class TestSet:
    """Unmodified text of a test set.

    name:     name in the recipe
    src:      source sentences
    refs:     one or more lists of reference translations, each as long as `src`
    labels:   labels of each sentence; None if the corpus has none
    previous: number of context sentences of each sentence; None without context
    tags:     tag of each sentence in the validation set, "" for none; None without tags
    """

    __test__ = False  # not a test class of pytest

    name: str
    src: list[str]
    refs: list[list[str]]
    labels: list[Labels] | None = None
    previous: list[int] | None = None
    tags: list[str] | None = None

    @property
    def ref(self) -> list[str]:
        """The first reference of each sentence."""
        return self.refs[0]

    def warn_of_wrong_references(self, form: UnicodeForm) -> None:
        """Warn of references that equal another text or are not in `form`, of empty lines, and of formats such as TSV.

        Any translation of a sentence whose references are empty, such as null in JSON Lines, counts as wrong.
        """
        where = f"data.test.{self.name}"
        known = {"the source": self.src}
        warn_of_fields(f"the source of {where}", self.src, translations=self.ref)
        warn_of_empty(f"the source of {where}", self.src, self.refs, "they are translated as empty lines; correct them")
        remark = "their translations count as wrong; correct them"
        if len(self.refs) > 1:
            remark = "translations count as wrong only if all references are empty; correct them"
        for number, stream in enumerate(self.refs, start=1):
            name = f"reference {number}" if len(self.refs) > 1 else "the reference"
            warn_of_fields(f"{name} of {where}", stream)
            warn_of_empty(f"{name} of {where}", stream, [self.src], remark)
            warn_of_form(f"{name} of {where}", stream, form)
            for other, lines in known.items():
                if stream == lines:
                    warn(f"{name} of {where} is identical to {other}; is it the right file?")
            known[name] = stream


def test_sets(recipe: Recipe) -> dict[str, TestSet]:
    """Read the test sets of a recipe, by name; raise UserError if one is unreadable or empty."""
    options = ReadOptions.from_recipe(recipe)
    return {name: _read(name, corpus, options, recipe.data.context) for name, corpus in recipe.data.test.items()}


def reference_context(test: TestSet, context: Context) -> list[list[str | tuple[str, str]]]:
    """Return the previous sentences of each sentence; for context on both sides, with their references."""
    previous: Sequence[str | tuple[str, str]]
    previous = list(zip(test.src, test.ref, strict=True)) if context.has_target else test.src
    return [list(previous[i - count : i]) for i, count in enumerate(test.previous or ())]


def _read(name: str, corpus: Corpus, options: ReadOptions, context_size: int) -> TestSet:
    options = options.of(corpus)
    by_reference = [list(read_pairs(variant, options)) for variant in _with_one_reference(corpus, options)]
    if not by_reference[0]:
        raise UserError(f"data.test.{name} has no sentences; it must have at least one; correct or remove the set")
    labels = read_labels(corpus, options)
    src = [src for src, _ in by_reference[0]]
    previous = None
    if context_size:
        documents = read_documents(corpus, options)
        previous = [len(context) for _, context in with_previous(src, context_size, is_blank, documents)]
    return TestSet(
        name=name,
        src=src,
        refs=[[ref for _, ref in pairs] for pairs in by_reference],
        labels=None if labels is None else list(labels),
        previous=previous,
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
