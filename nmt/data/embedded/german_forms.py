"""German morphology: articles, adjective endings, noun forms, pronouns and conjugation.

Source of the paradigms: any school grammar; the tests hold them against tables written out by hand.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Literal

from nmt.data.embedded.entries import Adjective, Case, Column, Modal, Noun, Person, Verb

Declension = Literal["weak", "mixed", "strong"]
Endings = dict[tuple[Case, Column], str]
"""An ending, or a whole form, for each case and column."""


def _paradigm(rows: str) -> Endings:
    """Read a paradigm: a row for each case (nom, acc, dat, gen), in it m, f, n and plural; a dash is no ending."""
    cases: tuple[Case, ...] = ("nom", "acc", "dat", "gen")
    columns: tuple[Column, ...] = ("m", "f", "n", "p")
    cells = iter(rows.split())
    return {(case, column): next(cells).replace("-", "") for case in cases for column in columns}


DEFINITE_ARTICLE = _paradigm("der die das die  den die das die  dem der dem den  des der des der")
RELATIVE_PRONOUN = _paradigm("der die das die  den die das die  dem der dem denen  dessen deren dessen deren")
DER_ENDINGS = _paradigm("er e es e  en e es e  em er em en  es er es er")
"""Endings of dieser, jeder, welcher and the like."""
EIN_ENDINGS = _paradigm("- e - e  en e - e  em er em en  es er es er")
"""Endings of ein, kein and the possessives."""

ADJECTIVE_ENDINGS: dict[Declension, Endings] = {
    "weak": _paradigm("e e e en  en e e en  en en en en  en en en en"),
    "mixed": _paradigm("er e es en  en e es en  en en en en  en en en en"),
    "strong": _paradigm("er e es e  en e es e  em er em en  en er en er"),
}
"""After der, dieser, jeder, alle: weak; after ein, kein, mein: mixed; after nothing, numbers, viele: strong."""

_PRONOUNS: dict[str, tuple[str, str, str]] = {  # nominative, accusative, dative
    "I": ("ich", "mich", "mir"),
    "you": ("du", "dich", "dir"),
    "he": ("er", "ihn", "ihm"),
    "she": ("sie", "sie", "ihr"),
    "it": ("es", "es", "ihm"),
    "we": ("wir", "uns", "uns"),
    "they": ("sie", "sie", "ihnen"),
}
PRONOUNS: dict[tuple[str, Case], str] = {}
for _english, (_nominative, _accusative, _dative) in _PRONOUNS.items():
    PRONOUNS |= {(_english, "nom"): _nominative, (_english, "acc"): _accusative, (_english, "dat"): _dative}

WHO: dict[Case, str] = {"nom": "wer", "acc": "wen", "dat": "wem", "gen": "wessen"}
WHAT: dict[Case, str] = {"nom": "was", "acc": "was", "dat": "was", "gen": "wessen"}
REFLEXIVE: dict[Person, str] = {"1s": "mich", "2s": "dich", "3s": "sich", "1p": "uns", "3p": "sich"}
"""All reflexive verbs of the lexicon take the accusative."""

# Which determiners decline like dieser, and which like ein; the plural of ein is no word at all.
_DER_WORDS = {"this": "dies", "every": "jed", "which": "welch", "all": "all"}
_STRONG_WORDS = {"some": "einig", "many": "viel"}
_EIN_WORDS = {
    "a": "ein",
    "no": "kein",
    "my": "mein",
    "your": "dein",
    "his": "sein",
    "her": "ihr",
    "our": "unser",
    "their": "ihr",
}
_UNINFLECTED = {"": "", "how many": "wie viele"}

_CONTRACTIONS = {
    ("in", "dem"): "im",
    ("in", "das"): "ins",
    ("an", "dem"): "am",
    ("an", "das"): "ans",
    ("zu", "dem"): "zum",
    ("zu", "der"): "zur",
    ("von", "dem"): "vom",
    ("bei", "dem"): "beim",
}

_IRREGULAR_PRESENT: dict[str, tuple[str, str, str, str, str]] = {  # ich, du, er, wir, sie
    "sein": ("bin", "bist", "ist", "sind", "sind"),
    "haben": ("habe", "hast", "hat", "haben", "haben"),
    "werden": ("werde", "wirst", "wird", "werden", "werden"),
    "wissen": ("weiß", "weißt", "weiß", "wissen", "wissen"),
}
_PRETERITE = {"sein": "war", "haben": "hatte", "werden": "wurde"}
"""The verbs whose simple past is usual in speech too; all others use the perfect."""

_PERSON_INDEX: dict[Person, int] = {"1s": 0, "2s": 1, "3s": 2, "1p": 3, "3p": 4}
# Stems that need an e before t and st: arbeit-, red-, öffn-, zeichn-, regn-; but not lern- or wohn-.
_NEEDS_E = re.compile(r"([dt]|[^aeiouäöürlhmn]n|chn|[^aeiouäöürlhm]m)$")


@cache
def determiner(english: str, case: Case, column: Column) -> str:
    """The German for an English determiner; empty for none."""
    if english == "the":
        return DEFINITE_ARTICLE[case, column]
    if english in _UNINFLECTED:
        return _UNINFLECTED[english]
    if english in _DER_WORDS:
        return _DER_WORDS[english] + DER_ENDINGS[case, column]
    if english in _STRONG_WORDS:
        return _STRONG_WORDS[english] + DER_ENDINGS[case, column]
    return _EIN_WORDS[english] + EIN_ENDINGS[case, column]


def declension(english: str) -> Declension:
    """How an adjective after the determiner declines."""
    if english == "the" or english in _DER_WORDS:
        return "weak"
    return "mixed" if english in _EIN_WORDS else "strong"


@cache
def adjective_stem(adjective: Adjective, degree: Literal["positive", "comparative", "superlative"]) -> str:
    """What the endings are put to: teuer and dunkel lose an e (teure, dunkle), müde its last."""
    match degree:
        case "comparative":
            return adjective.de_comparative
        case "superlative":
            return adjective.de_superlative
        case "positive":
            if adjective.de.endswith(("el", "euer")):
                return adjective.de[:-2] + adjective.de[-1]
            return adjective.de.removesuffix("e")


def noun(entry: Noun, case: Case, plural: bool) -> str:
    """The noun in a case; masculine nouns without a genitive s are weak and take their n everywhere but on top."""
    if plural:
        return entry.de_plural + ("n" if case == "dat" and entry.de_plural[-1] not in "ns" else "")
    weak = entry.gender == "m" and not entry.de_genitive.endswith("s")
    return entry.de_genitive if case == "gen" or (weak and case != "nom") else entry.de


def contract(preposition: str, phrase: str) -> str:
    """A preposition before a noun phrase, melted with the article where German always does: in dem Haus -> im Haus."""
    first, blank, rest = phrase.partition(" ")
    melted = _CONTRACTIONS.get((preposition, first))
    return f"{melted}{blank}{rest}" if melted else f"{preposition} {phrase}"


@cache
def present(verb: str, changed_stem: str, person: Person) -> str:
    """The present tense of an infinitive without prefix; `changed_stem` is that of du and er, or empty."""
    if verb in _IRREGULAR_PRESENT:
        return _IRREGULAR_PRESENT[verb][_PERSON_INDEX[person]]
    stem = _stem(verb)
    match person:
        case "1p" | "3p":
            return verb
        case "1s":
            return first_person_stem(stem) + "e"
        case "2s" | "3s":
            e = "e" if not changed_stem and _NEEDS_E.search(stem) else ""
            stem = changed_stem or stem
            if person == "3s":  # er lädt, but er hält and er tritt
                return stem if changed_stem and stem.endswith("t") else stem + e + "t"
            return stem + e + ("t" if stem[-1] in "sßxz" else "st")


def first_person_stem(stem: str) -> str:
    """The stem before an e, where sammel- loses its own: ich sammle."""
    return stem[:-2] + "l" if stem.endswith("el") else stem


@cache
def preterite(verb: str, person: Person) -> str:
    """The simple past of sein, haben and werden."""
    return past_ending(_PRETERITE[verb], person)


def has_preterite(verb: str) -> bool:
    """Whether the simple past is the usual one."""
    return verb in _PRETERITE


def past_ending(past: str, person: Person) -> str:
    """A simple past form, given that of ich: war, warst, waren; konnte, konntest, konnten."""
    match person:
        case "1s" | "3s":
            return past
        case "2s":
            return past + "st"
        case "1p" | "3p":
            return past + ("n" if past.endswith("e") else "en")


def modal_present(modal: Modal, person: Person) -> str:
    """The present tense of a modal verb."""
    match person:
        case "1s" | "3s":
            return modal.de_singular
        case "2s":
            return modal.de_second
        case "1p" | "3p":
            return modal.de_plural


@cache
def imperative(verb: Verb) -> str:
    """The command to a friend, without prefix: kauf, arbeite, nimm, but fahr (no umlaut), sammle."""
    stem = _stem(verb.de)
    if verb.present_stem and not re.search("[äöü]", verb.present_stem):
        return verb.present_stem
    if _NEEDS_E.search(stem) or stem.endswith(("el", "er")):
        return first_person_stem(stem) + "e"
    return stem


def infinitive_with_zu(verb: Verb) -> str:
    """zu kaufen, but anzurufen."""
    return f"{verb.prefix}zu{verb.de}" if verb.prefix else f"zu {verb.de}"


def _stem(infinitive: str) -> str:
    return infinitive.removesuffix("n").removesuffix("e") if infinitive.endswith("en") else infinitive.removesuffix("n")
