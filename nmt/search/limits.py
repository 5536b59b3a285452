"""Maximum and minimum length of outputs."""

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
    """Return the maximum length of each output, EOS included, and its minimum length, EOS excluded.

    src_tokens: (num_sentences,) number of source tokens, EOS excluded; prefixes: token ids that each output begins
    with; required: phrases that each output contains, which may raise its limit
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


def num_required_tokens(phrases: Sequence[Sequence[int]]) -> int:
    """Return a number of tokens that suffices for an output with all phrases: the sum over distinct phrases."""
    return sum(map(len, {tuple(phrase) for phrase in phrases}))


def _longest(src_tokens: int, options: SearchOptions) -> int:
    """Return the maximum output length of a source; both without EOS."""
    longest = src_tokens + options.max_extra_tokens
    if options.max_length_ratio < math.inf:
        longest = min(longest, math.ceil(_times(options.max_length_ratio, src_tokens)))
    return longest if options.max_tokens is None else min(longest, options.max_tokens)


def _times(ratio: float, tokens: int) -> float:
    """Return the product without the rounding error of the ratio: 1.1 * 10 is 11, not 11.000000000000002."""
    return round(ratio * tokens, 6)


def _needed(required: Sequence[Sequence[int]], prefix: Sequence[int], options: SearchOptions) -> int:
    """Return the length of an output with its prefix and all required phrases, at most `max_tokens`."""
    needed = len(prefix) + num_required_tokens(required)
    return needed if options.max_tokens is None else min(needed, options.max_tokens)
