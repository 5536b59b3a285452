"""Sentence splitting by rules, with abbreviations of English, German and French.

A sentence ends at a period, question mark, exclamation mark or ellipsis, or a mark of another script, with closing
quotes, brackets and emoji, if white space and the start of a sentence follow: a capital letter, a digit, or a letter of
a script without case, possibly after opening quotes, brackets and dashes. Abbreviations, initials and ordinal numbers
are exceptions. The lists of the three languages are used together, because the language of a text may be unknown.
Chinese, Japanese and Burmese sentences need no white space after them. Thai and Lao, which have no sentence-final mark,
and Tibetan, whose mark also ends clauses, are not supported.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import pairwise

MARKS = (
    r".!?\u2026\u203c\u2047-\u2049\u037e"
    r"\u0589\u061f\u06d4\u0964\u0965\u104b\u1362\u1367\u17d4\u17d5\u1803\u1809\u1c7e\u1c7f"
)
"""Ends of sentences. The second line: Armenian, Arabic and Urdu, Indic scripts, Burmese, Ethiopic, Khmer, Mongolian and
Santali."""
GREEK_QUESTION = r"(?<=[\u0370-\u03ff\u1f00-\u1fff]{2});"
"""The Greek question mark in NFC, a semicolon after a Greek word; a single letter may be a symbol elsewhere."""
# A full-width period after a letter or digit may be that of an abbreviation or a number.
WIDE_MARK = r"(?:[\u3002\uff01\uff1f\uff61]|(?<![0-9A-Za-z\uff10-\uff19\uff21-\uff3a\uff41-\uff5a])\uff0e)"
"""The end of a Chinese or Japanese sentence."""
_WIDE_CLOSING = r"\u300d\u300f\uff09\uff63"
_WIDE = re.compile(
    rf"(?P<open>[\u300c\u300e\uff08\uff62])|(?={WIDE_MARK}|[{_WIDE_CLOSING}])"
    rf"(?P<mark>{WIDE_MARK}*)(?P<close>[{_WIDE_CLOSING}]*)(?P<quote>[\u201d\u2019]*)"
)
_CLOSING = r")\]}\"'\u2019\u201d\u201c\u203a\u00bb\u00ab*"
# Without symbols that are also bullets, arrows or units.
_EMOJI = (
    r"\u200d\u20e3\u231a\u231b\u23e9-\u23fa\u2600-\u2604\u2614\u2615\u2639\u263a\u2665\u26a0\u26a1\u2705\u2728"
    r"\u274c\u2753-\u2757\u2763\u2764\u2b50\u2b55\ufe0f\U0001f000-\U0001faff"
)
# The end of a sentence with white space after it. A French closing quote and emoji may follow a space.
_END = re.compile(
    rf"(?<![{MARKS}])(?P<mark>[{MARKS}]++|{GREEK_QUESTION}++[{MARKS}]*+)"
    rf"(?P<closing>[{_CLOSING}]*+(?:\s+[\u00bb\u203a](?=[\s)]|$))?)(?:[{_EMOJI}]++[{_CLOSING}]*+)?(?:\s++[{_EMOJI}]++)*+"
    r"(?:\s+|(?<=\u104b)(?=\w))"
)
_OPENING = "\"'\u2018\u201c\u201e\u201a\u00ab\u00bb\u2039\u203a([{\u00bf\u00a1*\u00a0\u202f -\u2013\u2014"
_CONTEXT = 60  # characters around the end of a sentence that the rules read


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Capitalized, and never at the end of a sentence.
_TITLES = _words(
    "Mr Mrs Ms Dr Prof Rev Hon Gen Col Lt Sgt Capt Cmdr Adm Gov Sen Rep Pres St Ste Mt Messrs MM Mme Mlle Mgr "
    "Hr Fr Frl Dipl Ing Hl Fa"
)
# Never at the end of a sentence.
_BEFORE_WORDS = _words(
    "vs cf viz approx ca med hrsg geb gest bzw vgl sog bspw ggf evtl inkl exkl zzgl insb bes allg eigtl ehem einschl "
    "bd boul bsp urspr resp env ex p.ex z.b d.h u.a i.d.r o.ä u.ä s.o s.u v.a i.e e.g m.e m.w z.t zt a.a.o n.b c.-à-d "
    "c-à-d dt engl frz lat griech tel"
)
# Not at the end of a sentence if a number follows.
_BEFORE_NUMBERS = _words(
    "no nos nr nrn art abs ziff kap s p pp pg fig figs abb tab eq sec ch vol bd al n num jan feb mar mär apr jun jul "
    "aug sep sept oct okt nov dec dez janv févr avr juil déc rn rdnr anm v"
)
# These, like acronyms with periods (U.S., a.m.), end a sentence only before a word that usually starts one.
_BEFORE_STARTS = _words("inc ltd co corp bros jr sr esq gmbh dept univ assn ave blvd rd ft min max mio mrd tsd std")
_STARTS = _words(
    "a an the this that these those he she it we you they i in on at but and so if when after there what who why how "
    "his her its my our their "
    "der die das ein eine er sie es wir ich ihr im am in auf aber und wenn als nach was wer warum wie sein seine dies "
    "diese dieser dieses alle man dann doch heute sonst kein keine "
    "le la les l' un une il elle ils elles on nous vous je ce cette ces c' mais et si quand après dans en"
)
# Words before a German ordinal number, and words after it.
_BEFORE_ORDINALS = _words(
    "der die das den dem des am im vom zum zur bis ab seit beim ins und jeder jede jedes jeden unser ihr sein"
)
_AFTER_ORDINALS = _words(
    "januar jänner februar märz april mai juni juli august september oktober november dezember jahrhundert "
    "jahrhunderts jahrhunderte weltkrieg weltkriegs weltkrieges klasse platz stock auflage kapitel jahrestag "
    "geburtstag bundesliga liga runde etage"
)
_FIRST_WORD = re.compile(r"[^\W\d_]+['\u2019]?")
_ACRONYM = re.compile(r"(?:[^\W\d_]\.-?)+[^\W\d_]")
_SHORT_NUMBER = re.compile(r"\d{1,2}\.")


def split_sentences(text: str) -> list[str]:
    """Split a line into its sentences, without the white space between them; [] for a line of white space."""
    ends = [match.end() for match in _END.finditer(text) if _ends_sentence(text, match)]
    bounds = [0, *sorted({*ends, *_wide_ends(text)}), len(text)]
    sentences = [text[start:end].strip() for start, end in pairwise(bounds)]
    return [sentence for sentence in sentences if sentence]


def _wide_ends(text: str) -> Iterator[int]:
    """Yield the ends of Chinese and Japanese sentences, except those quoted inside a sentence."""
    depth = 0
    for match in _WIDE.finditer(text):
        depth = max(0, depth + len(match["open"] or "") - len(match["close"] or ""))
        if match["mark"] and not depth:
            following = text[match.end() : match.end() + 1]
            is_quotation = match["close"] or match["quote"]
            if not (is_quotation and unicodedata.name(following or " ", "").startswith("HIRAGANA")):
                yield match.end()


def _ends_sentence(text: str, match: re.Match[str]) -> bool:
    """Return whether a sentence ends at a mark followed by white space."""
    following = text[match.end() : match.end() + _CONTEXT].lstrip(_OPENING)
    if not _starts_sentence(following[:1]):
        return False
    if match["mark"] != "." or match["closing"]:
        is_omission = match["mark"] in ("...", "\u2026") and following[0].isdecimal()
        return not is_omission
    words = text[max(0, match.start() - _CONTEXT) : match.start()].split()
    starts_line = len(words) == 1 and match.start() < _CONTEXT
    word = words[-1].lstrip(_OPENING) if words else ""
    previous = words[-2] if len(words) > 1 else ""
    first_word = _FIRST_WORD.match(following)
    next_lower = first_word[0].lower().replace("\u2019", "'") if first_word else ""
    if word.isdecimal():
        return not (starts_line or _is_ordinal(previous, word, next_lower))
    return not _is_abbreviation(previous, word, following[0], next_lower)


def _starts_sentence(character: str) -> bool:
    """Return whether a sentence may start with a character; "" stands for the end of the text."""
    # Unicode calls Georgian letters lowercase, but Georgian has no capitals in running text.
    is_lower = character.islower() and not "\u10d0" <= character <= "\u10ff"
    return character.isalnum() and not is_lower


def _is_abbreviation(previous: str, word: str, next_character: str, next_lower: str) -> bool:
    """Return whether a period after `word` belongs to it, given the words before and after it."""
    lower = word.lower()
    if word in _TITLES or lower in _BEFORE_WORDS:
        return True
    if next_character.isdecimal() and (lower in _BEFORE_NUMBERS or lower.endswith("str")):
        return True
    if len(word) == 1 and word.isalpha():  # J. Smith, z. B., S. 5
        ends_clause = word == "I" and previous[:1].islower()
        return not ends_clause and (word.islower() or next_lower not in _STARTS)
    return (lower in _BEFORE_STARTS or _ACRONYM.fullmatch(lower) is not None) and next_lower not in _STARTS


def _is_ordinal(previous: str, number: str, next_lower: str) -> bool:
    """Return whether a number and a period form a German ordinal number, as in 3. Oktober and 3. 10. 2020."""
    if len(number) > 2:
        return False
    follows_article = previous.lower() in _BEFORE_ORDINALS and next_lower not in _STARTS
    return follows_article or next_lower in _AFTER_ORDINALS or _SHORT_NUMBER.fullmatch(previous) is not None
