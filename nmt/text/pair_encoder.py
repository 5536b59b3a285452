"""Encoding of sources with given translations, for scoring, word alignment and the analysis of heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nmt.recipe import UnicodeForm
from nmt.text.clean import normalize
from nmt.text.tokenizer import Tokenizers, require_lengths

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
        self, pairs: Sequence[TokenPair], first_line: int = 1, names: tuple[str, str] = ("source", "target")
    ) -> None:
        """Raise UserError for the first side that does not fit, see `require_lengths`."""
        require_lengths([([*self.tag, *src], tgt) for src, tgt in pairs], self.limit, names, first_line)

    def in_model_order(self, pair: TokenPair) -> tuple[list[int], list[int]]:
        """Return the tokens as the model reads them: the source with its tag, and the target."""
        src, tgt = pair
        return [*self.tag, *src], [*tgt[::-1]] if self.reverse_target else [*tgt]
