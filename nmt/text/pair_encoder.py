"""Encoding of sources with given translations, for scoring, word alignment and the analysis of heads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nmt.errors import UserError
from nmt.recipe import UnicodeForm
from nmt.text.clean import normalize
from nmt.text.tokenizer import Tokenizers

TokenPair = tuple[Sequence[int], Sequence[int]]
"""Token ids of a source and its translation, without tag, BOS and EOS, in reading order."""


@dataclass(frozen=True)
class PairEncoder:
    """Encodes sentence pairs as in training.

    limit:             maximum tokens of a side, without EOS
    tag:               token ids before each source
    max_source_tokens: length to which sources are truncated, tag excluded; None if they are not
    reverse_target:    whether the model decodes from right to left
    """

    tokenizers: Tokenizers
    unicode_form: UnicodeForm
    limit: int
    tag: Sequence[int] = ()
    max_source_tokens: int | None = None
    reverse_target: bool = False

    def encode(self, source: str, target: str) -> TokenPair:
        """Normalize and tokenize both sides."""
        src = self.tokenizers.src.encode(normalize(source, self.unicode_form))
        tgt = self.tokenizers.tgt.encode(normalize(target, self.unicode_form))
        return src[: self.max_source_tokens], tgt

    def fits(self, pair: TokenPair) -> bool:
        """Return whether both sides fit the model's positions."""
        src, tgt = pair
        return len(self.tag) + len(src) <= self.limit and len(tgt) <= self.limit

    def require_fit(
        self, pairs: Iterable[TokenPair], first_line: int = 1, names: tuple[str, str] = ("source", "target")
    ) -> None:
        """Raise UserError for the first side that does not fit.

        names: names of both sides in the error; first_line: line number of the first pair
        """
        for number, (src, tgt) in enumerate(pairs, start=first_line):
            for name, length in zip(names, (len(self.tag) + len(src), len(tgt)), strict=True):
                if length > self.limit:
                    raise UserError(
                        f"{name}, line {number} has {length} tokens; the model supports at most {self.limit}; "
                        "split the sentence"
                    )

    def in_model_order(self, pair: TokenPair) -> tuple[list[int], list[int]]:
        """Return the tokens as the model reads them: the source with its tag, and the target."""
        src, tgt = pair
        return [*self.tag, *src], [*tgt[::-1]] if self.reverse_target else [*tgt]
