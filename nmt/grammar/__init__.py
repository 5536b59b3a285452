"""The built-in toy corpus: pairs made by a small English-German grammar, which need no file at all.

One abstract sentence is realized in both languages. German must be right where it is hard: verb second and verb final,
separable verbs, gender, case and adjective endings, compounds, number words, relative clauses, negation. Every English
sentence of the grammar has one translation, therefore a model can reach a BLEU near 100.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nmt.grammar.english import english
from nmt.grammar.german import german
from nmt.grammar.sampler import Sampler
from nmt.grammar.splits import Split, digest, may_contain
from nmt.grammar.syntax import Sentence
from nmt.recipe import UserError

__all__ = ["ToyPair", "generate", "source_files", "translate"]

_PATIENCE = 200_000
"""So many sentences in a row that are not new mean that there are none, or hardly any."""


class ToyPair(NamedTuple):
    """An English sentence, its German translation, and labels of what makes it difficult, sorted."""

    src: str
    tgt: str
    labels: tuple[str, ...]


def generate(split: Split, pairs: int, seed: int) -> Iterator[ToyPair]:
    """Exactly `pairs` distinct pairs, which depend on split and seed alone: fewer pairs are the first of more.

    train and valid share no sentence and avoid all held-out combinations of words. Each sentence of test has at least
    one such combination, though each of its words occurs in training. nested has clauses within clauses, three or four
    deep, where train has at most two.

    Raises UserError if the grammar cannot supply so many.
    """
    sampler, seen, drawn_in_vain = Sampler(split, seed), set[int](), 0
    while len(seen) < pairs:
        sentence = sampler.sentence()
        drawn_in_vain += 1
        if drawn_in_vain > _PATIENCE:
            raise UserError(
                f"the built-in toy corpus has no more {split} pairs than {len(seen)}; {pairs} were asked for; "
                "ask for fewer"
            )
        if split == "test" and not sampler.has_held_out:
            continue
        src = _punctuate(english(sentence))
        src_digest = digest(src)
        if src_digest not in seen and may_contain(split, src_digest):
            seen.add(src_digest)
            drawn_in_vain = 0
            yield _with_german(src, sentence)


def source_files() -> list[Path]:
    """The files that decide what `generate` gives: another version of the grammar makes other pairs."""
    return sorted(Path(__file__).parent.glob("*.py"))


def translate(sentence: Sentence) -> ToyPair:
    """Both sides of a sentence."""
    return _with_german(_punctuate(english(sentence)), sentence)


def _with_german(src: str, sentence: Sentence) -> ToyPair:
    text, labels = german(sentence)
    return ToyPair(src, _punctuate(text), tuple(sorted(labels)))


def _punctuate(text: str) -> str:
    """Capital first letter; a comma stands once, and never before a stop."""
    text = text.replace(" ,", ",")
    while ",," in text:  # where several clauses end at once
        text = text.replace(",,", ",")
    if text[-2] == ",":
        text = text[:-2] + text[-1]
    return text[0].upper() + text[1:]
