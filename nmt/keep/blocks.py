"""Decide which elements of a document separate texts, and which are part of a sentence."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

from nmt.keep.tags import BLOCKS, VOID

Tags = Sequence[tuple[re.Match[str], int]]
"""Matches of `TAG` in order, each with the offset after it, or after an element that is copied with its content."""

_INLINE_NAMES = """
    a abbr acronym audio b bdi bdo big blink canvas cite code data datalist del dfn em embed font i img input ins kbd
    label link map mark meta meter nobr noscript output picture progress q rb rp rt ruby s samp slot small source span
    strike strong sub sup time track tt u var wbr
"""
_INLINE = frozenset(_INLINE_NAMES.split())
# In DocBook, DITA and TEI, these are part of a sentence.
_XML_BLOCKS = BLOCKS - {"button", "option", "title"}


@dataclass(eq=False)
class _Element:
    """An element of a document.

    start, end: offsets of its tags; -1 for a tag that is missing
    in_text:    whether it may be part of a sentence
    is_block:   whether it separates texts
    has_text:   whether letters or digits are directly in it, not in one of its children
    filled:     its children with letters or digits
    space:      white space between the text before the element and the first text in it
    first:      first visible character in it
    """

    name: str
    start: int
    parent: _Element | None
    end: int = -1
    in_text: bool = False
    is_block: bool = False
    has_text: bool = False
    filled: list[_Element] = field(default_factory=list)
    space: str = ""
    first: str = ""


def is_xml(document: str, tags: Tags) -> bool:
    """Return whether a document has an XML declaration and is not XHTML, or is XLIFF, which needs no declaration."""
    root = next((tag["name"].lower() for tag, _ in tags if tag["name"]), "")
    has_declaration = document.lstrip("\ufeff \t\r\n").startswith("<?xml")
    return root == "xliff" or (has_declaration and root != "html")


def block_tags(document: str, tags: Tags) -> set[int]:
    """Return the offsets of the tags of block elements.

    The names of HTML elements determine whether they are blocks or inline. An element with another name, as in XML, is
    inline if there is text next to it in its parent, and no block in it. In an element without such text, inline
    elements may be items of a list, such as a menu; they then become blocks, see `_is_list`.
    """
    has_void = not is_xml(document, tags)
    blocks, inline = (BLOCKS, _INLINE) if has_void else (_XML_BLOCKS, frozenset[str]())
    elements = _elements(document, tags, has_void=has_void)
    # A name that stands next to text somewhere may also be nested in another inline element.
    names = {element.name for element in elements if element.parent and element.parent.has_text}
    for element in elements:
        parent = element.parent
        is_nested = parent is not None and parent.in_text and (element.name in names or element.name in inline)
        element.in_text = (parent is not None and parent.has_text) or is_nested
        element.is_block = element.name in blocks or (element.name not in inline and not element.in_text)
    _mark_parents(elements, inline)
    for element in elements:
        if not element.in_text and not element.has_text:
            for is_block, siblings in groupby(element.filled, key=attrgetter("is_block")):
                if not is_block and _is_list(children := list(siblings)):
                    for child in children:
                        child.is_block = True
    _mark_parents(elements, inline)
    found = {tag.start() for tag, _ in tags if (tag["name"] or "").lower() in blocks}  # also those without a pair
    for element in elements:
        if element.is_block:
            found |= {element.start, element.end}
    return found


def _mark_parents(elements: Sequence[_Element], inline: Collection[str]) -> None:
    """Mark each element that contains a block as a block, unless it has the name of an inline element."""
    for element in reversed(elements):  # children first
        if element.is_block and element.parent and element.parent.name not in inline:
            element.parent.is_block = True


def _is_list(elements: Sequence[_Element]) -> bool:
    """Return whether inline siblings without text between them are separate texts, unlike those of CO<sub>2</sub>.

    They are if all of them are links. Otherwise, each one after the first must start with a capital letter or a digit,
    and follow the one before it immediately or on another line.
    """
    if any(element.name in ("sub", "sup") for element in elements):
        return False
    return len(elements) > 1 and (
        all(element.name == "a" for element in elements)
        or all(
            (not element.space or "\n" in element.space) and (element.first.isupper() or element.first.isdigit())
            for element in elements[1:]
        )
    )


def _elements(document: str, tags: Tags, *, has_void: bool) -> list[_Element]:
    """Return the elements of a document in order; the first one is the document. has_void: whether <br> is empty"""
    stack = [_Element("", -1, None)]  # the document, and its open elements
    elements = [stack[0]]
    num_open = Counter[str]()
    empty: list[_Element] = []  # elements since the last text
    space = ""
    position = 0
    for tag, end in tags:
        text = html.unescape(document[position : tag.start()])
        if visible := text.strip():
            space += text[: len(text) - len(text.lstrip())]  # one string for all elements
            for element in empty:
                element.space, element.first = space, visible[0]
            empty, space = [], text[len(text.rstrip()) :]
            _mark_text(stack[-1], visible)
        else:
            space += text
        position = end
        name = (tag["name"] or "").lower()
        if tag["end"]:
            if num_open[name]:
                while stack[-1].name != name:
                    num_open[stack.pop().name] -= 1
                stack[-1].end = tag.start()
                num_open[stack.pop().name] -= 1
        elif name and end == tag.end():
            element = _Element(name, tag.start(), stack[-1])
            elements.append(element)
            empty.append(element)
            if not tag["rest"].endswith("/") and not (has_void and name in VOID):
                stack.append(element)
                num_open[name] += 1
    _mark_text(stack[-1], html.unescape(document[position:]))
    return elements


def _mark_text(element: _Element, text: str) -> None:
    """If a text of an element has letters or digits, set `has_text` of the element and `filled` of its ancestors."""
    if not any(map(str.isalnum, text)):
        return
    element.has_text = True
    while element.parent and element.parent.filled[-1:] != [element]:
        element.parent.filled.append(element)
        element = element.parent
