"""Splitting of multi-line texts, HTML pages and subtitles into segments, and joining of their translations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Literal, NamedTuple, assert_never

from fastapi import HTTPException

from nmt.decode.translation import Translation
from nmt.keep.documents import DocumentSegment, html_segments, srt_segments, subtitle_problem

TextFormat = Literal["text", "html", "srt"]


class Document(NamedTuple):
    """A text to translate.

    segments: its lines, or the segments with text of a page or of subtitles
    end:      content after the last segment, copied unchanged
    """

    segments: list[DocumentSegment]
    end: str = ""


def require_markup(kind: TextFormat, unsupported: Mapping[str, str]) -> None:
    """Raise HTTPException for pages and subtitles if the model does not keep markup. unsupported: reasons by field"""
    if kind != "text" and "keep" in unsupported:
        raise HTTPException(400, f"format {kind} is not supported: {unsupported['keep']}")


def split_texts(texts: Sequence[str], kind: TextFormat, max_lines: int) -> list[Document]:
    """Split texts into lines or segments.

    Raises HTTPException for SRT without subtitles, and as soon as it finds more than `max_lines` lines or segments.
    """
    documents: list[Document] = []
    num_lines = 0
    for text in texts:
        documents.append(_split_text(text, kind, max_lines + 1))
        num_lines += len(documents[-1].segments)
        if num_lines > max_lines:
            raise HTTPException(413, f"the request has more than {max_lines:,} lines; split it")
    return documents


def _split_text(text: str, kind: TextFormat, max_segments: int) -> Document:
    """Split a text into at most `max_segments` lines or segments, and drop the rest."""
    match kind:
        case "text":
            lines = islice(text.split("\n"), max_segments)
            return Document([DocumentSegment("\n" if index else "", line) for index, line in enumerate(lines)])
        case "html":
            *segments, last = islice(html_segments(text), max_segments + 1)
        case "srt":
            if problem := subtitle_problem(text):
                raise HTTPException(400, f"the text {problem}; correct it")
            *segments, last = islice(srt_segments(text), max_segments + 1)
        case _:
            assert_never(kind)
    return Document(segments, last.before)


def join_documents(
    documents: Sequence[Document], n_best_lists: Sequence[list[Translation]], limit: int = 1
) -> list[list[str]]:
    """Return at most `limit` distinct translations of each document, best first.

    n_best_lists: for the segments of all documents, in order
    """
    lists = iter(n_best_lists)
    return [_join(document, [next(lists) for _ in document.segments], limit) for document in documents]


def _join(document: Document, n_best_lists: list[list[Translation]], limit: int) -> list[str]:
    """Join the i-th best translations of all segments for each i; a segment with fewer repeats its last one."""
    joined: list[str] = []
    for rank in range(max(map(len, n_best_lists), default=1)):
        texts = [
            segment.render(n_best[min(rank, len(n_best) - 1)].text)
            for segment, n_best in zip(document.segments, n_best_lists, strict=True)
        ]
        joined.append("".join([*texts, document.end]))
    return list(dict.fromkeys(joined))[:limit]
