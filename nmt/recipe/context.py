"""Document context: the previous sentences that a model reads."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import Field

ContextSides = Literal["source", "both"]
ContextSize = Annotated[int, Field(ge=0, le=1_000_000)]

SEPARATOR = "<sep>"
"""User symbol of the tokenizers that follows each previous sentence."""


class Context(NamedTuple):
    """The document context of each sentence.

    size:  maximum number of previous sentences
    sides: "both" if the model also gets their translations
    """

    size: ContextSize = 0
    sides: ContextSides = "source"

    @property
    def has_target(self) -> bool:
        """Whether the model gets previous translations."""
        return self.size > 0 and self.sides == "both"


NO_CONTEXT = Context()
