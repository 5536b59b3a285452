"""Phrases that an output must hold: dynamic beam allocation (Post and Vilar 2018) with an automaton.

An output holds a phrase where its tokens stand one after the other, so phrases may overlap and lie inside each other,
and one that is required twice may stand once. A hypothesis cannot end before it holds all of its phrases.

Hypotheses that hold more of their phrases are less probable for it, and would lose their places to those that put the
phrases off. So the beam is shared out. A bank is the hypotheses that still miss the same number of tokens; the places
go to the best of each bank, then to the second best of each, and so on, those that miss least first. A bank that has no
more leaves its places to the others. Every token that can continue a phrase is a candidate, however improbable. A beam
with more places than there are required tokens can keep every bank, and decides better where the phrases are to stand.

The longest output grows, where it must, to hold the phrases one behind the other, after the prefix; never beyond
`max_tokens`. A hypothesis with room for those that it still misses goes before all others, and always has an extension
with room again. So a beam of any size finds an output with all phrases, unless the model or another rule makes each of
these extensions impossible, or they are too many for `max_tokens`: then there may be no output at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nmt.devices.transfer import to_device
from nmt.search.phrases import PhraseMatcher
from nmt.special_ids import EOS_ID, PAD_ID

_OF_ROWS = ("limits", "wanted", "phrases", "nodes", "met")


@dataclass(frozen=True)
class Required:
    """What each live hypothesis has of the phrases that it must hold.

    limits:  (rows,) int64, tokens of the longest output, the end token counted
    wanted:  (rows, most) int64, tokens of the phrases, filled up with PAD_ID, which never is possible
    phrases: (rows, most) int64, which of the matcher's phrases they are, filled up with an empty one
    nodes:   (rows, width) int64, where the matcher stands
    met:     (rows, width, most) bool, which of the phrases the hypothesis holds
    """

    matcher: PhraseMatcher
    limits: Tensor
    wanted: Tensor
    phrases: Tensor
    nodes: Tensor
    met: Tensor

    @classmethod
    def start(cls, required: Sequence[Sequence[Sequence[int]]], limits: Tensor, width: int) -> Required:
        """required: the phrases of each row, as tokens; limits: (rows,)."""
        device = limits.device
        own = [sorted({tuple(phrase) for phrase in phrases if phrase}) for phrases in required]
        distinct: list[tuple[int, ...]] = [(), *sorted({phrase for phrases in own for phrase in phrases})]
        matcher = PhraseMatcher(distinct, device)
        number = {phrase: place for place, phrase in enumerate(distinct)}
        numbers = [[number[phrase] for phrase in phrases] for phrases in own]
        kinds = [sorted({token for phrase in phrases for token in phrase}) for phrases in own]
        ids = _table(numbers, number[()], device)
        nodes = torch.zeros(len(own), width, dtype=torch.int64, device=device)
        return cls(
            matcher=matcher,
            limits=limits,
            wanted=_table(kinds, PAD_ID, device),
            phrases=ids,
            nodes=nodes,
            met=(matcher.lengths[ids] == 0)[:, None].repeat(1, width, 1),
        )

    def forbid_end(self, log_probs: Tensor) -> None:
        """Make it impossible, in place, to end before all is met. log_probs: (rows, width, vocab)."""
        log_probs[:, :, EOS_ID].masked_fill_(~self.met.all(dim=2), float("-inf"))

    def with_wanted(self, tokens: Tensor) -> Tensor:
        """Candidates, (rows, width, count), and behind them all that can continue a phrase; some then stand twice."""
        return torch.cat([tokens, self.wanted[:, None].expand(-1, tokens.shape[1], -1)], dim=2)

    def allot(self, parents: Tensor, tokens: Tensor, is_possible: Tensor, lengths: Tensor) -> Tensor:
        """The order in which candidates get places, (rows, candidates) int64, as the head of this file says.

        parents, tokens and is_possible: (rows, candidates), the best first; lengths: (rows,) tokens of each, with the
        new
        """
        missing = self._missing(parents, tokens)
        by_bank = missing.argsort(dim=1, stable=True)
        banks = missing.gather(1, by_bank)
        places = torch.arange(banks.shape[1], device=banks.device).expand_as(banks)
        is_first = torch.ones_like(is_possible)
        is_first[:, 1:] = banks[:, 1:] != banks[:, :-1]
        turn = places - places.masked_fill(~is_first, 0).cummax(dim=1).values  # place within its bank
        room = (self.limits - 1 - lengths)[:, None]
        without_room = (banks > room).long() + 2 * (~is_possible).gather(1, by_bank)
        turn = turn + banks.shape[1] * without_room
        return by_bank.gather(1, turn.argsort(dim=1, stable=True))

    def follow(self, parents: Tensor, tokens: Tensor) -> Required:
        """The hypotheses that extend `parents` by `tokens`, both (rows, width)."""
        nodes, met, _ = self._behind(parents, tokens)
        return replace(self, nodes=nodes, met=met)

    def of(self, rows: Tensor | slice) -> Required:
        """The same for some of the rows."""
        return replace(self, **{name: getattr(self, name)[rows] for name in _OF_ROWS})

    def joined(self, others: Required) -> Required:
        """With other rows, of the same matcher, behind these."""
        parts: dict[str, Any] = {name: torch.cat([getattr(self, name), getattr(others, name)]) for name in _OF_ROWS}
        return replace(self, **parts)

    def _behind(self, parents: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Nodes, what is met and what is begun behind `tokens`: (rows, n), and twice (rows, n, most)."""
        nodes = self.matcher.after(self.nodes.gather(1, parents), tokens)
        begun = self.matcher.begun(nodes[:, :, None], self.phrases[:, None])
        met = self.met.gather(1, parents[:, :, None].expand(-1, -1, self.met.shape[2]))
        return nodes, met | (begun == self.matcher.lengths[self.phrases][:, None]), begun

    def _missing(self, parents: Tensor, tokens: Tensor) -> Tensor:
        """Tokens that are still to come if all phrases follow one behind the other, the one begun first."""
        _, met, begun = self._behind(parents, tokens)
        lengths = self.matcher.lengths[self.phrases][:, None].expand_as(begun)
        return lengths.masked_fill(met, 0).sum(dim=2) - begun.masked_fill(met, 0).amax(dim=2)


def _table(rows: Sequence[Sequence[int]], filler: int, device: torch.device) -> Tensor:
    """Rows of different length as one tensor, (rows, most) int64."""
    most = max(map(len, rows))
    table = [[*row, *[filler] * (most - len(row))] for row in rows]
    return to_device(torch.tensor(table, dtype=torch.int64), device)
