"""How long an output may be, and must be."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nmt.search.options import SearchOptions


def output_limits(
    options: SearchOptions,
    src_tokens: Sequence[int],
    prefixes: Sequence[Sequence[int]],
    required: Sequence[Sequence[Sequence[int]]] | None = None,
) -> tuple[list[int], list[int]]:
    """Tokens of the longest output of each sentence, end token counted, and of the shortest, end token not counted.

    src_tokens: (num_sentences,) tokens of each source, end token not counted; prefixes: what each output begins with;
    required: the phrases that each must hold, for which its limit may grow
    """
    limits = [
        1 + max(_longest(tokens, options), len(prefix), _needed(phrases, prefix, options))
        for tokens, prefix, phrases in zip(src_tokens, prefixes, required or [()] * len(src_tokens), strict=True)
    ]
    shortest = [
        min(limit - 1, max(options.min_tokens, math.floor(_times(options.min_length_ratio, tokens))))
        for limit, tokens in zip(limits, src_tokens, strict=True)
    ]
    return limits, shortest


def tokens_to_hold(phrases: Sequence[Sequence[int]]) -> int:
    """How many tokens surely suffice to hold all phrases: those of the distinct ones together."""
    return sum(map(len, {tuple(phrase) for phrase in phrases}))


def _longest(src_tokens: int, options: SearchOptions) -> int:
    """The longest output of a source, end tokens not counted."""
    longest = src_tokens + options.max_extra_tokens
    if options.max_length_ratio < math.inf:
        longest = min(longest, math.ceil(_times(options.max_length_ratio, src_tokens)))
    return longest if options.max_tokens is None else min(longest, options.max_tokens)


def _times(ratio: float, tokens: int) -> float:
    """The product, freed from the rounding of the ratio: 1.1 times 10 is 11 and not a little more."""
    return round(ratio * tokens, 6)


def _needed(required: Sequence[Sequence[int]], prefix: Sequence[int], options: SearchOptions) -> int:
    """Tokens of an output that holds the required phrases behind its prefix, as far as it may be as long."""
    needed = len(prefix) + tokens_to_hold(required)
    return needed if options.max_tokens is None else min(needed, options.max_tokens)
