"""Languages by ISO 639 code: their scripts, and whether their words are separated by spaces."""

from __future__ import annotations

LATIN = "A-Za-zªºÀ-ÖØ-öø-\u02af\u1e00-\u1eff\u2c60-\u2c7f\ua720-\ua7ff\ufb00-\ufb06\uff21-\uff3a\uff41-\uff5a"
_CYRILLIC = "\u0400-\u052f\u1c80-\u1c8f\u2de0-\u2dff\ua640-\ua69f"
_ARABIC = "\u0600-\u06ff\u0750-\u077f\u08a0-\u08ff\ufb50-\ufdff\ufe70-\ufeff"
HAN = "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
KANA = "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f"
HANGUL = "\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7ff"

# Excludes languages with several scripts, such as Serbian.
_SCRIPT_OF_LANGUAGES = {
    "af ca cs cy da de en es et eu fi fr ga gl hr hu id is it": LATIN,
    "lt lv ms mt nb nl nn no pl pt ro sk sl sq sv sw tr vi": LATIN,
    "be bg mk ru uk": _CYRILLIC,
    "el": "\u0370-\u03ff\u1f00-\u1fff",
    "ar fa ps ur": _ARABIC,
    "he yi": "\u0590-\u05ff\ufb1d-\ufb4f",
    "hy": "\u0530-\u058f\ufb13-\ufb17",
    "ka": "\u10a0-\u10ff\u1c90-\u1cbf\u2d00-\u2d2f",
    "am ti": "\u1200-\u139f\u2d80-\u2ddf\uab00-\uab2f",
    "dv": "\u0780-\u07bf",
    "hi mr ne": "\u0900-\u097f\ua8e0-\ua8ff",
    "as bn": "\u0980-\u09ff",
    "gu": "\u0a80-\u0aff",
    "or": "\u0b00-\u0b7f",
    "ta": "\u0b80-\u0bff",
    "te": "\u0c00-\u0c7f",
    "kn": "\u0c80-\u0cff",
    "ml": "\u0d00-\u0d7f",
    "si": "\u0d80-\u0dff",
    "th": "\u0e00-\u0e7f",
    "lo": "\u0e80-\u0eff",
    "bo dz": "\u0f00-\u0fff",
    "my shn": "\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f",
    "km": "\u1780-\u17ff",
    "zh": HAN,
    "ja": HAN + KANA,
    "ko": HANGUL + HAN,
}
_THREE_LETTER_CODES = """
    af:afr am:amh ar:ara:arb as:asm be:bel bg:bul bn:ben bo:bod:tib ca:cat cs:ces:cze cy:cym:wel da:dan de:deu:ger
    dv:div dz:dzo el:ell:gre en:eng es:spa et:est:ekk eu:eus:baq fa:fas:per:pes fi:fin fr:fra:fre ga:gle gl:glg gu:guj
    he:heb hi:hin hr:hrv hu:hun hy:hye:arm id:ind is:isl:ice it:ita ja:jpn ka:kat:geo km:khm kn:kan ko:kor lo:lao lt:lit
    lv:lav:lvs mk:mkd:mac ml:mal mr:mar ms:msa:may:zsm mt:mlt my:mya:bur nb:nob ne:nep:npi nl:nld:dut nn:nno no:nor
    or:ori:ory pl:pol ps:pus pt:por ro:ron:rum ru:rus si:sin sk:slk:slo sl:slv sq:sqi:alb:als sv:swe sw:swa:swh ta:tam
    te:tel th:tha ti:tir tr:tur uk:ukr ur:urd vi:vie yi:yid zh:zho:chi:cmn:gan:hsn:lzh:wuu:yue
"""
SHORT_CODES = {
    code: short for short, *codes in (entry.split(":") for entry in _THREE_LETTER_CODES.split()) for code in codes
}
"""Two-letter codes of the languages with a known script, by three-letter code. Mandarin, Cantonese, Gan, Xiang, Wu and
Literary Chinese use the code of Chinese."""
SCRIPTS = {language: script for languages, script in _SCRIPT_OF_LANGUAGES.items() for language in languages.split()}
SCRIPTS |= {code: SCRIPTS[short] for code, short in SHORT_CODES.items()}
"""Ranges of the characters of the script of a language, by code of two or three letters."""
_UNSPACED = ("bo", "dz", "ja", "km", "lo", "my", "th", "zh")
# Min and Hakka are also written in Latin letters, so their script is unknown.
WITHOUT_SPACES = frozenset(
    (*_UNSPACED, *(code for code, short in SHORT_CODES.items() if short in _UNSPACED), "cdo", "hak", "nan", "shn")
)
"""Languages without spaces between words."""
