"""Random phrases: names, pronouns, and nouns with all around them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from nmt.data.embedded.entries import Adjective, Noun
from nmt.data.embedded.modifiers import NAMES
from nmt.data.embedded.nouns import nouns
from nmt.data.embedded.splits import Split, digest, is_held_out
from nmt.data.embedded.syntax import Coordination, Degree, Name, NounPhrase, Phrase, Pronoun
from nmt.data.embedded.vocabulary import vocabulary

T = TypeVar("T")

# Each word as often as its weight.
_POSSESSIVES = ("my", "your", "his", "her", "our", "their")
_SINGULAR = ("the",) * 10 + ("a",) * 6 + ("this",) * 2 + ("every", *_POSSESSIVES)
_PLURAL = ("the",) * 6 + ("",) * 3 + ("this", "some", "many", "all", *_POSSESSIVES)
_MASS = ("the",) * 6 + ("",) * 5 + ("this", *_POSSESSIVES)
_OF_OWNERS = ("the", "the", "the", *_POSSESSIVES)
_OF_POINTED_OUT = ("the", "the", "the", "a", "a")
_ALL_PRONOUNS = (Pronoun("I"), Pronoun("you"), Pronoun("he"), Pronoun("she"), Pronoun("we"), Pronoun("they"))
_PRONOUNS = (*_ALL_PRONOUNS, *_ALL_PRONOUNS[:2] * 3)  # I and you have verb forms of their own, so let them come often
NAMED = tuple(map(Name, NAMES))
_OWNERS = nouns("person")


class Filler(NamedTuple):
    """A phrase for a slot, and the noun that decides what may be said of it (None: a person by name or pronoun)."""

    phrase: Phrase
    noun: Noun | None


class PhraseSampler:
    """Draws phrases for a split.

    `_detail` scales how much is said beside the point, so that deep sentences do not grow too long. Every draw is a
    multiple of `random.random`, the one method whose sequence Python promises to keep. Only the split test draws
    held-out combinations.
    """

    def __init__(self, split: Split, seed: int) -> None:
        self._random = random.Random(digest(f"{split} {seed}")).random
        self._with_held_out = split == "test"
        self._detail = 1.0
        self._words = vocabulary(self._with_held_out)

    # --- Drawing ----------------------------------------------------------------------------------------------------

    def _chance(self, probability: float) -> bool:
        return self._random() < probability

    def _pick(self, choices: Sequence[T]) -> T:
        return choices[int(self._random() * len(choices))]

    def _number(self, low: int, high: int) -> int:
        """A number that may count things: one that does not end in hundred and one, whose German would inflect."""
        while True:
            number = low + int(self._random() * (high - low + 1))
            if number % 100 == 1:
                continue
            if self._with_held_out or not is_held_out(("number", str(number), "")):
                return number

    # --- Noun phrases -----------------------------------------------------------------------------------------------

    def _noun_phrase(self, noun: Noun) -> NounPhrase:
        """A noun with determiner, number and perhaps an adjective or an owner."""
        if not noun.countable:
            return self._described(noun, self._pick(_MASS), plural=False)
        roll = self._random()
        if roll < 0.07 and noun.owned:
            return self._owned(noun)
        if roll < 0.74:
            return self._described(noun, self._pick(_SINGULAR), plural=False)
        if roll < 0.93:
            determiner = self._pick(_PLURAL)
            if not determiner and noun.kind in ("person", "place"):
                determiner = "the"
            return self._described(noun, determiner, plural=True)
        return self._described(noun, "", plural=True)._replace(number=self._count(noun))

    def _described(self, noun: Noun, determiner: str, plural: bool) -> NounPhrase:
        """The noun, perhaps with an adjective; nobody's things take the article instead of a possessive."""
        if not noun.owned and determiner in _POSSESSIVES:
            determiner = "the"
        adjectives = self._words.adjectives[noun]
        if not adjectives or self._random() > 0.3 * self._detail:
            return NounPhrase(noun, determiner, plural)
        adjective = self._pick(adjectives)
        return NounPhrase(noun, determiner, plural, adjective, self._degree(adjective, determiner))

    def _degree(self, adjective: Adjective, determiner: str) -> Degree:
        is_superlative = determiner == "the" and adjective.gradable and self._chance(0.35)
        return "superlative" if is_superlative else "positive"

    def _owned(self, noun: Noun) -> NounPhrase:
        """Anna's dog, the neighbor's dog."""
        if self._chance(0.5):  # without an adjective, whose strong dative (Annas altem Hund) would be too rare to learn
            return NounPhrase(noun, "", possessor=self._pick(NAMED))
        owner = self._pick(_OWNERS)
        possessor = NounPhrase(owner, self._pick(_OF_OWNERS) if owner.owned else "the")
        return self._described(noun, "", plural=False)._replace(possessor=possessor)

    def _count(self, noun: Noun) -> int:
        roll = self._random()
        if roll < 0.6 or noun.kind == "place":
            return self._number(2, 12)
        return self._number(13, 99) if roll < 0.8 or noun.kind == "person" else self._number(100, 999)

    def _pointed_out(self, noun: Noun) -> NounPhrase:
        """A noun that a relative clause is going to describe."""
        plural = noun.countable and self._chance(0.25)
        determiner = self._pick(_OF_POINTED_OUT) if noun.countable else "the"
        return self._described(noun, "the" if plural else determiner, plural)

    def _one_of(self, entries: Sequence[Noun], *, pronouns: float, pairs: bool = True) -> Filler:
        """A phrase for any of these nouns.

        pronouns: how often a personal pronoun, or a name, may stand for a person; 0 where neither can
        pairs: whether two things at once are possible
        """
        roll = self._random()
        if roll < pronouns:
            return Filler(self._pick(_PRONOUNS), None)
        if pronouns and roll < pronouns + 0.16:
            return Filler(self._pick(NAMED), None)
        noun = self._pick(entries)
        if roll < 0.93 or not pairs:
            return Filler(self._noun_phrase(noun), noun)
        return Filler(self._pair(noun, entries, person=pronouns > 0), noun)

    def _pair(self, noun: Noun, entries: Sequence[Noun], *, person: bool) -> Phrase:
        """Two phrases joined by and, or one where the second would repeat the first."""
        other = self._pick(entries)
        first = self._described(noun, self._pick(_OF_OWNERS), plural=False)
        if person and noun.kind == "person" and self._chance(0.5):
            return Coordination(self._pick(NAMED), first)
        if other is noun or other.kind != noun.kind:
            return first
        return Coordination(first, self._described(other, self._pick(_OF_OWNERS), plural=False))
