"""What outputs must not hold: everything that search makes impossible before it chooses.

Each rule writes -inf over the log-probabilities of extensions by one token; what it leaves keeps its true value. Where
rules contradict each other, a prefix wins over everything, required phrases (`nmt.decode.required`) over the longest
output, and the longest output over the shortest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from nmt.decode.options import SearchOptions
from nmt.decode.required import tokens_to_hold
from nmt.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID

_IMPOSSIBLE = float("-inf")

# What no output holds.
_NEVER = [PAD_ID, UNK_ID, BOS_ID]


class Rules:
    """The rules of one search.

    limits:   (num_sentences,) tokens of the longest output of each sentence, the end token counted
    shortest: (num_sentences,) tokens of the shortest one, the end token not counted
    """

    def __init__(
        self,
        options: SearchOptions,
        src_tokens: Sequence[int],
        prefixes: Sequence[Sequence[int]] | None = None,
        required: Sequence[Sequence[Sequence[int]]] | None = None,
    ) -> None:
        """src_tokens: (num_sentences,) tokens of each source, end token not counted; prefixes: tokens of each.

        required: the phrases that the output of each must hold, for which its limit may have to grow
        """
        self._options = options
        self._prefixes = prefixes or [()] * len(src_tokens)
        self.limits = [
            1 + max(_longest(tokens, options), len(prefix), _room_for(phrases, prefix, options))
            for tokens, prefix, phrases in zip(
                src_tokens, self._prefixes, required or [()] * len(src_tokens), strict=True
            )
        ]
        self.shortest = [
            min(limit - 1, max(options.min_tokens, math.floor(_times(options.min_length_ratio, tokens))))
            for limit, tokens in zip(self.limits, src_tokens, strict=True)
        ]

    def apply(
        self,
        log_probs: Tensor,
        lengths: Sequence[int],
        sentences: Sequence[int],
        outputs: Callable[[int], Tensor],
    ) -> None:
        """Make impossible, in place, what must not be the next token of an output.

        log_probs: (batch, beam, vocab); lengths: (batch,) tokens of the outputs with the next; sentences: (batch,)
        which sentence each row is; outputs: gives the last so many tokens of every hypothesis, (batch, beam, n), with
        -1 where it has fewer
        """
        forced = {
            row: self._prefixes[sentence][length - 1]
            for row, (sentence, length) in enumerate(zip(sentences, lengths, strict=True))
            if length <= len(self._prefixes[sentence])
        }
        rows, tokens = list(forced), list(forced.values())
        of_prefixes = log_probs[rows, :, tokens] if forced else None  # (forced, beam)

        log_probs[:, :, _NEVER] = _IMPOSSIBLE
        self._limit_length(log_probs, lengths, sentences)
        n, forbidden, longest = self._options.no_repeat_ngram, self._options.forbidden, max(lengths)
        if forbidden or 0 < n < longest:
            so_far = outputs(longest - 1)
            if 0 < n < longest:
                _forbid_repeated(log_probs, so_far, n)
            for sequence in forbidden:
                _forbid_sequence(log_probs, so_far, sequence)
        if of_prefixes is not None:
            log_probs[rows] = _IMPOSSIBLE
            log_probs[rows, :, tokens] = of_prefixes

    def _limit_length(self, log_probs: Tensor, lengths: Sequence[int], sentences: Sequence[int]) -> None:
        """An output cannot end before it is long enough, and at the limit it can only end."""
        rows = list(enumerate(zip(sentences, lengths, strict=True)))
        too_short = [row for row, (sentence, length) in rows if length <= self.shortest[sentence]]
        if too_short:
            log_probs[too_short, :, EOS_ID] = _IMPOSSIBLE
        at_limit = [row for row, (sentence, length) in rows if length == self.limits[sentence]]
        if at_limit:
            end = log_probs[at_limit, :, EOS_ID]
            log_probs[at_limit] = _IMPOSSIBLE
            log_probs[at_limit, :, EOS_ID] = end


def _longest(src_tokens: int, options: SearchOptions) -> int:
    """The longest output of a source, end tokens not counted."""
    longest = src_tokens + options.max_extra_tokens
    if options.max_length_ratio < math.inf:
        longest = min(longest, math.ceil(_times(options.max_length_ratio, src_tokens)))
    return longest if options.max_tokens is None else min(longest, options.max_tokens)


def _times(ratio: float, tokens: int) -> float:
    """The product, freed from the rounding of the ratio: 1.1 times 10 is 11 and not a little more."""
    return round(ratio * tokens, 6)


def _room_for(required: Sequence[Sequence[int]], prefix: Sequence[int], options: SearchOptions) -> int:
    """Tokens of an output that holds the required phrases behind its prefix, as far as it may be as long."""
    needed = len(prefix) + tokens_to_hold(required)
    return needed if options.max_tokens is None else min(needed, options.max_tokens)


def _forbid_repeated(log_probs: Tensor, outputs: Tensor, n: int) -> None:
    """Not a token that closes a sequence of `n` which the output holds already. outputs: (batch, beam, count >= n)."""
    seen = outputs.unfold(2, n, 1)  # (batch, beam, places, n)
    newest = outputs[:, :, outputs.shape[2] - n + 1 :]  # (batch, beam, n - 1)
    is_token = seen[..., -1] >= 0  # an output that has not begun is all -1
    batch, beam, place = ((seen[..., :-1] == newest[:, :, None]).all(dim=3) & is_token).nonzero(as_tuple=True)
    log_probs[batch, beam, seen[batch, beam, place, -1]] = _IMPOSSIBLE


def _forbid_sequence(log_probs: Tensor, outputs: Tensor, sequence: Sequence[int]) -> None:
    """Not the last token of `sequence` behind all its others. outputs: (batch, beam, count)."""
    *before, last = sequence
    start = outputs.shape[2] - len(before)
    if start >= 0:
        is_begun = (outputs[:, :, start:] == torch.tensor(before, device=outputs.device)).all(dim=2)  # (batch, beam)
        log_probs[:, :, last] = log_probs[:, :, last].masked_fill(is_begun, _IMPOSSIBLE)
