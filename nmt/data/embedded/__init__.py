"""The embedded corpus: pairs made by an English-German grammar that comes with nmt, so that nothing need be fetched.

One abstract sentence is realised in both languages. German has to be got right where it is hard: verb second and verb
final, separable verbs, gender, case and adjective endings, the order of number words, relative clauses, negation. Every
English sentence of the grammar has one translation, so a model can reach a BLEU near 100.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nmt.data.embedded.combinations import combinations
from nmt.data.embedded.english import english
from nmt.data.embedded.german import german
from nmt.data.embedded.sampler import Sampler
from nmt.data.embedded.splits import DigestSet, Split, digest, is_held_out, may_contain
from nmt.data.embedded.syntax import Sentence
from nmt.recipe import UserError

__all__ = ["EmbeddedPair", "generate"]

_PATIENCE = 200_000
"""So many draws in a row without a new sentence mean that there are none, or hardly any."""


@dataclass(frozen=True)
class EmbeddedPair:
    """An English sentence, its German translation, and the names of the phenomena that make it hard."""

    src: str
    tgt: str
    phenomena: tuple[str, ...]


def generate(split: Split, pairs: int, seed: int) -> Iterator[EmbeddedPair]:
    """Exactly `pairs` distinct pairs, which depend on split and seed alone: fewer pairs are the first of more.

    train and valid share no sentence and avoid all held-out combinations of words; each sentence of test has at least
    one, though each of its words occurs in training; nested has clauses within clauses, three or four deep, where train
    has at most two. Memory: 11 to 22 bytes a pair, and some 30 MB for phrases that come again and again.

    Raises UserError if the grammar cannot supply so many.
    """
    sampler = Sampler(split, seed)
    return distinct((sampler.sentence() for _ in iter(int, 1)), split, pairs)


def distinct(sentences: Iterator[Sentence], split: Split, pairs: int) -> Iterator[EmbeddedPair]:
    """The first `pairs` distinct sentences that belong to the split, with their translations.

    Raises UserError when the sentences end or only repeat themselves before there are enough.
    """
    seen = DigestSet(pairs)
    found = drawn_in_vain = 0
    while found < pairs:
        sentence = next(sentences, None)
        drawn_in_vain += 1
        if sentence is None or drawn_in_vain > _PATIENCE:
            raise UserError(
                f"the embedded corpus ran out of {split} pairs; it has {found} of the {pairs} asked for; ask for fewer"
            )
        if split == "test" and not any(map(is_held_out, combinations(sentence))):
            continue
        source = english(sentence)
        source_digest = digest(source)
        if may_contain(split, source_digest) and seen.add(source_digest):
            found += 1
            drawn_in_vain = 0
            yield EmbeddedPair(source, *german(sentence))
