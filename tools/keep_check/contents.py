"""Compare the markup and the items of a line with those of its translation."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple
from xml.etree import ElementTree

from nmt.keep.items import ItemGrammar

KINDS = ("markup", "numbers", "urls", "emails", "placeholders")


class Content(NamedTuple):
    """Text and elements of well-formed XML content, as an XML parser reads them."""

    text: str
    elements: Counter[tuple[str, tuple[tuple[str, str], ...]]]


def read_content(line: str) -> Content:
    """Parse XML content, with `br` as a space; raises ElementTree.ParseError if it is not well-formed."""
    root = ElementTree.fromstring(f"<r>{line}</r>")
    elements = Counter((node.tag, tuple(sorted(node.attrib.items()))) for node in root.iter())
    for node in root.iter("br"):
        node.text = " "
    return Content("".join(root.itertext()), elements)


def violation(grammar: ItemGrammar, line: str, translation: str) -> str:
    """Describe the items and elements that a translation lacks or adds; "" if there are none."""
    source = read_content(line)
    try:
        target = read_content(translation)
    except ElementTree.ParseError as error:
        return f"not well-formed: {error}"
    if source.elements != target.elements:
        return "different elements"
    expected = Counter((item.kind, grammar.written(item)) for item in grammar.find_source(source.text))
    found = Counter((item.kind, item.text) for item in grammar.find_target(target.text))
    if missing := expected - found:
        return f"missing: {sorted(missing)}"
    added = found - expected
    return f"added: {sorted(added)}" if added else ""
