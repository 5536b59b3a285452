"""Parser of translation memories in TMX (LISA, "TMX 1.4b Specification", 2005)."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from nmt.errors import UserError
from nmt.text.wmt_files import one_line, xml_errors

_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
# Elements of a segment with codes of the original format, such as RTF, and text nested in them.
_CODES = {"bpt", "ept", "it", "ph", "ut"}


def tmx_pairs(file: io.BufferedIOBase, path: Path, src_lang: str, tgt_lang: str) -> Iterator[tuple[str, str]]:
    """Yield the segments, without line breaks, of each translation unit that has text in both languages.

    "en" selects "en" or else the first of its regions in a unit, such as "en-US"; "en-US" selects only this region.
    Raises UserError for XML that is malformed or not TMX, and if no unit has both languages.
    """
    languages: set[str] = set()
    has_pairs = False
    remedy = (
        "expected a complete TMX file in the encoding that its first line declares; export or download it again, or "
        "correct this place"
    )
    with xml_errors(path, remedy):
        for unit in _units(file, path):
            segments = _segments(unit)
            src, tgt = (_in_language(segments, lang) for lang in (src_lang, tgt_lang))
            languages |= segments.keys()
            if src and tgt:
                has_pairs = True
                yield src, tgt
    if not has_pairs:
        found = ", ".join(sorted(languages)) or "none"
        raise UserError(
            f"{path} has no unit with text in {src_lang} and {tgt_lang}; its languages are: {found}; correct src_lang "
            "and tgt_lang of the recipe or of this corpus, or its src_locale and tgt_locale"
        )


def _units(file: io.BufferedIOBase, path: Path) -> Iterator[Element]:
    """Yield the `tu` elements, and free each one afterwards."""
    events = ElementTree.iterparse(file, ("start", "end"))
    _, root = next(events)
    if _name(root) != "tmx":
        raise UserError(f"{path} begins with an element <{_name(root)}>; expected <tmx>; check the file")
    body = root
    for event, element in events:
        if event == "start" and _name(element) == "body":
            body = element
        elif event == "end" and _name(element) == "tu":
            yield element
            body.clear()


def _segments(unit: Element) -> dict[str, str]:
    """Return the text of a unit by language, such as "en-us"."""
    segments: dict[str, str] = {}
    for variant in unit:
        language = _normalized(variant.get(_LANGUAGE, variant.get("lang", "")))  # TMX 1.1 has `lang`
        segment = next((child for child in variant if _name(child) == "seg"), None)
        if segment is not None and language and (text := one_line(_text(segment))):
            segments.setdefault(language, text)
    return segments


def _in_language(segments: dict[str, str], lang: str) -> str:
    lang = _normalized(lang)
    return segments.get(lang) or next((segments[other] for other in segments if other.startswith(f"{lang}-")), "")


def _normalized(language: str) -> str:
    return language.lower().replace("_", "-")


def _text(segment: Element) -> str:
    """Return the text of a segment, and remove its codes."""
    for code in [element for element in segment.iter() if _name(element) in _CODES]:
        code.text, code[:] = " " if code.get("type") == "lb" else "", []  # line break
    return "".join(segment.itertext())


def _name(element: Element) -> str:
    """Return the tag of an element without its namespace."""
    return element.tag.rpartition("}")[2]
