"""Normalization of text, and filters for training pairs."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Literal, get_args

from nmt.logs import counted, warn
from nmt.recipe import NO_LANGUAGE, DataRecipe, UnicodeForm
from nmt.recipe.removed_characters import CONTROL, INVISIBLE
from nmt.text.languages import HAN, HANGUL, KANA, LATIN, SCRIPTS, WITHOUT_SPACES
from nmt.text.unicode_form import unicode_form

Pair = tuple[str, str]
DropReason = Literal["empty", "control characters", "too long", "length ratio", "identical sides", "wrong script"]
DROP_REASONS: tuple[DropReason, ...] = get_args(DropReason)

_INVISIBLE, _CONTROL = re.compile(f"[{INVISIBLE}]+"), re.compile(f"[{CONTROL}]+")
# Signs of damaged text: control characters except U+0009 to U+000D, and U+FFFD for undecodable bytes.
_DAMAGE = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\ufffd]")

# Trained pieces have at most 16 characters, so a sentence of more than 16 * max_tokens characters is too long.
_MAX_CHARACTERS_PER_TOKEN = 16
_MIN_WORDS_FOR_RATIO = 10
_MIN_WORDS_FOR_IDENTICAL = 3

_MAX_OTHER_FORMS = 0.01  # fraction of lines

# Includes the superscripts, fractions, Roman numerals and enclosed numbers that `\w` matches and `\d` does not.
_NOT_LETTERS = r"\W\d_\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u2089\u2150-\u218b\u2460-\u249b"
_LETTER = re.compile(f"[^{_NOT_LETTERS}]")
_EAST_ASIAN = re.compile(f"[{HAN}{KANA}{HANGUL}]")


def warn_of_unknown_scripts(languages: Mapping[str, str]) -> None:
    """Warn of languages that `drop_wrong_script` cannot filter. languages: language of each option"""
    for option, language in languages.items():
        if language != NO_LANGUAGE and language not in SCRIPTS:
            warn(
                f"{option} is {language!r}, which has no known script, so data.drop_wrong_script does not filter that "
                "side; correct the code if it is wrong"
            )


def valid_unicode(text: str) -> str:
    """Join surrogate pairs and replace lone surrogates, which cannot be encoded, with U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def normalize(text: str, form: UnicodeForm) -> str:
    """Normalize a string to one line, which may be empty.

    Removes invisible characters, replaces each run of control characters and white space with one space, and applies
    the Unicode form. Idempotent.
    """
    # Fast path: most lines are printable, so they have no control characters and no white space except spaces.
    printable = text.isprintable()
    if not printable:
        text = _CONTROL.sub(" ", _INVISIBLE.sub("", valid_unicode(text)))
    if form != "none":
        text = unicode_form(text, form)
    if printable and "  " not in text and text == text.strip():
        return text
    return " ".join(text.split())


def warn_of_form(name: str, lines: Sequence[str], form: UnicodeForm) -> None:
    """Warn if more than 1% of the lines of a reference have characters that normalized translations cannot have."""
    count = 0 if form == "none" else sum(not unicodedata.is_normalized(form, line) for line in lines)
    if count > _MAX_OTHER_FORMS * len(lines):
        warn(
            f"{name} is not in {form}, the form of translations (data.unicode_form), in {count:,} of "
            f"{counted(len(lines), 'line')}: characters in another form count as errors; normalize the file"
        )
    if found := describe_invisible_characters(lines):
        warn(f"{name} has {found}: translations never have them, so they count as errors; remove them")


def describe_invisible_characters(lines: Sequence[str]) -> str | None:
    """Describe the characters that `normalize` removes, if more than 1% of the lines have one."""
    marked = [found for found in map(_INVISIBLE.search, lines) if found]
    if len(marked) <= _MAX_OTHER_FORMS * len(lines):
        return None
    example = f"U+{ord(marked[0][0][0]):04X}"
    return f"invisible characters such as {example} in {len(marked):,} of {counted(len(lines), 'line')}"


class Cleaner:
    """Normalizes and filters training pairs."""

    def __init__(self, data: DataRecipe, src_lang: str, tgt_lang: str) -> None:
        self._data = data
        self._form: UnicodeForm = data.unicode_form
        self._max_characters = _MAX_CHARACTERS_PER_TOKEN * data.max_tokens
        self._src_lang, self._tgt_lang = src_lang, tgt_lang

    def clean(self, src: str, tgt: str) -> Pair | DropReason:
        """Return the normalized pair, or the first reason to drop it."""
        clean_src, clean_tgt = normalize(src, self._form), normalize(tgt, self._form)
        if not (clean_tgt and (clean_src or self._src_lang == NO_LANGUAGE)):
            return "empty"
        if _is_damaged(src, clean_src) or _is_damaged(tgt, clean_tgt):
            return "control characters"
        # A source that is truncated later may have any length.
        limited = clean_tgt if self._data.long_sources == "truncate" else max(clean_src, clean_tgt, key=len)
        if len(limited) > self._max_characters:
            return "too long"
        num_words = _count_words(clean_src, self._src_lang), _count_words(clean_tgt, self._tgt_lang)
        longer = max(num_words)
        if clean_src and longer > _MIN_WORDS_FOR_RATIO and longer > self._data.max_length_ratio * min(num_words):
            return "length ratio"
        if self._data.drop_identical and clean_src == clean_tgt and longer > _MIN_WORDS_FOR_IDENTICAL:
            return "identical sides"
        if self._data.drop_wrong_script and (
            _in_other_script(clean_src, self._src_lang) or _in_other_script(clean_tgt, self._tgt_lang)
        ):
            return "wrong script"
        return clean_src, clean_tgt


def _is_damaged(text: str, normalized: str) -> bool:
    # U+FFFD is the only sign of damage that survives normalization.
    return "\ufffd" in text or (text != normalized and _DAMAGE.search(text) is not None)


def _count_words(text: str, language: str) -> int:
    """Count words; in languages without spaces, two characters count as a word."""
    return (len(text) + 1) // 2 if language in WITHOUT_SPACES else text.count(" ") + 1


def _in_other_script(text: str, language: str) -> bool:
    """Return whether most letters belong to another script; False if the script of the language is unknown.

    A Chinese, Japanese or Korean character counts as three letters, about as many as it replaces in other scripts.
    """
    script = SCRIPTS.get(language)
    if script is None or (script == LATIN and text.isascii()):
        return False
    foreign = _foreign_letter(script).findall(text)
    native = len(_LETTER.findall(text)) - len(foreign)
    weighted = len(foreign) + 2 * len(_EAST_ASIAN.findall("".join(foreign)))
    return weighted > native * (3 if HAN in script else 1)


@cache
def _foreign_letter(script: str) -> re.Pattern[str]:
    """Return a pattern for letters outside a script."""
    return re.compile(f"[^{_NOT_LETTERS}{script}]")
