"""English morphology: articles, pronouns, noun phrases' small words and verb forms."""

from __future__ import annotations

from functools import cache

from nmt.data.embedded.entries import Person

SUBJECT_PRONOUNS = {word: word for word in ("I", "you", "he", "she", "it", "we", "they")}
OBJECT_PRONOUNS = {"I": "me", "you": "you", "he": "him", "she": "her", "it": "it", "we": "us", "they": "them"}

_BE_PRESENT: dict[Person, str] = {"1s": "am", "2s": "are", "3s": "is", "1p": "are", "3p": "are"}
_BE_PAST: dict[Person, str] = {"1s": "was", "2s": "were", "3s": "was", "1p": "were", "3p": "were"}


def determiner(word: str, plural: bool, following: str) -> str:
    """The form of a determiner before a word: an apple, these apples."""
    if word == "a":
        return "an" if following[0] in "aeiou" else "a"
    if word == "this" and plural:
        return "these"
    return word


def be_present(person: Person) -> str:
    """am, are, is"""
    return _BE_PRESENT[person]


def be_past(person: Person) -> str:
    """was, were"""
    return _BE_PAST[person]


def have_present(person: Person) -> str:
    """have, has"""
    return "has" if person == "3s" else "have"


def do_present(person: Person) -> str:
    """do, does"""
    return "does" if person == "3s" else "do"


@cache
def third_person(base: str) -> str:
    """The present tense of he and she: throws away, watches television, cries, has."""
    verb, blank, particle = base.partition(" ")
    if verb == "have":
        form = "has"
    elif verb.endswith(("s", "sh", "ch", "x", "z", "o")):
        form = verb + "es"
    elif verb.endswith("y") and verb[-2] not in "aeiou":
        form = verb[:-1] + "ies"
    else:
        form = verb + "s"
    return form + blank + particle
