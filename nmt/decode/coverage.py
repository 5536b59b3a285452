"""The coverage penalty: an output should say something about every token of its source.

    beta * sum over source tokens i of log(min(sum over output tokens j of a_ij, 1))

(Wu et al. 2016, equation 14), where a_ij is the attention to source token i at the step that gives output token j: the
mean over the heads of the decoder's last layer, and of an ensemble the mean over its members. (OpenNMT-py takes the
first head of that layer alone; one head of several need not be about alignment.) The end token counts as an output
token, as in the length penalty, but not as a source token: there is nothing to translate. A source token that was never
looked at counts as the smallest normal number of float32 instead of 0, so that the penalty is finite.

It is added to the score of an output that ends. Live hypotheses are ranked by probability alone: they will look at the
rest of the source later. Since attention only adds up, the penalty is never above 0 and never falls; and as a single
step may lift it to 0, nothing tighter than 0 bounds what a live hypothesis can still come to. So search stops later
than without it, often only at the longest output; a smaller `max_extra_tokens` saves time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nmt.packed import PackedSequences

_LEAST = torch.finfo(torch.float32).tiny

# Logarithms are rounded to multiples of this. Their sum is then exact in float64, and does not depend on the order in
# which it is taken: how far the longest sentence of a batch pads the others cannot change their scores.
_GRAIN = 2.0**-32


@dataclass(frozen=True)
class Coverage:
    """Where each live hypothesis has looked.

    counts: (rows, src_len) bool, which places hold a source token that is to be covered
    seen:   (rows, width, src_len), the attention so far
    """

    beta: float
    counts: Tensor
    seen: Tensor

    @classmethod
    def start(cls, beta: float, src: PackedSequences, groups: int, width: int) -> Coverage:
        """Nothing seen yet; a row for each group of each sentence, with `width` hypotheses."""
        places = torch.arange(src.max_length, device=src.tokens.device)
        counts = (places < src.lengths[:, None] - 1).repeat_interleave(groups, dim=0)
        return cls(beta, counts, torch.zeros(len(counts), width, src.max_length, device=src.tokens.device))

    def look(self, attention: Tensor) -> Coverage:
        """After a step that looked as `attention` says, of as many values as (rows, width, src_len)."""
        return replace(self, seen=self.seen + attention.reshape(self.seen.shape))

    def penalty(self) -> Tensor:
        """The penalty of each hypothesis, were it to end with the step just taken, (rows, width) float32, <= 0."""
        logs = self.seen.double().clamp(_LEAST, 1.0).log().masked_fill(~self.counts[:, None], 0.0)
        return (self.beta * ((logs / _GRAIN).round().sum(dim=-1) * _GRAIN)).float()

    def follow(self, parents: Tensor) -> Coverage:
        """The hypotheses that extend `parents`, (rows, width)."""
        return replace(self, seen=self.seen.gather(1, parents[:, :, None].expand_as(self.seen)))

    def of(self, rows: Tensor) -> Coverage:
        """The same for some of the rows."""
        return replace(self, counts=self.counts[rows], seen=self.seen[rows])

    def joined(self, others: Coverage) -> Coverage:
        """With other rows behind these."""
        return replace(self, counts=torch.cat([self.counts, others.counts]), seen=torch.cat([self.seen, others.seen]))
