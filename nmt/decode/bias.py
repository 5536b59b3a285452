"""The bias: words and phrases that search is to prefer or to avoid.

An output is ranked, and scored, as if its log-probability were higher by the biases of the phrases that it holds. A
positive bias counts once, however often the output holds the phrase, since else repeating it would pay; a negative one
counts each time. What is reported as log-probability stays the model's own.

A positive bias is credited little by little while its phrase grows, so that the beam does not drop it half-way; where
the phrase breaks off, or the output ends, the credit is gone. Nothing impossible becomes possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nmt.decode.phrases import PhraseMatcher
from nmt.transfer import to_device

# Biases are multiples of this. Their sums are then exact, and do not depend on the order in which they are taken.
_GRAIN = 2.0**-30


@dataclass(frozen=True)
class Bias:
    """What each live hypothesis has of the phrases with a bias.

    worth:  (phrases,) float64, the biases
    nodes:  (rows, width) int64, where the matcher stands
    met:    (rows, width, phrases) bool, what the hypothesis holds
    earned: (rows, width) float64, what it would gain if it ended now
    """

    matcher: PhraseMatcher
    worth: Tensor
    nodes: Tensor
    met: Tensor
    earned: Tensor

    @classmethod
    def start(cls, biases: Sequence[tuple[Sequence[int], float]], rows: int, width: int, device: torch.device) -> Bias:
        """biases: the tokens of each phrase, and its bias."""
        worth = [round(value / _GRAIN) * _GRAIN for _, value in biases]
        nodes = torch.zeros(rows, width, dtype=torch.int64, device=device)
        return cls(
            matcher=PhraseMatcher([phrase for phrase, _ in biases], device),
            worth=to_device(torch.tensor(worth, dtype=torch.float64), device),
            nodes=nodes,
            met=torch.zeros(rows, width, len(biases), dtype=torch.bool, device=device),
            earned=torch.zeros(rows, width, dtype=torch.float64, device=device),
        )

    def preference(self, vocab: int) -> Tensor:
        """What each extension by one token has earned, credit included, (rows, width, vocab) float32."""
        nodes = self.matcher.columns[self.nodes]  # (rows, width, 1 + kinds)
        met, earned = self._behind(nodes, self.met[:, :, None], self.earned[:, :, None])
        shares = self.matcher.begun * self.worth.clamp(min=0) / self.matcher.lengths  # (nodes, phrases)
        credit = shares[nodes].masked_fill(met, 0).amax(dim=-1)
        ahead = (earned + credit).float()
        preference = ahead[:, :, :1].repeat(1, 1, vocab)
        preference[:, :, self.matcher.kinds] = ahead[:, :, 1:]
        return preference

    def most(self) -> Tensor:
        """The most that each can earn in the end, (rows, width) float64: all that is positive, and no more fines."""
        return self.earned + self.worth.clamp(min=0).masked_fill(self.met, 0).sum(dim=-1)

    def follow(self, parents: Tensor, tokens: Tensor) -> Bias:
        """The hypotheses that extend `parents` by `tokens`, both (rows, width)."""
        nodes = self.matcher.after(self.nodes.gather(1, parents), tokens)
        met = self.met.gather(1, parents[:, :, None].expand_as(self.met))
        met, earned = self._behind(nodes, met, self.earned.gather(1, parents))
        return replace(self, nodes=nodes, met=met, earned=earned)

    def of(self, rows: Tensor) -> Bias:
        """The same for some of the rows."""
        return replace(self, nodes=self.nodes[rows], met=self.met[rows], earned=self.earned[rows])

    def joined(self, others: Bias) -> Bias:
        """With other rows behind these."""
        parts: dict[str, Any] = {
            name: torch.cat([getattr(self, name), getattr(others, name)]) for name in ("nodes", "met", "earned")
        }
        return replace(self, **parts)

    def _behind(self, nodes: Tensor, met: Tensor, earned: Tensor) -> tuple[Tensor, Tensor]:
        """What is met and earned at `nodes` (...), where `met` (..., phrases) and `earned` (...) were so before."""
        ends = self.matcher.begun[nodes] == self.matcher.lengths  # (..., phrases)
        gains = self.worth.masked_fill(self.worth > 0, 0) * ends + self.worth.clamp(min=0) * (ends & ~met)
        return met | ends, earned + gains.sum(dim=-1)
