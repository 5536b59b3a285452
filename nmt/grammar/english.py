"""Realization of sentences in English."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import assert_never

from nmt.grammar.entries import Adjective, Fixed, Noun, Person
from nmt.grammar.numbers import english_cardinal
from nmt.grammar.syntax import (
    Clause,
    Coordination,
    It,
    Name,
    NounPhrase,
    Phrase,
    Prepositional,
    Pronoun,
    Relative,
    Sentence,
)

_CACHE_SIZE = 1 << 15
_OBJECT_PRONOUNS = {"I": "me", "he": "him", "she": "her", "we": "us", "they": "them"}
_BE: dict[Person, tuple[str, str]] = {
    "1s": ("am", "was"),
    "2s": ("are", "were"),
    "3s": ("is", "was"),
    "1p": ("are", "were"),
    "3p": ("are", "were"),
}


def english(sentence: Sentence) -> str:
    """Realize a sentence in English, before capitalization and comma cleanup."""
    if sentence.question:
        return _clause(sentence.clause, inverted=True) + "?"
    if sentence.second is None:
        return _clause(sentence.clause) + "."
    comma = " ," if sentence.coordinator == "but" else ""
    return f"{_clause(sentence.clause)}{comma} {sentence.coordinator} {_clause(sentence.second)}."


# --- Clauses ----------------------------------------------------------------------------------------------------------


def _clause(clause: Clause, inverted: bool = False) -> str:
    """Realize a clause; `inverted` puts the auxiliary before the subject, unless the question asks for the subject."""
    front, adjunct = clause.front, clause.adjunct
    inverted = inverted and front != "subject"
    words: list[str] = []
    if adjunct is not None and adjunct.first:
        words += (adjunct.conjunction or "", _clause(adjunct.clause), ",")
    words.append(_front(clause))
    auxiliary, main = _verb_group(clause, do=clause.negated or inverted)
    if clause.negated and auxiliary == "can" and not inverted:
        auxiliary = "cannot"
    elif clause.negated:
        main = f"not {main}".rstrip()
    subject = _phrase(clause.subject)
    words += (auxiliary, subject) if inverted else (subject, auxiliary)
    if clause.frequency is not None:
        words.append(clause.frequency.en)
    words.append(main)
    _add_rest(words, clause)
    return " ".join(filter(None, words))


def _front(clause: Clause) -> str:
    """Realize what precedes the subject: a time, a question word, or a relative pronoun with its preposition."""
    match clause.front:
        case "time" if clause.time is not None:
            return clause.time.en
        case "place":
            return _adverbial(clause.place)
        case "object" if isinstance(clause.object, Relative):
            preposition, human = clause.verb.en_preposition, clause.object.noun.is_human
            if preposition:
                return f"{preposition} {'whom' if human else 'which'}"
            return "whom" if human else "that"
        case "object" if clause.object is not None:
            return _phrase(clause.object)  # questions strand the preposition
        case _:
            return ""


def _add_rest(words: list[str], clause: Clause) -> None:
    """Add what follows the verb: objects, predicate, manner, place and company, time, subordinate clauses."""
    if clause.receiver is not None:
        words.append(_phrase(clause.receiver, as_object=True))
    if not isinstance(clause.object, Relative):
        words.append(clause.verb.en_preposition)
    if clause.object is not None and clause.front != "object":
        words.append(_phrase(clause.object, as_object=True))
    if clause.predicate is not None:
        words.append(clause.predicate.en)
    place, company = _adverbial(clause.place) if clause.front != "place" else "", _adverbial(clause.company)
    words += (_adverbial(clause.manner), *((company, place) if clause.passive else (place, company)))
    if clause.front != "time":
        words.append(_adverbial(clause.time))
    complement, adjunct = clause.complement, clause.adjunct
    if complement is not None and complement.conjunction is not None:
        words += (complement.conjunction, _clause(complement.clause))
    elif complement is not None:
        words += ("to", complement.clause.verb.en)
        _add_rest(words, complement.clause)
    if adjunct is not None and not adjunct.first:
        words += (adjunct.conjunction or "", _clause(adjunct.clause))


# --- Verbs ------------------------------------------------------------------------------------------------------------


def _verb_group(clause: Clause, do: bool) -> tuple[str, str]:
    """Return the auxiliary and the remaining verb forms. do: use do-support if there is no other auxiliary"""
    verb, who, modal = clause.verb, clause.subject.person, clause.modal
    is_past, is_third = clause.tense == "past", who == "3s"
    do_form = "did" if is_past else "does" if is_third else "do"
    if modal is not None:
        infinitive = f"be {verb.en_participle}" if clause.passive else verb.en
        if modal.do and do:
            return do_form, f"{modal.en} {infinitive}"
        finite = modal.en_past if is_past else modal.en_third if is_third else modal.en
        auxiliary, _, rest = ("", "", finite) if modal.do else finite.partition(" ")
        return auxiliary, f"{rest} {infinitive}".lstrip()
    if clause.passive or verb.en == "be":
        return _be_group(clause, verb.en_participle if clause.passive else "")
    match clause.tense:
        case "present" | "past" if do:
            return do_form, verb.en
        case "present":
            return "", third_person(verb.en) if is_third else verb.en
        case "past":
            return "", verb.en_past
        case "progressive":
            return _BE[who][0], verb.en_ing
        case "perfect":
            return "has" if is_third else "have", verb.en_participle
        case "future":
            return "will", verb.en
        case _:
            assert_never(clause.tense)


def _be_group(clause: Clause, participle: str) -> tuple[str, str]:
    """Return the forms of be, as a full verb or as the passive auxiliary."""
    present, past = _BE[clause.subject.person]
    if clause.tense == "future":
        return "will", f"be {participle}".rstrip()
    return past if clause.tense == "past" else present, participle


@cache
def third_person(base: str) -> str:
    """Return the third person singular: looks at, watches television, cries, has."""
    verb, blank, particle = base.partition(" ")
    if verb == "have":
        form = "has"
    elif verb.endswith(("s", "sh", "ch", "x", "o")):
        form = verb + "es"
    elif verb.endswith("y") and verb[-2] not in "aeiou":
        form = verb[:-1] + "ies"
    else:
        form = verb + "s"
    return form + blank + particle


# --- Phrases ----------------------------------------------------------------------------------------------------------


def _phrase(phrase: Phrase, as_object: bool = False) -> str:
    match phrase:
        case NounPhrase():
            return _noun_phrase(phrase)
        case Pronoun():
            return _OBJECT_PRONOUNS.get(phrase.word, phrase.word) if as_object else phrase.word
        case Name():
            return phrase.name
        case Coordination():
            return f"{_phrase(phrase.first)} and {_phrase(phrase.second)}"
        case Relative():
            return "who" if phrase.noun.is_human else "that"
        case It():
            return "it"
        case _:
            assert_never(phrase)


def _noun_phrase(phrase: NounPhrase) -> str:
    noun, determiner, plural, modifier, adjective, number, owner, relative = phrase
    words = _core(noun, determiner, plural, modifier, adjective)
    if number:
        words = f"{english_cardinal(number)} {words}"
    elif owner is not None:
        words = f"{_phrase(owner)}'s {words}"
    return words if relative is None else f"{words} {_clause(relative)}"


@lru_cache(_CACHE_SIZE)
def _core(noun: Noun, determiner: str, plural: bool, modifier: Fixed | None, adjective: Adjective | None) -> str:
    """Realize determiner, adjective, compound modifier and noun."""
    words = noun.en_plural if plural else noun.en
    if modifier is not None:
        words = f"{modifier.en} {words}"
    if adjective is not None:
        words = f"{adjective.en} {words}"
    if determiner == "a" and words[0] in "aeiou":
        determiner = "an"
    elif determiner == "this" and plural:
        determiner = "these"
    return f"{determiner} {words}".lstrip()


def _adverbial(place: Prepositional | Fixed | None) -> str:
    """Realize an adverb or a prepositional phrase; empty for None."""
    if place is None:
        return ""
    return place.en if isinstance(place, Fixed) else f"{place.en} {_phrase(place.phrase)}"
