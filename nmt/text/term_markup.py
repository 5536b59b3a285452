"""Term markup: inserts the translations of terms into the source, between reserved tokens.

A marked term consists of `<term-source>`, the tokens of its words, `<term-target>`, the tokens of its translation, and
`<term-end>`. All other tokens of the sentence are unchanged. This is the "append" method of Dinu et al. 2019,
"Training Neural Machine Translation to Apply Terminology Constraints", with reserved tokens instead of source factors.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple, Self

from nmt.errors import UserError
from nmt.recipe import TERM_MARKERS
from nmt.text.tokenizer import Tokenizer, Tokenizers

Span = tuple[int, int]


class Mark(NamedTuple):
    """The tokens `first` to `end` of a term, and the tokens of its translation."""

    first: int
    end: int
    translation: Sequence[int]

    @property
    def added(self) -> int:
        """Number of tokens that the markup adds."""
        return len(TERM_MARKERS) + len(self.translation)


class TermMarkers(NamedTuple):
    """Token ids of the markers, in the order of a marked term."""

    source: int
    target: int
    end: int

    @classmethod
    def find(cls, tokenizers: Tokenizers, option: str) -> Self:
        """Return the markers; raise UserError, which names `option`, if they are missing or the tokenizers differ."""
        ids = cls.ids_of(tokenizers.src)
        if len(ids) < len(TERM_MARKERS) or not tokenizers.joint:
            raise UserError(
                f"the model has no term markers, which {option} needs; its tokenizer must be joint and have "
                f"{' '.join(TERM_MARKERS)}; train a model with train.glossary_markup = 0.1"
            )
        return cls(*ids)

    @staticmethod
    def ids_of(tokenizer: Tokenizer) -> list[int]:
        """Return the token ids of the markers; none for a tokenizer without them."""
        if not any(map(tokenizer.has_piece, TERM_MARKERS)):
            return []  # avoids reading all pieces, which takes 0.1 s for 32,000
        symbols = tokenizer.user_symbols()
        return [symbols[marker] for marker in TERM_MARKERS if marker in symbols]

    def mark(self, tokens: Sequence[int], marks: Sequence[Mark]) -> list[int]:
        """Return the tokens of a sentence with marked terms. marks: in order, without overlap"""
        marked: list[int] = []
        position = 0
        for first, end, translation in marks:
            marked += [*tokens[position:first], self.source, *tokens[first:end], self.target, *translation, self.end]
            position = end
        return [*marked, *tokens[position:]]


def token_span(starts: Sequence[int], span: Span) -> Span:
    """Return the token span, first and end, that covers a character span.

    starts: character where each token begins, see `Tokenizer.encode_with_starts`
    """
    first = bisect_left(starts, starts[max(bisect_right(starts, span[0]) - 1, 0)]) if starts else 0
    return first, bisect_left(starts, span[1])
