"""How hypotheses rank, score and bound each other: length penalty, bias, required phrases, groups.

Everything here has a row for each group of each sentence, and a place for each hypothesis of the group. An option that
is off has no part in it, and costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import torch
from torch import Tensor

from nmt.devices.transfer import to_device
from nmt.packing.packed import PackedSequences
from nmt.search.bias import Bias
from nmt.search.extensions import Extensions, best_extensions, best_of_groups
from nmt.search.options import SearchOptions, length_penalty
from nmt.search.required import Required


class Steering:
    """What search follows of each live hypothesis beside its tokens and their probability."""

    def __init__(
        self,
        options: SearchOptions,
        src: PackedSequences,
        limits: Sequence[int],
        required: Sequence[Sequence[Sequence[int]]] | None,
    ) -> None:
        """limits: tokens of the longest output of each sentence, the end token counted; required: see `beam_search`."""
        groups, width, device = options.num_groups, options.beam_size // options.num_groups, src.tokens.device
        self._groups, self._strength = groups, options.diversity_strength
        # Of any number of tokens; behind the longest output the last again, for what would come next there.
        lengths = [*range(max(limits) + 1), max(limits)]
        penalties = [length_penalty(n, options.length_penalty, options.length_alpha) for n in lengths]
        self._penalty = to_device(penalties, device)
        row_limits = to_device(limits, device).repeat_interleave(groups)
        self._penalty_at_limit = self._penalty[row_limits]  # (rows,)
        self._bias = Bias.start(options.bias, len(row_limits), width, device) if options.bias else None
        self._required = None
        if required is not None and any(any(phrases) for phrases in required):
            of_rows = [phrases for phrases in required for _ in range(groups)]
            self._required = Required.start(of_rows, row_limits, width)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self._penalty.device

    def best_extensions(self, log_prob: Tensor, next_log_probs: Tensor, lengths: Tensor) -> Extensions:
        """The best extensions to `lengths` tokens (rows,). log_prob: (rows, width); next_log_probs: (..., vocab)."""
        if self._required is not None:
            self._required.forbid_end(next_log_probs)
        earned = None if self._bias is None else self._bias.earned
        rated = None if self._bias is None else self._bias.rate(next_log_probs)
        if self._groups == 1:
            return best_extensions(log_prob, next_log_probs, earned, rated, self._required, lengths)
        return best_of_groups(
            log_prob, next_log_probs, self._groups, self._strength, earned, rated, self._required, lengths
        )

    def scores(self, best: Extensions, lengths: Tensor) -> Tensor:
        """The score of each extension to `lengths` tokens, (rows,), if it is an end: (rows, count)."""
        merits = best.log_probs
        if self._bias is not None:
            merits = merits + self._bias.earned.gather(1, best.parents)
        return merits / self._penalty[lengths][:, None]

    def follow(self, parents: Tensor, tokens: Tensor) -> None:
        """The live hypotheses now extend `parents` by `tokens`, both (rows, width)."""
        if self._bias is not None:
            self._bias = self._bias.follow(parents, tokens)
        if self._required is not None:
            self._required = self._required.follow(parents, tokens)

    def reach(self, log_prob: Tensor, lengths: Tensor) -> Tensor:
        """The highest score that a live hypothesis of `lengths` tokens can still come to, both (rows,).

        Log-probability only falls, and a bias can at most add what is left of it. What is below 0 gains most by the
        penalty at the limit, what is above 0 by the nearest. Each step of this reasoning holds for rounded numbers too,
        since rounding keeps order.
        """
        if self._bias is None:
            return log_prob.amax(dim=1) / self._penalty_at_limit
        merit = (log_prob + self._bias.most()).amax(dim=1)
        return torch.where(merit > 0, merit / self._penalty[lengths + 1], merit / self._penalty_at_limit)

    def of(self, sentences: Sequence[int], on_device: Tensor) -> Steering:
        """The same for some of the sentences; on_device: the same numbers, (kept,) int64."""
        index = rows_of(on_device, self._groups)
        own = copy(self)
        own._penalty_at_limit = self._penalty_at_limit[index]
        own._bias = None if self._bias is None else self._bias.of(_host_rows_of(sentences, self._groups))
        own._required = None if self._required is None else self._required.of(index)
        return own

    def joined(self, others: Steering) -> Steering:
        """With other sentences of the same search behind these."""
        all_of_them = copy(self)
        all_of_them._penalty_at_limit = torch.cat([self._penalty_at_limit, others._penalty_at_limit])
        if self._bias is not None and others._bias is not None:
            all_of_them._bias = self._bias.joined(others._bias)
        if self._required is not None and others._required is not None:
            all_of_them._required = self._required.joined(others._required)
        return all_of_them


def rows_of(sentences: Tensor, groups: int) -> Tensor:
    """The rows of some sentences that have a row for each of so many groups: (kept,) -> (kept * groups,) int64."""
    if groups == 1:
        return sentences
    return (sentences[:, None] * groups + torch.arange(groups, device=sentences.device)).flatten()


def _host_rows_of(sentences: Sequence[int], groups: int) -> list[int]:
    """As `rows_of`, on the host."""
    return [sentence * groups + group for sentence in sentences for group in range(groups)]
