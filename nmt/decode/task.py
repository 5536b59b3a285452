"""The input of a search."""

from __future__ import annotations

from typing import NamedTuple


class Task(NamedTuple):
    """Token ids of a source sentence, the prefix of its translation, and required phrases with their alternatives.

    sentence, prefix: with the previous sentences of the document, if the model translates with context
    partial:          bytes that the translation has after the prefix, see `nmt.search.partial_word`
    """

    sentence: list[int]
    prefix: list[int]
    required: list[list[list[int]]]
    partial: bytes = b""
