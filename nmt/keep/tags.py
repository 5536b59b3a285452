"""Parse the tags of a line into a tree of elements.

XML and HTML parsers are not suitable: a line may contain only one tag of a pair, and tags must stay as written.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field
from html.entities import html5

from nmt.decode.translation import without_breaks

_VOID_NAMES = "area base br col embed hr img input link meta param source track wbr"
_BLOCK_NAMES = """
    address article aside blockquote body br button caption center dd details dialog div dl dt fieldset figcaption
    figure footer form frameset h1 h2 h3 h4 h5 h6 head header hr html iframe legend li main menu nav object ol optgroup
    option p pre script section select style summary table tbody td textarea tfoot th thead title tr ul video
"""
VOID = frozenset(_VOID_NAMES.split())
"""Names of HTML elements without content."""
BLOCKS = frozenset(_BLOCK_NAMES.split())
"""Names of HTML elements that end a line of text."""

TAG = re.compile(
    r"""<!--.*?(?:-->|\Z)|<!\[CDATA\[.*?(?:\]\]>|\Z)|<\?.*?(?:\?>|\Z)|<![A-Za-z][^>]*+(?:>|\Z)"""
    r"""|<(?P<end>/?)(?P<name>[A-Za-z_][^\s/>"'<]*+)(?P<rest>(?:"[^"]*"|'[^']*'|[^'"<>])*+)>""",
    re.DOTALL,
)
"""A tag, comment, CDATA section, processing instruction or declaration; all but tags may be unclosed."""
_CLOSING = tuple(".,;:!?)]")  # before these, no space separates a block from the text after it
# Inline elements with code or the names of keys.
_CODE = frozenset(["code", "kbd", "samp", "var"])
_SYMBOLS = re.compile(r"[^\w\s]*")
_MAX_JOINED = 500  # characters of joined elements; without a limit, some lines would take quadratic time
# An attribute outside the values of other attributes.
_NO_TRANSLATION = re.compile(
    r"""(?:"[^"]*"|'[^']*'|[^"'])*?\s(?:translate\s*=\s*(?:"no"|'no'|no(?=[\s/]|\Z))"""
    r"""|translatable\s*=\s*(?:"false"|'false')"""
    r"""|class\s*=\s*(?:"(?:[^"]*\s)?notranslate(?=[\s"])|'(?:[^']*\s)?notranslate(?=[\s'])|notranslate(?=[\s/]|\Z)))""",
    re.IGNORECASE,
)
TOKEN = re.compile(rf"{TAG.pattern}|(?P<entity>&[A-Za-z][\w.-]*;)", re.DOTALL)
"""As `TAG`, or an entity with a name."""
# As in HTML attributes: &copy is a character, but not the beginning of &copy=1 in a URL.
_REFERENCE = re.compile(r"(&(?:#\d{1,99}|#[xX][0-9A-Fa-f]+|[A-Za-z]\w*)(?:;|(?![\w=])))")  # int() limits digits
_LEGACY = "|".join(name for name in html5 if not name.endswith(";"))  # references that HTML reads without a semicolon
_BEGINS_REFERENCE_OR_TAG = rf"&(?=[#A-Za-z][\w.-]*;|(?:#\d+|#[xX][0-9A-Fa-f]+|{_LEGACY})(?![\w=]))|<(?=[A-Za-z_/!?])"
OVERRIDE = r"\{\\[^{}\n]*\}"
"""Pattern of an override tag of subtitles, such as {\\an8} or {\\i1}."""
_END_OF_VOID = re.compile(rf"</({'|'.join(sorted(VOID))})\s*>", re.IGNORECASE)
SUBTITLE_TAG = re.compile(f"{TAG.pattern}|{OVERRIDE}", re.DOTALL)
_STYLE = re.compile(r"\{\\([bius])([01])\}")  # begins or ends bold, italic, underlined or strikeout text


@dataclass
class Element:
    """Tags around a range of characters; a mark (empty element) has only an opening tag.

    opening, closing: as written; "" if the tag is on another line
    name:     of the tag, in lower case
    is_fixed: whether the content is not translated
    content:  of a fixed element, as written
    """

    opening: str
    closing: str
    start: int
    end: int
    children: list[Element] = field(default_factory=list)
    name: str = ""
    is_fixed: bool = False
    content: str = ""

    @property
    def source(self) -> str:
        """The tags of the element, with its content if it is fixed, else with the tags of all its descendants."""
        inside = self.content if self.is_fixed else "".join(child.source for child in self.children)
        return self.opening + inside + self.closing


def forbids_translation(tag: re.Match[str]) -> bool:
    """Return whether an opening tag, a match of `TAG`, forbids the translation of its content.

    It does so with translate="no", translatable="false" (Android) or the class notranslate.
    """
    return _NO_TRANSLATION.match(tag["rest"] or "") is not None


def _separates(name: str, before: str, after: str) -> bool:
    """Return whether two adjacent elements of equal name are different words without a space between them.

    before, after: characters next to the tags between them
    """
    if before.isspace() or not (after.isalnum() or after == "<"):
        return False
    return name == "a" or (after.isupper() and not before.isupper())


class Parser:
    """Builds the tree of a line.

    text:  text so far
    fixed: ranges of `text` that are not translated, see `MarkedText`
    depth: number of elements that are open, or that began on an earlier line
    """

    def __init__(self, line: str, *, is_subtitle: bool) -> None:
        self.text = ""
        self.fixed: list[tuple[int, int]] = []
        self.depth = 0
        self._line, self._is_subtitle = line, is_subtitle
        self._stack = [Element("", "", 0, 0)]  # the line, and its open elements
        self._starts = [0]  # of their content in the line
        self._literal: set[str] = set()  # characters that are not written as entities
        self._ended = {name.lower() for name in _END_OF_VOID.findall(line)}  # as in XML
        self._last_fixed = (self._stack[0], -1)  # the last fixed element that was closed, and its end in the line
        self._last = ("", -1)  # name and end of the last element with text

    @property
    def escaped(self) -> str:
        """See `MarkedText`; well-formed lines stay well-formed, and others keep their & and <."""
        if self._is_subtitle:
            return ""
        if self._literal & {"&", "<"}:
            return _BEGINS_REFERENCE_OR_TAG
        return "[&<]" if ">" in self._literal else "[&<>]"

    @property
    def _parent(self) -> Element:
        return self._stack[-1]

    def add_text(self, source: str) -> None:
        """Add text between tags."""
        for index, piece in enumerate([source] if self._is_subtitle else _REFERENCE.split(source)):
            text = html.unescape(piece) if index % 2 and (piece[1] == "#" or piece[1:] in html5) else piece
            if text == piece:
                self._literal.update(piece)
            self.text += without_breaks(text)

    def add_tag(self, token: re.Match[str]) -> None:
        """Add a tag or other markup."""
        tag = without_breaks(token[0])
        style = _STYLE.fullmatch(tag)
        name = style[1] if style else (token["name"] or "").lower()
        after = self._line[token.end() : token.end() + 1]
        if not token["end"] and self._last == (name, token.start()) and _separates(name, self.text[-1], after):
            self.text += " "
        position = len(self.text)
        if token["end"] or (style and style[2] == "0"):
            self._close(name, tag, token)
        elif name and (name not in VOID or name in self._ended) and not (token["rest"] or "").endswith("/"):
            self.depth += 1
            is_fixed = name in _CODE or forbids_translation(token)
            self._stack.append(Element(tag, "", position, position, name=name, is_fixed=is_fixed))
            self._starts.append(token.end())
        else:
            self._parent.children.append(Element(tag, "", position, position))
        if name in BLOCKS and self.text and not (self.text[-1].isspace() or self.text[-1] in "([" or after in _CLOSING):
            self.text += " "

    def _close(self, name: str, tag: str, token: re.Match[str]) -> None:
        """Close an element, and the open elements inside it."""
        if name in [element.name for element in self._stack[1:]]:
            while self._parent.name != name:
                self._pop(token.start())
            element = self._parent
            element.closing = tag
            if name == "sup" and self._is_mark(element, self._line[token.end() : token.end() + 1]):
                element.opening += without_breaks(self._line[self._starts[-1] : token.start()])
                element.children, element.is_fixed, self.text = [], False, self.text[: element.start]
                self._drop_fixed(element.start)
            elif self.text[element.start :].strip():
                self._last = (name, token.end())
            start = self._starts[-1]
            self._pop(token.start())
            if element.is_fixed:
                self._join_fixed(element, start, token.end())
        else:  # it began on an earlier line
            self.depth += 1
            self._parent.children = [Element("", tag, self._parent.start, len(self.text), self._parent.children)]

    def _join_fixed(self, element: Element, start: int, end: int) -> None:
        """Join a fixed element to the one before it if only symbols are between them, as in the keys Ctrl+C.

        Tags are placed by words, so different elements must not share a word.

        start, end: of its content and after its closing tag, in the line
        """
        (before, before_end), self._last_fixed = self._last_fixed, (element, end)
        siblings = self._parent.children
        if len(siblings) < 2 or siblings[-2] is not before or len(self.fixed) < 2 or len(before.content) > _MAX_JOINED:
            return
        (first, first_end), (second, second_end) = self.fixed[-2:]
        if first < before.start or second < element.start or not _SYMBOLS.fullmatch(self.text, first_end, second):
            return
        before.content += before.closing + without_breaks(self._line[before_end:start]) + element.content
        # For a translation that lacks the content, whose tags are then placed like others.
        inner = Element(before.closing + element.opening, "", element.start, element.start)
        before.children += [inner, *element.children]
        before.closing, before.end = element.closing, element.end
        siblings.pop()
        self.fixed[-2:] = [(first, second_end)]
        self._last_fixed = (before, end)

    def _is_mark(self, element: Element, after: str) -> bool:
        """Return whether an element is a reference mark or an exponent, unlike parts of words. after: next character"""
        content, before = self.text[element.start :].strip(), self.text[: element.start][-1:]
        return bool(content) and not any(map(str.isalpha, content)) and not (before.isalnum() and after.isalnum())

    def _pop(self, end: int) -> None:
        """Close the last element, whose content ends at `end` in the line."""
        self.depth -= 1
        element, start = self._stack.pop(), self._starts.pop()
        element.end = len(self.text)
        content = self.text[element.start :].strip()
        if element.is_fixed:
            element.content = without_breaks(self._line[start:end])
            self._drop_fixed(element.start)
            if content:
                first = self.text.index(content, element.start)
                self.fixed.append((first, first + len(content)))
        self._parent.children.append(element)

    def _drop_fixed(self, start: int) -> None:
        """Drop the fixed ranges inside an element that starts at `start` and has just ended."""
        while self.fixed and self.fixed[-1][0] >= start:
            self.fixed.pop()

    def finish(self) -> list[Element]:
        """Return the top-level elements; those without words become marks."""
        while len(self._stack) > 1:
            self._pop(len(self._line))
        return [self._simplified(child) for child in self._parent.children]

    def _simplified(self, element: Element) -> Element:
        if not self.text[element.start : element.end].strip():
            return Element(element.source, "", element.start, element.start, name=element.name)
        element.children = [self._simplified(child) for child in element.children]
        return element
