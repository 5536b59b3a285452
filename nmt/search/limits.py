"""Maximum and minimum length of outputs."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

from nmt.errors import UserError
from nmt.search.options import SearchOptions
from nmt.text.context import after_last

Requirement = Sequence[Sequence[int]]
"""Alternative phrases, as token ids; an output must contain one of them."""


def output_limits(
    options: SearchOptions,
    src_tokens: Sequence[int],
    prefixes: Sequence[Sequence[int]],
    required: Sequence[Sequence[Requirement]] | None = None,
) -> tuple[list[int], list[int]]:
    """Return the maximum length of each output, EOS included, and its minimum length, EOS excluded.

    src_tokens: (num_sentences,) number of source tokens, EOS excluded; prefixes: token ids that each output begins
    with; required: requirements of each output, which may raise its limit
    """
    limits: list[int] = []
    min_lengths: list[int] = []
    for tokens, prefix, requirements in zip(src_tokens, prefixes, required or [()] * len(src_tokens), strict=True):
        longest = max(_max_length(tokens, options, prefix), len(prefix), _num_needed(requirements, prefix, options))
        limits.append(longest + 1)
        min_lengths.append(min(longest, _min_length(tokens, options, prefix)))
    return limits, min_lengths


def max_output_length(options: SearchOptions, prefix: Sequence[int] = ()) -> int:
    """Return the maximum length of an output with this prefix, for any source."""
    limit = sys.maxsize if options.max_tokens is None else options.max_tokens
    if options.max_own_tokens is not None:
        limit = min(limit, after_last(prefix, options.separator) + options.max_own_tokens)
    return limit


def require_fit(prefix: list[int], options: SearchOptions) -> list[int]:
    """Return the prefix of an output; raise UserError if it is longer than any output."""
    limit = max_output_length(options)
    if len(prefix) > limit:
        raise UserError(
            f"the prefix, or the line that a language model continues, has {len(prefix)} tokens; an output has at most "
            f"{limit}; shorten it"
        )
    return prefix


def num_required_tokens(required: Sequence[Requirement]) -> int:
    """Return an upper bound on the tokens that all requirements need: the total length of their shortest phrases."""
    return sum(min(map(len, phrases)) for phrases in distinct_requirements(required))


def distinct_requirements(required: Sequence[Requirement]) -> list[tuple[tuple[int, ...], ...]]:
    """Return the distinct nonempty requirements, each with its distinct nonempty phrases, sorted."""
    nonempty = ({tuple(phrase) for phrase in phrases if phrase} for phrases in required)
    return sorted({tuple(sorted(phrases)) for phrases in nonempty if phrases})


def _max_length(src_tokens: int, options: SearchOptions, prefix: Sequence[int]) -> int:
    """Return the maximum output length of a source, previous translations included; all without EOS."""
    # Otherwise, previous translations longer than their sources would shorten the translation of the line.
    limit = src_tokens + after_last(prefix, options.separator) + options.max_extra_tokens
    if options.max_length_ratio < math.inf:
        limit = min(limit, math.ceil(_multiply(options.max_length_ratio, src_tokens)))
    return min(limit, max_output_length(options, prefix))


def _min_length(src_tokens: int, options: SearchOptions, prefix: Sequence[int]) -> int:
    """Return the minimum output length of a source, previous translations included; all without EOS."""
    minimum = max(options.min_tokens, math.floor(_multiply(options.min_length_ratio, src_tokens)))
    return minimum + after_last(prefix, options.separator) if minimum else 0


def _multiply(ratio: float, tokens: int) -> float:
    """Return the product without the rounding error of the ratio: 1.1 * 50 is 55, not 55.00000000000001."""
    return round(ratio * tokens, 6)


def _num_needed(required: Sequence[Requirement], prefix: Sequence[int], options: SearchOptions) -> int:
    """Return the output length, prefix included, that suffices for all requirements, capped at the maximum."""
    return min(len(prefix) + num_required_tokens(required), max_output_length(options, prefix))
