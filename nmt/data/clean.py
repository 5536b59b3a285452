"""Cleaning: one normal form for all text, and the reasons for which a training pair is dropped."""

from __future__ import annotations

import re
import unicodedata
from typing import Literal, get_args

from nmt.recipe import DataRecipe

UnicodeForm = Literal["NFC", "NFKC", "none"]
DropReason = Literal["empty", "control characters", "too long", "length ratio", "identical sides", "wrong script"]
DROP_REASONS: tuple[DropReason, ...] = get_args(DropReason)

# Characters that show nothing and separate nothing: soft hyphen, zero-width space, direction marks, word joiners, byte
# order mark. The zero-width joiner and non-joiner stay: Persian, Hindi and emoji are misspelled without them.
_INVISIBLE = re.compile("[\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]+")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]+")
# Control characters other than the usual white space, and the mark of bytes that could not be decoded: signs of text
# that was damaged on its way.
_DAMAGE = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\ufffd]")

# SentencePiece makes no piece of more than 16 characters, so that a longer sentence cannot fit its number of tokens.
_MAX_CHARACTERS_PER_TOKEN = 16
_RATIO_BEYOND_WORDS = 10
_IDENTICAL_BEYOND_WORDS = 3

_LATIN = "A-Za-zªºÀ-ÖØ-öø-\u02af\u1e00-\u1eff\u2c60-\u2c7f\ua720-\ua7ff\ufb00-\ufb06\uff21-\uff3a\uff41-\uff5a"
_CYRILLIC = "\u0400-\u052f\u1c80-\u1c8f\u2de0-\u2dff\ua640-\ua69f"
_GREEK = "\u0370-\u03ff\u1f00-\u1fff"
_ARABIC = "\u0600-\u06ff\u0750-\u077f\u08a0-\u08ff\ufb50-\ufdff\ufe70-\ufeff"
_HEBREW = "\u0590-\u05ff\ufb1d-\ufb4f"
_DEVANAGARI = "\u0900-\u097f\ua8e0-\ua8ff"
_THAI = "\u0e00-\u0e7f"
_HAN = "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
_KANA = "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f"
_HANGUL = "\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7ff"

# Languages that are written in several scripts (Serbian) are left out on purpose.
_SCRIPT_OF_LANGUAGES = {
    "af ca cs cy da de en es et eu fi fr ga gl hr hu id is it": _LATIN,
    "lt lv ms mt nb nl nn no pl pt ro sk sl sq sv sw tr vi": _LATIN,
    "be bg mk ru uk": _CYRILLIC,
    "el": _GREEK,
    "ar fa ur": _ARABIC,
    "he yi": _HEBREW,
    "hi mr ne": _DEVANAGARI,
    "th": _THAI,
    "zh": _HAN,
    "ja": _HAN + _KANA,
    "ko": _HANGUL + _HAN,
}
_SCRIPTS = {language: script for languages, script in _SCRIPT_OF_LANGUAGES.items() for language in languages.split()}
_WITHOUT_SPACES = frozenset(("ja", "km", "lo", "my", "th", "zh"))
_NOT_LETTERS = (
    r"\W\d_\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u2089\u2150-\u218b\u2460-\u249b"  # Fractions and their like.
)
_LETTER = re.compile(f"[^{_NOT_LETTERS}]")


def valid_unicode(text: str) -> str:
    """The text with surrogate pairs joined and lone surrogates, which no encoding can hold, replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def normalize(text: str, form: UnicodeForm) -> str:
    """Any string as one line in normal form; an empty line may come out.

    Invisible characters vanish; control characters, line separators and all kinds of white space become one space;
    the Unicode form is applied. Applying it twice changes nothing more.
    """
    if not text.isprintable():  # Nearly all lines are, and have none of what these look for.
        text = _CONTROL.sub(" ", _INVISIBLE.sub("", valid_unicode(text)))
    if form != "none":
        text = unicodedata.normalize(form, text)
    return " ".join(text.split())


class Cleaner:
    """Normalises the pairs of one corpus and finds those that should not be learnt from."""

    def __init__(self, data: DataRecipe, src_lang: str, tgt_lang: str) -> None:
        self._data = data
        self._max_characters = _MAX_CHARACTERS_PER_TOKEN * data.max_tokens
        self._languages = (src_lang, tgt_lang)
        self._foreign_letters = tuple(map(_foreign_letter, self._languages))

    def clean(self, src: str, tgt: str) -> tuple[str, str] | DropReason:
        """The normalised pair, or the first reason not to train on it; takes the text as it was read."""
        form = self._data.unicode_form
        pair = normalize(src, form), normalize(tgt, form)
        if not all(pair):
            return "empty"
        if _DAMAGE.search(src) or _DAMAGE.search(tgt):
            return "control characters"
        if max(map(len, pair)) > self._max_characters:
            return "too long"
        shorter, longer = sorted(map(_count_words, pair, self._languages))
        if longer > _RATIO_BEYOND_WORDS and longer > self._data.max_length_ratio * shorter:
            return "length ratio"
        if self._data.drop_identical and pair[0] == pair[1] and longer > _IDENTICAL_BEYOND_WORDS:
            return "identical sides"
        if self._data.drop_wrong_script and any(map(_in_other_script, pair, self._foreign_letters)):
            return "wrong script"
        return pair

    def reason_to_drop(self, src: str, tgt: str) -> DropReason | None:
        """Why a pair, as it was read, should not be trained on; None when it should."""
        result = self.clean(src, tgt)
        return result if isinstance(result, str) else None


def _count_words(text: str, language: str) -> int:
    """Words between spaces; in languages without spaces, two characters count as a word."""
    return (len(text) + 1) // 2 if language in _WITHOUT_SPACES else text.count(" ") + 1


def _foreign_letter(language: str) -> re.Pattern[str] | None:
    """Matches a letter of another script than the language is written in; None when its script is not known."""
    return re.compile(f"[^{_NOT_LETTERS}{_SCRIPTS[language]}]") if language in _SCRIPTS else None


def _in_other_script(text: str, foreign_letter: re.Pattern[str] | None) -> bool:
    """Whether most letters are foreign."""
    if foreign_letter is None or not (foreign := foreign_letter.findall(text)):
        return False
    return 2 * len(foreign) > len(_LETTER.findall(text))
