"""Search for well-formed constituency trees with as many words as the source (`nmt.text.trees`).

A tree is one labeled bracket with words and nested brackets inside, none of them empty. If the source has one word,
the tree may also be a word without a bracket. Each opening bracket, closing bracket and word is one token, so the
automaton below allows exactly the trees that fit the maximum length. A word of a tree is XX or a punctuation tag.

After each token, the rest of an output needs one token for each missing word and each open bracket. A new bracket is
possible if two more tokens fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from nmt.devices.transfer import to_device
from nmt.errors import UserError
from nmt.search.per_sentence import PerSentence
from nmt.special_ids import EOS_ID
from nmt.text.subword_file import SPACE
from nmt.text.tokenizer import Tokenizers
from nmt.text.trees import PUNCTUATION, WORD

# Kinds of tokens. `_OTHER` includes closing tokens, because only that of the innermost open bracket is possible.
_OTHER, _WORD, _OPENING, _END = range(4)


class TreeTokens(NamedTuple):
    """The tokens of trees in a target vocabulary.

    words:    XX and punctuation tags
    brackets: opening and closing token of each label
    """

    vocab_size: int
    words: tuple[int, ...]
    brackets: tuple[tuple[int, int], ...]

    @classmethod
    def find(cls, tokenizers: Tokenizers) -> Self:
        """Return the tokens of the target tokenizer; raise UserError if it has no brackets or no words."""
        symbols = tokenizers.tgt.user_symbols()
        words = tuple(symbols[SPACE + word] for word in (WORD, *sorted(PUNCTUATION)) if SPACE + word in symbols)
        closing = {symbol: symbol.replace("(", ")", 1) for symbol in symbols if symbol.startswith(f"{SPACE}(")}
        brackets = tuple((symbols[left], symbols[right]) for left, right in closing.items() if right in symbols)
        if not words or not brackets:
            raise UserError(
                "the model has no tokens for brackets, which decode.trees needs; train it on corpora of kind 'trees' "
                "with tokenizer.joint = false, or set decode.trees to false"
            )
        return cls(tokenizers.tgt.vocab_size, words, brackets)


class TreeConstraint:
    """The constraint on the device, for the sentences of one search."""

    def __init__(self, tokens: TreeTokens, num_words: Sequence[int], device: torch.device) -> None:
        """num_words: (num_sentences,) words of each source."""
        kinds, labels = [_OTHER] * tokens.vocab_size, [0] * tokens.vocab_size
        for word in tokens.words:
            kinds[word] = _WORD
        for label, (left, right) in enumerate(tokens.brackets):
            kinds[left] = _OPENING
            labels[left] = labels[right] = label
        kinds[EOS_ID] = _END
        self.kinds, self.labels = to_device(kinds, device), to_device(labels, device)
        self.closing = to_device([right for _, right in tokens.brackets], device)
        self._num_words = to_device(num_words, device)

    def start(self, sentences: Tensor, limits: Tensor, capacity: int, beam_size: int) -> TreeProgress:
        """Return the progress of empty outputs.

        sentences: (batch,) indices; limits: (batch,) maximum length of each output, EOS included; capacity: the highest
        limit of the search
        """
        shape = len(sentences), beam_size
        missing = self._num_words[sentences][:, None].expand(shape)
        return TreeProgress(
            constraint=self,
            missing=missing,
            spare=limits[:, None] - 1 - missing,
            depth=torch.zeros_like(missing),
            is_empty=torch.zeros_like(missing, dtype=torch.bool),
            open=missing.new_zeros((*shape, capacity), dtype=torch.int32),
        )


@dataclass
class TreeProgress(PerSentence):
    """Unfinished trees of the live hypotheses.

    missing:  (batch, beam) int64, words to come
    spare:    (batch, beam) int64, tokens that fit beyond those that the tree needs
    depth:    (batch, beam) int64, number of open brackets
    is_empty: (batch, beam) bool, whether the last token opened a bracket
    open:     (batch, beam, capacity) int32, labels of the open brackets, outermost first; undefined beyond `depth`
    """

    constraint: TreeConstraint
    missing: Tensor
    spare: Tensor
    depth: Tensor
    is_empty: Tensor
    open: Tensor

    def apply(self, log_probs: Tensor) -> None:
        """Make tokens that cannot continue a tree impossible, in place. log_probs: (batch, beam, vocab)"""
        has_missing, is_inside = self.missing > 0, self.depth > 0
        word = has_missing & (is_inside | (self.missing == 1))  # outside brackets only as the single word
        opening = has_missing & (self.spare >= 2)
        end = ~has_missing & ~is_inside
        closing = is_inside & ~self.is_empty & ((self.depth > 1) | ~has_missing)
        by_kind = torch.stack([torch.zeros_like(end), word, opening, end], dim=2)  # in the order of the kinds
        possible = by_kind[:, :, self.constraint.kinds]
        innermost = self.open.gather(2, (self.depth - 1).clamp(min=0)[:, :, None])
        possible.scatter_(2, self.constraint.closing[innermost.long()], closing[:, :, None])
        log_probs.masked_fill_(~possible, -math.inf)

    def extend(self, parents: Tensor, tokens: Tensor) -> TreeProgress:
        """Return the progress of hypotheses that extend `parents` by `tokens`, both (batch, beam)."""
        kinds, labels = self.constraint.kinds[tokens], self.constraint.labels[tokens]
        is_word, is_opening = kinds == _WORD, kinds == _OPENING
        is_closing = self.constraint.closing[labels] == tokens
        depth = self.depth.gather(1, parents)
        open = self.open.gather(1, parents[:, :, None].expand(-1, -1, self.open.shape[2]))
        # Impossible hypotheses, whose tokens are arbitrary, stay within the capacity.
        open.scatter_(2, depth.clamp(0, open.shape[2] - 1)[:, :, None], labels.int()[:, :, None])
        return replace(
            self,
            missing=self.missing.gather(1, parents) - is_word.long(),
            spare=self.spare.gather(1, parents) - 2 * is_opening.long(),
            depth=(depth + is_opening.long() - is_closing.long()).clamp(0, open.shape[2]),
            is_empty=is_opening,
            open=open,
        )
