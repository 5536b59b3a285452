"""Split HTML pages and SubRip subtitles into segments of text and the content between them, which is copied.

Libraries such as html.parser and srt normalize their input. Here every copied character must be preserved.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from nmt.keep.blocks import block_tags, is_xml
from nmt.keep.markup import MarkedText, apply_edits
from nmt.keep.tags import BLOCKS, OVERRIDE, SUBTITLE_TAG, TAG, VOID, forbids_translation

# Elements without natural language, or with significant line breaks.
_COPIED = frozenset(["math", "pre", "script", "style", "svg", "template", "textarea"])
_RAW = frozenset(["script", "style", "textarea"])  # contain no tags
# Hours and fractions of seconds may be missing, as in WebVTT and in files edited by hand.
_TIMES = re.compile(r"^[ \t]*(?:\d+:){1,3}\d+(?:[,.]\d+)?[ \t]*-+>[^\n]*$", re.MULTILINE)
_PARAGRAPH = re.compile(r"(?:^[ \t]*\S[^\n]*(?:\n|\Z))+", re.MULTILINE)
_DASH = r"(?:<[^<>\n]*>[ \t]*)*[-\u2013\u2014]"  # of a speaker, possibly in italics
_BEFORE_TEXT = re.compile(rf"\s*(?:{OVERRIDE})*\s*(?:{_DASH}\s*)?")
_NEW_SPEAKER = re.compile(rf"\n(?=[ \t]*{_DASH})")
_TOKEN = re.compile(rf"(?:<[^<>]*>|{OVERRIDE}|\S)+")


class DocumentSegment(NamedTuple):
    """A text to translate, with its inline tags.

    before:    copied content between the previous segment and this one
    num_lines: lines of the translation
    """

    before: str
    text: str
    num_lines: int = 1

    def render(self, translation: str) -> str:
        """Return the copied content and the translation, broken into lines of similar length."""
        words = _TOKEN.findall(translation) if self.num_lines > 1 else []
        if len(words) < self.num_lines:
            return self.before + translation
        lengths = [len(SUBTITLE_TAG.sub("", word)) + 1 for word in words]
        target = sum(lengths) / self.num_lines
        length = 0
        lines = [""]
        for word, word_length in zip(words, lengths, strict=True):
            if lines[-1] and len(lines) < self.num_lines and length + word_length / 2 > target * len(lines):
                lines.append("")
            lines[-1] += f" {word}" if lines[-1] else word
            length += word_length
        return self.before + ("\r\n" if "\r\n" in self.text else "\n").join(lines)


def html_segments(document: str) -> Iterator[DocumentSegment]:
    """Yield the text of each block element; the last segment has no text.

    Elements such as scripts, formulas and preformatted text are copied, see `_COPIED`, and so are block elements with
    translate="no" or the like, see `forbids_translation`.
    """
    copied = 0  # start of the next copied part
    for start, end in _blocks(document):
        text = document[start:end].strip()
        if _has_text(text):
            first = document.index(text, start)
            yield DocumentSegment(document[copied:first], text)
            copied = first + len(text)
    yield DocumentSegment(document[copied:], "")


def _has_text(line: str) -> bool:
    """Return whether a line has letters that are to be translated."""
    marked = MarkedText.parse(line)
    rest, _ = apply_edits(marked.text, [(start, end, "") for start, end in marked.fixed.spans])
    return marked.too_deep or any(map(str.isalpha, rest))


def _blocks(document: str) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a page between tags of block elements."""
    tags = list(_tags(document))
    blocks = block_tags(document, tags)
    void = VOID & BLOCKS if is_xml(document, tags) else VOID
    start = 0
    for tag, end in tags:
        is_block = tag.start() in blocks or tag[0].startswith(("<!D", "<!d", "<?"))
        is_copied = end > tag.end()  # with its content, see `Tags`
        if tag.start() < start or not (is_block or is_copied):
            continue
        yield start, tag.start()
        is_excluded = is_block and _has_content(tag, void) and forbids_translation(tag)
        start = _end_of_element(document, tag) if is_excluded else end
    yield start, len(document)


def _tags(document: str) -> Iterator[tuple[re.Match[str], int]]:
    """Yield the tags outside scripts and the like, see `Tags`."""
    position = 0
    while tag := TAG.search(document, position):
        is_copied = (tag["name"] or "").lower() in _COPIED and _has_content(tag)
        position = _end_of_element(document, tag) if is_copied else tag.end()
        yield tag, position


def _has_content(tag: re.Match[str], void: Collection[str] = ()) -> bool:
    """Return whether a tag opens an element that may have content. void: names of elements without content"""
    if not tag["name"] or tag["end"] or tag["rest"].endswith("/"):
        return False
    return tag["name"].lower() not in void


def _end_of_element(document: str, tag: re.Match[str]) -> int:
    """Return the end of the element that a tag opens; the end of the document if it is not closed."""
    name = tag["name"].lower()
    if name in _RAW:
        closing = re.compile(rf"</{name}(?=[\s/>])[^<>]*>", re.IGNORECASE).search(document, tag.end())
        return closing.end() if closing else len(document)
    depth = 1
    for other in TAG.finditer(document, tag.end()):
        if (other["name"] or "").lower() == name:
            if other["end"]:
                depth -= 1
            elif not other["rest"].endswith("/"):
                depth += 1
            if not depth:
                return other.end()
    return len(document)


def subtitle_problem(document: str) -> str:
    """Return what is wrong with a subtitle document without subtitles; "" if it has some, or is blank."""
    if not document.strip() or has_subtitles(document):
        return ""
    return "has no subtitles; each must follow a line such as 00:00:01,000 --> 00:00:02,500"


def has_subtitles(document: str) -> bool:
    """Return whether a document has a subtitle timing line."""
    return _TIMES.search(document) is not None


def srt_segments(document: str) -> Iterator[DocumentSegment]:
    """Yield the text of each subtitle, or of each paragraph or speaker in it; the last segment has no text."""
    copied = 0
    times = list(_TIMES.finditer(document))
    ends = [*(_start_of_identifier(document, cue.start()) for cue in times[1:]), len(document)]
    for cue, end in zip(times, ends, strict=False):
        for paragraph in _PARAGRAPH.finditer(document, cue.end(), end):
            start = paragraph.start()
            for lines in _NEW_SPEAKER.split(paragraph[0]):
                before = _BEFORE_TEXT.match(lines)
                assert before is not None, "every text matches"
                text = lines[before.end() :].rstrip()
                if any(map(str.isalpha, SUBTITLE_TAG.sub("", text))):
                    first = start + before.end()
                    yield DocumentSegment(document[copied:first], text, text.count("\n") + 1)
                    copied = first + len(text)
                start += len(lines) + 1
    yield DocumentSegment(document[copied:], "")


def _start_of_identifier(document: str, start: int) -> int:
    """Return the start of the identifier of the cue whose timing line starts at `start`; `start` if it has none."""
    line = document.rfind("\n", 0, start - 1) + 1
    line_before = document.rfind("\n", 0, max(line - 1, 0)) + 1
    is_number = document[line:start].strip().isdecimal()
    follows_blank = not document[line_before:line].strip()
    return line if is_number or follows_blank else start
