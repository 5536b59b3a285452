"""Inputs of translators and of search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nmt.decode.glossary import Glossary, Required

Previous = str | tuple[str, str]
"""A previous sentence, or a pair with its translation for models with context on both sides."""


class TranslatorInput(NamedTuple):
    """A line to translate.

    prefix:   text that the translation begins with; "" for none
    required: phrases that the translation must contain
    context:  previous sentences of the document
    glossary: terms to use; those that would exceed the maximum length are left out
    """

    text: str
    prefix: str = ""
    required: Sequence[Required] = ()
    context: Sequence[Previous] = ()
    glossary: Glossary | None = None


class Task(NamedTuple):
    """Token ids of a source sentence, the prefix of its translation, and required phrases with their alternatives.

    sentence, prefix: include the previous sentences of the document for models with context
    partial:          bytes that follow the prefix in the translation, see `nmt.search.partial_word`
    """

    sentence: list[int]
    prefix: list[int]
    required: list[list[list[int]]]
    partial: bytes = b""
