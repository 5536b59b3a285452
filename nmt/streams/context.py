"""Context of records: the previous lines of their document."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from nmt.decode.context import document_rounds
from nmt.decode.task import Previous
from nmt.errors import UserError
from nmt.recipe import Context
from nmt.streams.records import Record
from nmt.text.context import is_blank


def with_context(records: Iterable[Record], context: Context) -> Iterator[Record]:
    """Yield records with the previous texts as context; a blank text ends a document.

    A record with its own context starts a document after that context. If the model needs translations of the context,
    only the first record of a document has a context, possibly empty: the others need translations not yet known.
    """
    recent: deque[Previous] = deque(maxlen=context.size)
    is_first = True
    for record in records:
        text = record.text or ""
        if record.context is not None:
            recent = deque(record.context, maxlen=context.size)
            is_first = True
        yield replace(record, context=tuple(recent) if is_first or not context.has_target else None)
        is_first = is_blank(text)
        if is_first:
            recent.clear()
        else:
            recent.append(text)


def split_documents(records: Iterable[Record], size: int, max_characters: int) -> Iterator[list[Record]]:
    """Yield windows of whole documents, for models that need translations of the context.

    A window ends with the first document that fills it: `size` records or `max_characters`. It depends only on its own
    first record, so a resumed translation has the same windows.

    A UserError of `records` is raised after the records before it have been yielded.
    """
    window: list[Record] = []
    characters = 0
    try:
        for record in records:
            if record.context is not None and (len(window) >= size or characters >= max_characters):
                yield window
                window, characters = [], 0
            window.append(record)
            characters += len(record.line)
    except UserError:
        if window:
            yield window
        raise
    if window:
        yield window


def rounds(window: Sequence[Record]) -> list[list[Record]]:
    """Group records into rounds that are translated one after the other, with at most one record of each document."""
    return [[window[i] for i in indices] for indices in document_rounds([record.context is None for record in window])]
