"""German morphology: determiners, adjectives, nouns, pronouns and verbs."""

from __future__ import annotations

import re
from functools import cache

from nmt.grammar.entries import Case, Gender, Noun, Person

Paradigm = dict[tuple[Case, Gender], str]
"""An ending or a full form for each case and gender."""


def _paradigm(rows: str) -> Paradigm:
    """Parse a paradigm: for each case (nom, acc, dat, gen) the m, f, n and plural forms; a dash means no ending."""
    cases: tuple[Case, ...] = ("nom", "acc", "dat", "gen")
    genders: tuple[Gender, ...] = ("m", "f", "n", "p")
    cells = iter(rows.split())
    return {(case, gender): next(cells).replace("-", "") for case in cases for gender in genders}


RELATIVE = _paradigm("der die das die  den die das die  dem der dem denen  dessen deren dessen deren")
_THE = _paradigm("der die das die  den die das die  dem der dem den  des der des der")
_DER_ENDINGS = _paradigm("er e es e  en e es e  em er em en  es er es er")
_EIN_ENDINGS = _paradigm("- e - e  en e - e  em er em en  es er es er")
_WEAK = _paradigm("e e e en  en e e en  en en en en  en en en en")
_MIXED = _paradigm("er e es en  en e es en  en en en en  en en en en")
_STRONG = _paradigm("er e es e  en e es e  em er em en  en er en er")

_DETERMINERS: dict[str, tuple[str, Paradigm, Paradigm]] = {
    "": ("", dict.fromkeys(_THE, ""), _STRONG),
    "the": ("", _THE, _WEAK),
    "this": ("dies", _DER_ENDINGS, _WEAK),
    "every": ("jed", _DER_ENDINGS, _WEAK),
    "which": ("welch", _DER_ENDINGS, _WEAK),
    "all": ("all", _DER_ENDINGS, _WEAK),
    "some": ("einig", _DER_ENDINGS, _STRONG),
    "many": ("viel", _DER_ENDINGS, _STRONG),
    "a": ("ein", _EIN_ENDINGS, _MIXED),
    "no": ("kein", _EIN_ENDINGS, _MIXED),
    "my": ("mein", _EIN_ENDINGS, _MIXED),
    "your": ("dein", _EIN_ENDINGS, _MIXED),
    "his": ("sein", _EIN_ENDINGS, _MIXED),
    "her": ("ihr", _EIN_ENDINGS, _MIXED),
    "our": ("unser", _EIN_ENDINGS, _MIXED),
    "their": ("ihr", _EIN_ENDINGS, _MIXED),
}
"""For each English determiner its German stem, its endings, and those of a following adjective."""

_CONTRACTIONS = {
    "in dem": "im",
    "in das": "ins",
    "an dem": "am",
    "zu dem": "zum",
    "zu der": "zur",
    "von dem": "vom",
    "bei dem": "beim",
}
_PRESENT = {  # ich, du, er, wir, sie
    "sein": ("bin", "bist", "ist", "sind", "sind"),
    "haben": ("habe", "hast", "hat", "haben", "haben"),
    "werden": ("werde", "wirst", "wird", "werden", "werden"),
    "wissen": ("weiß", "weißt", "weiß", "wissen", "wissen"),
}
_PERSONS: tuple[Person, ...] = ("1s", "2s", "3s", "1p", "3p")
PRETERITE = {"sein": "war", "haben": "hatte", "werden": "wurde"}
"""Verbs with a simple past; all others use the perfect, as in spoken German."""

REFLEXIVE: dict[Person, str] = {"1s": "mich", "2s": "dich", "3s": "sich", "1p": "uns", "3p": "sich"}
PRONOUNS: dict[str, dict[Case, str]] = {
    "I": {"nom": "ich", "acc": "mich", "dat": "mir"},
    "you": {"nom": "du", "acc": "dich", "dat": "dir"},
    "he": {"nom": "er", "acc": "ihn", "dat": "ihm"},
    "she": {"nom": "sie", "acc": "sie", "dat": "ihr"},
    "we": {"nom": "wir", "acc": "uns", "dat": "uns"},
    "they": {"nom": "sie", "acc": "sie", "dat": "ihnen"},
    "who": {"nom": "wer", "acc": "wen", "dat": "wem"},
    "what": {"nom": "was", "acc": "was"},
}
IT: dict[Gender, str] = {"m": "er", "f": "sie", "n": "es"}
"""The subject `it` by the gender of its noun."""


@cache
def determiner(english: str, case: Case, gender: Gender) -> str:
    """Return the German form of an English determiner; empty for none."""
    stem, endings, _ = _DETERMINERS[english]
    return stem + endings[case, gender]


def adjective(german: str, after: str, case: Case, gender: Gender) -> str:
    """Inflect an adjective after an English determiner. Some stems lose an e: teure, dunkle, müde."""
    stem = german[:-2] + german[-1] if german.endswith(("el", "euer")) else german.removesuffix("e")
    return stem + _DETERMINERS[after][2][case, gender]


def noun(entry: Noun, case: Case, plural: bool) -> str:
    """Inflect a noun."""
    if plural:
        return entry.de_plural + ("n" if case == "dat" and entry.de_plural[-1] not in "ns" else "")
    if entry.weak and case != "nom":
        return entry.de_plural  # den Jungen, des Studenten: equal to the plural for all weak nouns of the lexicon
    if case == "gen" and entry.gender != "f":
        syllables = len(re.findall("[aeiouyäöü]+", entry.de.lower()))
        return entry.de + ("es" if syllables == 1 or entry.de[-1] in "sß" else "s")
    return entry.de


def contract(preposition: str, phrase: str) -> str:
    """Join a preposition and a noun phrase, with obligatory contractions: in dem Haus -> im Haus."""
    article, blank, rest = phrase.partition(" ")
    first = f"{preposition} {article}"
    return _CONTRACTIONS.get(first, first) + blank + rest


@cache
def present(verb: str, changed_stem: str, person: Person) -> str:
    """Return the present tense of an infinitive without prefix; see Verb for `changed_stem`."""
    if verb in _PRESENT:
        return _PRESENT[verb][_PERSONS.index(person)]
    stem = verb.removesuffix("en") if verb.endswith("en") else verb.removesuffix("n")
    if person in ("1p", "3p"):
        return verb
    if person == "1s":
        return stem + "e"
    e = "e" if not changed_stem and stem[-1] in "dt" else ""
    stem = changed_stem or stem
    if person == "2s":
        return stem + e + ("t" if stem[-1] in "sßz" else "st")
    return stem + e + "t"


def past(form: str, person: Person) -> str:
    """Conjugate the simple past from its first person singular: war, warst, waren; konnte, konntest, konnten."""
    if person == "2s":
        return form + "st"
    return form if person in ("1s", "3s") else form + ("n" if form.endswith("e") else "en")
