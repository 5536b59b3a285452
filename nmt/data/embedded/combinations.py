"""The combinations of words in a sentence, of which some are held out of training."""

from __future__ import annotations

from collections.abc import Iterator

from nmt.data.embedded.entries import Adverbial, Combination, Noun
from nmt.data.embedded.syntax import (
    AdjectivePredicate,
    Clause,
    Coordination,
    Measure,
    NounPhrase,
    Phrase,
    PrepositionalPhrase,
    RelativePronoun,
    Sentence,
)


def combinations(sentence: Sentence) -> Iterator[Combination]:
    """All combinations in a sentence, some perhaps more than once."""
    yield from _in_clause(sentence.clause, None)
    if sentence.second is not None:
        yield from _in_clause(sentence.second, None)


def _in_clause(clause: Clause, antecedent: Noun | None) -> Iterator[Combination]:
    """The combinations in a clause; `antecedent` is the noun that its relative pronoun stands for."""
    verb = clause.verb.infinitive
    subjects = _nouns(clause.subject, antecedent)
    if verb != "sein":  # anything can be something
        yield from (("object" if clause.passive else "subject", verb, noun.en) for noun in subjects)
    if clause.agent is not None:
        yield from (("subject", verb, noun.en) for noun in _nouns(clause.agent, None))
    receiver = clause.indirect if clause.direct is not None else None
    for phrase in (clause.direct, clause.indirect, clause.oblique):
        if phrase is not None and phrase is not receiver:
            yield from (("object", verb, noun.en) for noun in _nouns(phrase, antecedent))
    match clause.predicate:
        case AdjectivePredicate(adjective, _, _, standard):
            compared = subjects + (_nouns(standard, None) if standard is not None else [])
            yield from (("adjective", adjective.en, noun.en) for noun in compared)
        case Measure(number):
            yield "number", str(number), ""
    yield from _in_parts(clause)


def _in_parts(clause: Clause) -> Iterator[Combination]:
    """The combinations inside phrases, circumstances and subordinate clauses."""
    standard = clause.predicate.standard if isinstance(clause.predicate, AdjectivePredicate) else None
    for phrase in (clause.subject, clause.agent, clause.direct, clause.indirect, clause.oblique, standard):
        if phrase is not None:
            yield from _in_phrase(phrase)
    for circumstance in (clause.companion, clause.place, clause.time):
        match circumstance:
            case PrepositionalPhrase():
                yield from _in_phrase(circumstance.phrase)
            case Adverbial() if circumstance.combination is not None:
                yield circumstance.combination
    if clause.complement is not None:
        yield from _in_clause(clause.complement.clause, None)
    if clause.adjunct is not None:
        yield from _in_clause(clause.adjunct.clause, None)


def _in_phrase(phrase: Phrase) -> Iterator[Combination]:
    match phrase:
        case NounPhrase():
            if phrase.adjective is not None:
                yield "adjective", phrase.adjective.en, phrase.noun.en
            if phrase.number:
                yield "number", str(phrase.number), ""
            if phrase.possessor is not None:
                yield from _in_phrase(phrase.possessor)
            if phrase.relative is not None:
                yield from _in_clause(phrase.relative, phrase.noun)
        case Coordination():
            yield from _in_phrase(phrase.first)
            yield from _in_phrase(phrase.second)


def _nouns(phrase: Phrase, antecedent: Noun | None) -> list[Noun]:
    """The nouns that a phrase stands for."""
    match phrase:
        case NounPhrase():
            return [phrase.noun]
        case Coordination():
            return _nouns(phrase.first, None) + _nouns(phrase.second, None)
        case RelativePronoun():
            return [antecedent] if antecedent is not None else []
        case _:
            return []
