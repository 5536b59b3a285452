"""Parsers of WMT test sets in SGM and XML."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

from nmt.errors import UserError

_ELEMENT = re.compile(r"<(doc|seg)\b([^>]*)>", re.IGNORECASE)
_ID = re.compile(r"""\b(?:docid|id)\s*=\s*["']?([^"'\s>]+)""", re.IGNORECASE)
_XML_ROOT = re.compile(r"<dataset\b")
# A segment without </seg> does not match, so a file with many of them takes linear time.
_SEGMENT = re.compile(
    r"<seg\b[^>]*?(?:/>|(?<!/)>((?:(?!<(?:doc|seg)\b|</seg\s*>).)*+)</seg\s*>)", re.IGNORECASE | re.DOTALL
)
_SEGMENT_START = re.compile(r"<seg\b[^>]*>?", re.IGNORECASE)
_COMMENT = re.compile(f"({_SEGMENT.pattern})|<!--.*?-->", _SEGMENT.flags)
_LINE_BREAK = re.compile("\r?\n|\r")
# `html.unescape` also replaces entities without a semicolon ("R&notes"); this matches only those with one.
_ENTITY = re.compile(r"&(?:#[0-9]+|#[xX][0-9a-fA-F]+|[A-Za-z][A-Za-z0-9]*);")


def sgm_segments(text: str, path: Path) -> list[str]:
    """Return the segments of an SGM file, without line breaks.

    Raises UserError if it is not an SGM file or has a segment without an end tag. Uses a pattern instead of a parser,
    because WMT's files are not well-formed SGML.
    """
    if _XML_ROOT.search(text):
        raise UserError(f"{path} is an XML test set; tgt must be unset, as the file has both sides; remove tgt")
    text = _without_comments(text)
    segments = _SEGMENT.findall(text)
    starts = _SEGMENT_START.finditer(text)
    unclosed = next((start.end() for start in starts if not _SEGMENT.match(text, start.start())), None)
    if unclosed is not None:
        start = " ".join(text[unclosed : unclosed + 200].partition("</seg")[0].split())[:40]
        raise UserError(f"{path} has a <seg> without </seg>: {start!r}; each segment must be closed; correct the file")
    if not segments:
        raise UserError(f"{path} has no <seg> elements; expected an SGM file of WMT; use kind 'text' for plain text")
    return [one_line(_ENTITY.sub(lambda entity: html.unescape(entity[0]), segment)) for segment in segments]


def _without_comments(text: str) -> str:
    """Remove the comments between the segments of an SGM file; within segments, they are text."""
    return _COMMENT.sub(lambda match: match[1] or "", text)


def check_same_order(src: str, src_path: Path, ref: str, ref_path: Path) -> None:
    """Raise UserError if two SGM files differ in the document or id of a segment; missing ids match any."""
    pairs = zip(segment_ids(src), segment_ids(ref), strict=False)
    for number, ((_, src_doc, src_seg), (_, ref_doc, ref_seg)) in enumerate(pairs, start=1):
        if (src_doc and ref_doc and src_doc != ref_doc) or (src_seg and ref_seg and src_seg != ref_seg):
            raise UserError(
                f"segment {number} is {src_seg!r} of document {src_doc!r} in {src_path} "
                f"and {ref_seg!r} of document {ref_doc!r} in {ref_path}; "
                "both must have the same order; sort or replace one of them"
            )


def segment_ids(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the document number, document id and segment id of each segment of an SGM file; "" for a missing id."""
    number, document = 0, ""
    for element, attributes in _ELEMENT.findall(_without_comments(text)):
        match = _ID.search(attributes)
        element_id = match[1] if match else ""
        if element.lower() == "doc":
            number, document = number + 1, element_id
        else:
            yield number, document, element_id


@contextmanager
def xml_errors(path: Path, remedy: str) -> Iterator[None]:
    """Raise UserError for an error of the XML parser; remedy: for XML that is not well-formed."""
    try:
        yield
    except ElementTree.ParseError as error:
        raise UserError(f"{path} is not well-formed XML ({error}); {remedy}") from error
    except (ValueError, LookupError) as error:  # the encoding that it declares is unknown, or GBK, Big5 or similar
        raise UserError(
            f"{path} cannot be read ({error}); expected an XML file in UTF-8; convert it and its declaration"
        ) from error


def xml_documents(file: io.BufferedIOBase, path: Path, src_lang: str, tgt_lang: str) -> Iterator[list[tuple[str, str]]]:
    """Yield the pairs of each document of an XML file, with <src> and <ref> segments, aligned by id.

    Segments have no line breaks. Raises UserError for XML that is malformed or not aligned.
    """
    with xml_errors(path, "correct it, or give a pair of .sgm files"):
        documents = list(ElementTree.parse(file).getroot().iter("doc"))
    has_segments = False
    for document in documents:
        where = f"{path}, document {document.get('id')!r}"
        src = _segments_by_id(document, "src", src_lang, where)
        ref = _segments_by_id(document, "ref", tgt_lang, where)
        has_segments = has_segments or bool(src)
        if src.keys() != ref.keys():
            wrong = f"has {len(src)} source and {len(ref)} reference segments in {src_lang} and {tgt_lang}"
            raise UserError(f"{where} {wrong}; both must have the same ids; check the file and the languages")
        yield [(src[key], ref[key]) for key in src]
    if not has_segments:
        raise UserError(
            f"{path} has no <src> segments in {src_lang!r}; expected an XML test set of WMT; "
            "check src_lang, or give the reference of an .sgm file as tgt"
        )


def _segments_by_id(document: ElementTree.Element, tag: str, lang: str, where: str) -> dict[str | int, str]:
    """Return the segments of the first element with this tag and language, by id, or by number without an id.

    Raises UserError, with the location `where`, if segments would be lost: repeated ids, or several sources.
    """
    texts = [text for text in document.iter(tag) if text.get("lang", lang) == lang]
    if tag == "src" and len(texts) > 1:
        raise UserError(
            f"{where} has {len(texts)} <src> elements in {lang}; it must have one; join them, or remove all but one"
        )
    segments: dict[str | int, str] = {}
    for number, seg in enumerate(texts[0].iter("seg") if texts else (), start=1):
        key = seg.get("id", number)
        if key in segments:
            raise UserError(f"{where} has <{tag}> segments with the same id {key!r}; ids must differ; renumber them")
        segments[key] = one_line("".join(seg.itertext()))
    return segments


def one_line(text: str) -> str:
    """Replace line breaks with spaces, and strip the text."""
    return _LINE_BREAK.sub(" ", text).strip()
